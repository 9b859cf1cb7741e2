# rocenante_device: the CUDA kernels and their host code, wherever there is an nvcc, GPU or not; without
# one, the host code with a stand-in for CUDA that says so.
# An OBJECT library: from a static one the linker would drop the kernels that no symbol names.
find_program(NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NVCC AND NOT ROCENANTE_SANITIZE)
  set(have_nvcc ON)
else()
  set(have_nvcc OFF)
endif()
option(ROCENANTE_CUDA "Build the CUDA kernels (default: if there is an nvcc)" ${have_nvcc})
file(GLOB device_sources CONFIGURE_DEPENDS csrc/device/*.cu csrc/device/*.cc)
list(FILTER device_sources EXCLUDE REGEX "emula[^/]*$") # stands in for the GPU, in tests only
set(not_here "/cuda\\.cc$|\\.cu$")
if(ROCENANTE_CUDA)
  set(not_here "/without_cuda\\.cc$")
endif()
list(FILTER device_sources EXCLUDE REGEX "${not_here}")
set(ROCENANTE_CUDA_VERSION "")
set(ROCENANTE_CUDA_ARCHS "")

if(NOT ROCENANTE_CUDA)
  message(STATUS "rocenante: no CUDA kernels")
  add_library(rocenante_device OBJECT EXCLUDE_FROM_ALL ${device_sources})
  target_link_libraries(rocenante_device PUBLIC rocenante_options)
  return()
endif()
if(NOT NVCC)
  message(FATAL_ERROR "ROCENANTE_CUDA=ON, but no nvcc: set CUDA_HOME, or ROCENANTE_CUDA=OFF")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  execute_process(COMMAND ${NVCC} --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  foreach(arch 80 90 100 120 121)
    if(known MATCHES "sm_${arch}[\r\n]")
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${arch})
    endif()
  endforeach()
endif()
# nvcc's front end runs once, for the oldest architecture: the kernels use nothing newer, and it takes
# longer than all code generators together. Its PTX also goes in, for GPUs yet to come.
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "-[a-z]+$" "")
list(SORT CMAKE_CUDA_ARCHITECTURES COMPARE NATURAL)
list(GET CMAKE_CUDA_ARCHITECTURES 0 oldest)
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES PREPEND "sm_" OUTPUT_VARIABLE ROCENANTE_CUDA_ARCHS)
list(APPEND ROCENANTE_CUDA_ARCHS compute_${oldest})
list(JOIN ROCENANTE_CUDA_ARCHS "," codes)
set(CMAKE_CUDA_COMPILER ${NVCC})
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(ROCENANTE_CUDA_VERSION ${CUDAToolkit_VERSION})

add_library(rocenante_device OBJECT ${device_sources})
set_target_properties(rocenante_device PROPERTIES CUDA_RUNTIME_LIBRARY Static
  CUDA_ARCHITECTURES OFF)
target_compile_options(rocenante_device PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode \"arch=compute_${oldest},code=[${codes}]\">"
  "$<$<COMPILE_LANGUAGE:CUDA>:--threads=2;-Xfatbin=-compress-all>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-fmad=false;-Werror=all-warnings>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off>")
# cudart_static opens libcuda.so.1 by itself, if there is one: no NEEDED entry, imports anywhere.
target_link_libraries(rocenante_device PUBLIC rocenante_options CUDA::cudart_static)
message(STATUS "rocenante: CUDA ${CUDAToolkit_VERSION} kernels for ${ROCENANTE_CUDA_ARCHS}")
