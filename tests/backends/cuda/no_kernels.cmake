# In a build without the CUDA backend: the tests of the GPU's program that need no GPU. The program is host code, so
# that a C++ compiler and the CUDA toolkit's headers are enough.
find_package(CUDAToolkit QUIET)
if(TARGET CUDA::cudart)
  file(GLOB program CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/backends/cuda/program/*.cc")
  add_library(loopspec_cuda_program STATIC ${program} "${PROJECT_SOURCE_DIR}/src/backends/cuda/host/cuda_memory.cc"
    "${PROJECT_SOURCE_DIR}/src/backends/cuda/host/transfers.cc" "${PROJECT_SOURCE_DIR}/src/backends/cuda/host/weight_packer.cc")
  target_include_directories(loopspec_cuda_program PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(loopspec_cuda_program PRIVATE loopspec_flags
    PUBLIC loopspec_sampling loopspec_kv loopspec_model loopspec_tensor loopspec_base CUDA::cudart)
  file(GLOB tests CONFIGURE_DEPENDS backends/cuda/program_test.cc backends/cuda/patience_test.cc backends/cuda/weight_packer_test.cc
    backends/cuda/*_order_test.cc)
  loopspec_test(cuda_program_test SOURCES ${tests} DEPENDS cuda_program calibrate COMPUTES)
  target_include_directories(cuda_program_test PRIVATE backends/cuda)
  set_tests_properties(cuda_program_test PROPERTIES COST 100)
else()
  add_test(NAME cuda_program_test COMMAND "${CMAKE_COMMAND}" -E echo "skipped: there are no CUDA toolkit headers here")
  set_tests_properties(cuda_program_test PROPERTIES SKIP_REGULAR_EXPRESSION "skipped")
endif()
loopspec_not_with_asan(cuda_program_test)
