# CUDA: used when nvcc is there, unless TENON_CUDA says otherwise. Without it every target still builds; src/backends.cc
# is the only file that sees the difference.
set(TENON_CUDA "AUTO" CACHE STRING "AUTO (when nvcc is found), ON or OFF")
set(TENON_HAS_CUDA OFF)
if(NOT TENON_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(TENON_HAS_CUDA ON)
  elseif(TENON_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TENON_CUDA=ON, but no nvcc was found (set CUDACXX)")
  endif()
endif()

add_library(tenon_cuda INTERFACE)
if(TENON_HAS_CUDA)
  # Hopper only, with its own instructions (wgmma, TMA): the a in sm_90a.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -gencode=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr --threads 1")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(TENON_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TENON_CCACHE})
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc 13 has C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit 13.0 REQUIRED)
  target_link_libraries(tenon_cuda INTERFACE CUDA::cudart_static)
  # Host warnings for host code; nvcc passes what the host compiler sees.
  target_compile_options(tenon_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wno-unused-parameter>)
endif()
