# CUDA as a language, for the folder that includes this and those below it.
enable_language(CUDA)

# CMake 3.25 does not know that newer CUDA compilers have C++20.
set(CMAKE_CUDA_STANDARD 20)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
