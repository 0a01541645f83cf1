# Language level, warnings and sanitizers for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# -O2 -g1: line numbers in crash reports at little cost. Checks never depend on NDEBUG (TENON_CHECK).
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")

option(TENON_BUILD_TESTS "Build the tests" ON)
option(TENON_BUILD_BENCH "Build the micro-benchmarks" ON)
option(TENON_FUZZ "Build libFuzzer targets (needs clang)" OFF)
set(TENON_SANITIZE "" CACHE STRING "address;undefined or thread")

find_program(TENON_CCACHE ccache)
if(TENON_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TENON_CCACHE})
endif()

add_library(tenon_build_flags INTERFACE)
target_compile_options(tenon_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-unused-parameter;-Werror;-fno-omit-frame-pointer>)
foreach(sanitizer IN LISTS TENON_SANITIZE)
  target_compile_options(tenon_build_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizer};-fno-sanitize-recover=all>)
  target_link_options(tenon_build_flags INTERFACE -fsanitize=${sanitizer})
endforeach()
