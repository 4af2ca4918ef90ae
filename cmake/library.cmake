# libattend: the modules of src/, one object set per instruction set.
find_package(Threads REQUIRED)

file(GLOB ATTEND_SOURCES CONFIGURE_DEPENDS
  src/base/*.cpp src/core/*.cpp src/reference/*.cpp src/ops/*.cpp src/nn/*.cpp src/variants/*.cpp src/cpu/*.cpp src/abi/*.cpp)
file(GLOB ATTEND_ISA_SOURCES CONFIGURE_DEPENDS src/cpu/isa/*.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/cpu/isa/avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(src/cpu/isa/avx512.cpp PROPERTIES
    COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mf16c;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>")
  get_source_file_property(ATTEND_AVX512 src/cpu/isa/avx512.cpp COMPILE_OPTIONS)
  set_source_files_properties(src/cpu/isa/avx512_bf16.cpp PROPERTIES COMPILE_OPTIONS "${ATTEND_AVX512};-mavx512bf16;-mavx512vnni")
  set_source_files_properties(src/cpu/isa/amx.cpp PROPERTIES
    COMPILE_OPTIONS "${ATTEND_AVX512};-mavx512bf16;-mavx512vnni;-mamx-tile;-mamx-bf16")
else()
  list(FILTER ATTEND_ISA_SOURCES EXCLUDE REGEX "/(avx|amx)[0-9a-z_]*\\.cpp$")
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # Scheduled before registers are given out, the product's tile needs more of them than there are.
  set_source_files_properties(src/cpu/isa/neon.cpp PROPERTIES
    COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>")
else()
  list(FILTER ATTEND_ISA_SOURCES EXCLUDE REGEX "/neon\\.cpp$")
endif()

add_library(attend ${ATTEND_SOURCES} ${ATTEND_ISA_SOURCES})
add_library(attend::attend ALIAS attend)
target_include_directories(attend
  PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_features(attend PUBLIC cxx_std_20)
target_compile_definitions(attend PRIVATE ATTEND_VERSION="${PROJECT_VERSION}")
target_link_libraries(attend PRIVATE $<BUILD_INTERFACE:attend_options> Threads::Threads)
# DEFINE_SYMBOL: nothing needs it, and without it ccache shares objects between static and shared builds.
set_target_properties(attend PROPERTIES DEFINE_SYMBOL "" VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
