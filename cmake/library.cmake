# libattend: the modules of src/, one object set per instruction set.
find_package(Threads REQUIRED)

file(GLOB ATTEND_SOURCES CONFIGURE_DEPENDS
  src/base/*.cpp src/core/*.cpp src/reference/*.cpp src/ops/*.cpp src/nn/*.cpp src/variants/*.cpp src/lens/*.cpp
  src/cpu/*.cpp)
if(ATTEND_DEMO)  # neither layers, variants and the lens, nor their references; it needs the positions of nn/
  foreach(source IN LISTS ATTEND_SOURCES)
    if(source MATCHES "/src/(nn|variants|lens)/([a-z_]+\\.cpp)$" AND NOT CMAKE_MATCH_2 STREQUAL "positions.cpp")
      list(REMOVE_ITEM ATTEND_SOURCES ${source} ${PROJECT_SOURCE_DIR}/src/reference/${CMAKE_MATCH_2})
    endif()
  endforeach()
endif()
if(ATTEND_C_ABI)
  file(GLOB ATTEND_ABI_SOURCES CONFIGURE_DEPENDS src/abi/*.cpp)
endif()
file(GLOB ATTEND_ISA_SOURCES CONFIGURE_DEPENDS src/cpu/isa/*.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/cpu/isa/avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(src/cpu/isa/avx512.cpp PROPERTIES
    COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mf16c;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>;$<$<CXX_COMPILER_ID:GNU>:-Wno-sign-conversion>")
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

# With ATTEND_KERNELS=native the kernels that this machine will choose (cpu/dispatch.cpp) are built, and no others.
set(ATTEND_KERNEL "")
if(ATTEND_KERNELS STREQUAL "native" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu REGEX "^(vendor_id|flags)" LIMIT_COUNT 2)
  foreach(candidate IN ITEMS "amx:.* amx_bf16 .*" "avx512_bf16:.*AuthenticAMD.* avx512_bf16 .*"
      "avx512:.* avx512f .* avx512bw .*" "avx2:.* fma .* avx2 .*" "scalar:.*")
    string(REGEX MATCH "^([^:]*):(.*)$" matched "${candidate}")
    if(ATTEND_KERNEL STREQUAL "" AND "${cpu} " MATCHES "${CMAKE_MATCH_2}")
      string(REGEX REPLACE ":.*" "" ATTEND_KERNEL "${candidate}")
    endif()
  endforeach()
  list(FILTER ATTEND_ISA_SOURCES INCLUDE REGEX "/${ATTEND_KERNEL}\\.cpp$")
endif()
set_source_files_properties(src/cpu/dispatch.cpp PROPERTIES COMPILE_DEFINITIONS ATTEND_KERNEL="${ATTEND_KERNEL}"
  SKIP_PRECOMPILE_HEADERS ON)

# A library that is installed: what ATTEND_API names is exported, all else is hidden. Below 1.0 a new minor version may
# change the binary interface of C++, so the soname carries it: libattend.so.0.1.
set(ATTEND_SOVERSION ${PROJECT_VERSION_MAJOR})
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(ATTEND_SOVERSION 0.${PROJECT_VERSION_MINOR})
endif()
# DEFINE_SYMBOL: nothing needs it, and without it ccache shares objects between static and shared builds.
function(attend_library target)
  set_target_properties(${target} PROPERTIES DEFINE_SYMBOL "" VERSION ${PROJECT_VERSION} SOVERSION ${ATTEND_SOVERSION})
  if(BUILD_SHARED_LIBS)
    set(map ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_link_options(${target} PRIVATE -Wl,--version-script=${map})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
  endif()
endfunction()

add_library(attend ${ATTEND_SOURCES} ${ATTEND_ABI_SOURCES} ${ATTEND_ISA_SOURCES} ${ATTEND_CUDA_SOURCES})
add_library(attend::attend ALIAS attend)
target_include_directories(attend
  PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_features(attend PUBLIC cxx_std_20)
target_compile_definitions(attend PRIVATE ATTEND_VERSION="${PROJECT_VERSION}")
# As flags: by name they would be targets of the user's project that are called so.
set(ATTEND_DL_FLAGS ${CMAKE_DL_LIBS})
list(TRANSFORM ATTEND_DL_FLAGS PREPEND "-l")
target_link_libraries(attend PRIVATE $<BUILD_INTERFACE:attend_options> Threads::Threads ${ATTEND_DL_FLAGS})
attend_library(attend)
set_source_files_properties(${ATTEND_ISA_SOURCES} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)  # each has flags of its own
attend_precompile(attend)
