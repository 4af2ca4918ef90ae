# Whether the kernels for NVIDIA GPUs are built: ATTEND_CUDA_FOUND says it. nvcc compiles each .cu file to an image, which
# is embedded; the host's part is plain C++ that finds the driver when it is asked for, so nothing is linked.
set(ATTEND_CUDA_FOUND OFF)
if(NOT ATTEND_CUDA STREQUAL "OFF")
  find_program(ATTEND_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(ATTEND_NVCC)
    get_filename_component(nvcc_real ${ATTEND_NVCC} REALPATH)
    get_filename_component(nvcc_bin ${nvcc_real} DIRECTORY)
    find_path(ATTEND_CUDA_INCLUDE cuda.h HINTS ${nvcc_bin}/../include ${nvcc_bin}/../targets/x86_64-linux/include)
    execute_process(COMMAND ${ATTEND_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9.]+)" matched "${nvcc_version}")
    if(ATTEND_CUDA_INCLUDE AND matched AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12.4)
      set(ATTEND_CUDA_FOUND ON)
    endif()
  endif()
  if(ATTEND_CUDA STREQUAL "ON" AND NOT ATTEND_CUDA_FOUND)
    message(FATAL_ERROR "ATTEND_CUDA is ON, but nvcc 12.4 or later and cuda.h were not found")
  endif()
endif()
if(NOT ATTEND_CUDA_FOUND)
  file(GLOB ATTEND_CUDA_SOURCES CONFIGURE_DEPENDS src/no_cuda/*.cpp)
  list(APPEND ATTEND_CUDA_SOURCES src/cuda/device_mask.cpp)  # plain C++, and tested everywhere
  message(STATUS "Kernels for NVIDIA GPUs are not built (ATTEND_CUDA=${ATTEND_CUDA})")
  return()
endif()
message(STATUS "Kernels for NVIDIA GPUs: nvcc ${CMAKE_MATCH_1}")

file(GLOB ATTEND_CUDA_SOURCES CONFIGURE_DEPENDS src/cuda/*.cpp)
file(GLOB kernel_files CONFIGURE_DEPENDS src/cuda/*.cu)
file(GLOB kernel_headers CONFIGURE_DEPENDS src/cuda/*.cuh src/cuda/*.hpp)
set(folder ${PROJECT_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${folder})
set(images "")
set(text "// Made by cmake/cuda.cmake: the compiled kernels.\n#include \"cuda/driver.hpp\"\n\n")
set(list "")
# Hopper's kernels are for it alone. The plain ones are machine code for 8.x, and PTX that the driver compiles for later
# cards; what both use is there for all.
set(hopper -gencode=arch=compute_90a,code=sm_90a)
set(plain "-gencode=arch=compute_80,code=[sm_80,compute_80]")
# ccache keeps objects alone: an image is a section of one. Paths are relative, so that another clone finds them too.
set(launcher "")
if(CCACHE)
  set(launcher ${CCACHE})
endif()
foreach(file IN LISTS kernel_files)
  get_filename_component(stem ${file} NAME_WE)
  if(stem MATCHES "_plain_")
    set(targets ${plain})
  elseif(stem MATCHES "^(attention_combine|backward_rows|lens_.*|mask_bits)$")
    set(targets ${hopper} ${plain})
  else()
    set(targets ${hopper})
  endif()
  set(object ${folder}/${stem}.o)
  set(image ${folder}/${stem}.fatbin)
  add_custom_command(OUTPUT ${image}
    COMMAND ${launcher} ${ATTEND_NVCC} -std=c++20 -O3 ${targets} -I. -c -o ${object} cuda/${stem}.cu
    COMMAND ${CMAKE_OBJCOPY} -O binary --only-section=.nv_fatbin ${object} ${image}
    DEPENDS ${file} ${kernel_headers} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/src
    COMMENT "Compiling kernels of ${stem}.cu" VERBATIM)
  list(APPEND images ${image})
  string(APPEND text "asm(\".section .rodata\\n.balign 64\\n.global attend_image_${stem}\\n.hidden attend_image_${stem}\\n\"
    \"attend_image_${stem}:\\n.incbin \\\"${image}\\\"\\n.previous\");\nextern \"C\" const char attend_image_${stem};\n")
  string(APPEND list "    {\"${stem}\", &attend_image_${stem}},\n")
endforeach()
list(LENGTH kernel_files count)
string(APPEND text "\nnamespace attend::cuda {\n\nconst Image kImages[] = {\n${list}};\n"
  "const int kImageCount = ${count};\n\n}  // namespace attend::cuda\n")
file(CONFIGURE OUTPUT ${folder}/images.cpp CONTENT "${text}" @ONLY)
list(APPEND ATTEND_CUDA_SOURCES ${folder}/images.cpp)
set_source_files_properties(${folder}/images.cpp PROPERTIES OBJECT_DEPENDS "${images}" SKIP_PRECOMPILE_HEADERS ON)
set_source_files_properties(${ATTEND_CUDA_SOURCES} PROPERTIES
  COMPILE_OPTIONS "-isystem;${ATTEND_CUDA_INCLUDE}" SKIP_PRECOMPILE_HEADERS ON)
