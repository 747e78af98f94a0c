# loopspec_folder(NAME [SOURCES a.cc ...] [COLD a.cc ...] [DEPENDS folder ...] [LIBRARIES target ...] [BATCH n] [APART] [TOOL_ONLY])
# One static library per source folder. DEPENDS names the folders it may include, LIBRARIES what it links from outside.
# COLD: files whose speed does not matter, compiled quickly; SOURCES are the others.
# BATCH: how many files are compiled as one (see LOOPSPEC_UNITY), 16 unless told. APART: each by itself.
# TOOL_ONLY: for the binary, not part of the installed library.
function(loopspec_folder name)
  cmake_parse_arguments(ARG "APART;TOOL_ONLY" "BATCH" "SOURCES;COLD;DEPENDS;LIBRARIES" ${ARGN})
  set(target loopspec_${name})
  set(objects ${target})
  add_library(${target} STATIC ${ARG_SOURCES})
  if(ARG_SOURCES AND ARG_COLD)  # two sets of compiler options in one library
    add_library(${target}_cold OBJECT ${ARG_COLD})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_cold>)
    list(APPEND objects ${target}_cold)
    loopspec_cold(${target}_cold)
  elseif(ARG_COLD)
    target_sources(${target} PRIVATE ${ARG_COLD})
    loopspec_cold(${target})
  endif()
  foreach(part IN LISTS objects)
    target_include_directories(${part} PUBLIC "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${part} PRIVATE loopspec_flags)
    list(TRANSFORM ARG_DEPENDS PREPEND loopspec_ OUTPUT_VARIABLE folders)
    target_link_libraries(${part} PUBLIC ${folders} ${ARG_LIBRARIES})
    if(NOT ARG_APART)
      loopspec_unity(${part} ${ARG_BATCH})
    endif()
  endforeach()
  if(NOT ARG_TOOL_ONLY)
    set_property(GLOBAL APPEND PROPERTY LOOPSPEC_FOLDERS ${objects})
  endif()
endfunction()

# loopspec_unity(TARGET [n]): compiles about n of its files as one, 16 unless told: templates that they share are then
# instantiated once, which is most of what the compiler does with them. So the files of a target share the names in their
# anonymous namespaces: one that two of them give to different things is an error of the compiler.
function(loopspec_unity target)
  if(NOT LOOPSPEC_UNITY)
    return()
  endif()
  set(batch ${ARGN})
  if(NOT batch)
    set(batch 16)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  list(LENGTH sources files)
  # Of about the same size.
  math(EXPR count "(${files} + ${batch} - 1) / ${batch}")
  math(EXPR batch "(${files} + ${count} - 1) / ${count}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# loopspec_cold(TARGET): its speed does not matter.
function(loopspec_cold target)
  target_compile_options(${target} PRIVATE ${LOOPSPEC_COLD_OPTIONS})
endfunction()

# loopspec_test(NAME SOURCES ... [DEPENDS folder ...] [LABEL long] [COMPUTES] [GPU]): a GoogleTest binary known to ctest.
# COMPUTES: the test's own code takes long, so it is compiled with some optimisation.
# GPU: the test is about the GPU, which no other test sees.
function(loopspec_test name)
  cmake_parse_arguments(ARG "COMPUTES;GPU" "LABEL;TIMEOUT" "SOURCES;DEPENDS" ${ARGN})
  set(computes)
  if(ARG_COMPUTES)
    set(computes COMPUTES)
  endif()
  loopspec_test_binary(${name} ${computes} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  foreach(folder IN LISTS ARG_DEPENDS)
    target_link_libraries(${name} PRIVATE loopspec_${folder})
  endforeach()
  add_test(NAME ${name} COMMAND ${name})
  loopspec_test_limits(${name} "${ARG_TIMEOUT}" "${ARG_LABEL}")
  if(ARG_GPU)
    loopspec_gpu_test(${name})
  endif()
endfunction()

# loopspec_tests(NAME SOURCES a_test.cc ... [PREFIX word_] [DEPENDS folder ...] [COMPUTES] [QUICK] [ANY_DEVICE]): one binary of several
# GoogleTest files, which are compiled together. ctest knows each file as a test of its own, PREFIX and the file's name: it
# runs the suites of that file. QUICK: they take a moment, so that with AddressSanitizer all are one test with the binary's
# name. At the end of a process it looks for leaks, for which GCC's takes four seconds on arm64 however little there is.
# ANY_DEVICE: where the build has the CUDA backend each file is a second test, NAME_gpu, on the GPU (tests/support/device.h).
function(loopspec_tests name)
  cmake_parse_arguments(ARG "COMPUTES;QUICK;ANY_DEVICE" "PREFIX" "SOURCES;DEPENDS" ${ARGN})
  set(computes)
  if(ARG_COMPUTES)
    set(computes COMPUTES)
  endif()
  loopspec_test_binary(${name} ${computes} ${ARG_SOURCES})
  loopspec_unity(${name} 4)
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  foreach(folder IN LISTS ARG_DEPENDS)
    target_link_libraries(${name} PRIVATE loopspec_${folder})
  endforeach()
  set(together OFF)
  if(ARG_QUICK AND LOOPSPEC_SANITIZE MATCHES "address")
    set(together ON)
    add_test(NAME ${name} COMMAND ${name})
    loopspec_test_limits(${name} "" "")
  endif()
  set(known)
  foreach(source IN LISTS ARG_SOURCES)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    file(STRINGS "${source}" tests REGEX "^TEST(_F|_P)?\\(")
    list(TRANSFORM tests REPLACE "^TEST(_F|_P)?\\(([A-Za-z0-9]+).*" "\\2" OUTPUT_VARIABLE suites)
    list(REMOVE_DUPLICATES suites)
    foreach(suite IN LISTS suites)
      if(suite IN_LIST known)
        message(FATAL_ERROR "${source}: another file of ${name} has a suite ${suite}")
      endif()
    endforeach()
    list(APPEND known ${suites})
    list(TRANSFORM suites REPLACE "(.+)" "\\1.*:*/\\1.*")
    list(JOIN suites ":" filter)
    get_filename_component(test "${source}" NAME_WE)
    set(test ${ARG_PREFIX}${test})
    if(NOT together)
      add_test(NAME ${test} COMMAND ${name} --gtest_filter=${filter})
      loopspec_test_limits(${test} "" "")
    endif()
    if(ARG_ANY_DEVICE AND LOOPSPEC_HAS_CUDA)
      add_test(NAME ${test}_gpu COMMAND ${name} --gtest_filter=${filter})
      loopspec_test_limits(${test}_gpu "" "")
      loopspec_gpu_test(${test}_gpu)
      set_tests_properties(${test}_gpu PROPERTIES ENVIRONMENT LOOPSPEC_TEST_DEVICE=cuda SKIP_RETURN_CODE 77)
    endif()
    add_custom_target(${test} DEPENDS ${name})  # to be built by the test's name
  endforeach()
endfunction()

# loopspec_test_binary(NAME [COMPUTES] source ...): compiled as tests are.
function(loopspec_test_binary name)
  cmake_parse_arguments(ARG "COMPUTES" "" "" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE loopspec_flags)
  if(ARG_COMPUTES)
    target_compile_options(${name} PRIVATE ${LOOPSPEC_COMPUTING_TEST_OPTIONS})
  else()
    target_compile_options(${name} PRIVATE ${LOOPSPEC_TEST_OPTIONS})
  endif()
  target_compile_definitions(${name} PRIVATE
    LOOPSPEC_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LOOPSPEC_BINARY_DIR="${PROJECT_BINARY_DIR}")
endfunction()

# loopspec_not_with_asan(TEST ...): left out of .ci/run's stages `asan` and `tsan`, by the label no_asan. Slow under a sanitizer and of no more
# use there than the tests that stay (the same code, more of the same texts), or without anything that is compiled here. To be
# called where the tests are made; a test that this build does not have is passed over.
function(loopspec_not_with_asan)
  foreach(test IN LISTS ARGN)
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY LABELS no_asan)
    endif()
  endforeach()
endfunction()

# What every test has: a time after which it counts as hanging, far above what it takes on a busy machine; and nothing of the
# caller's that the library reads: home folder, caches, keys, proxies, locale.
function(loopspec_test_limits test timeout label)
  if(NOT timeout)
    set(timeout 3600)
  endif()
  set_tests_properties(${test} PROPERTIES TIMEOUT ${timeout} ENVIRONMENT_MODIFICATION "${LOOPSPEC_TEST_ENVIRONMENT}")
  if(label)
    set_tests_properties(${test} PROPERTIES LABELS ${label})
  endif()
endfunction()
# A test of the GPU: it sees the machine's GPUs, and no other such test runs beside it, because they compare times and fill the
# GPU's memory.
function(loopspec_gpu_test test)
  set_tests_properties(${test} PROPERTIES RESOURCE_LOCK gpu ENVIRONMENT_MODIFICATION "${LOOPSPEC_GPU_TEST_ENVIRONMENT}")
endfunction()
# A home that not even root can make.
set(LOOPSPEC_GPU_TEST_ENVIRONMENT
  HOME=set:/dev/null/home LC_ALL=set:C.UTF-8 TZ=set:UTC XDG_CACHE_HOME=unset: HF_HOME=unset: HF_HUB_CACHE=unset: HF_TOKEN=unset: HF_ENDPOINT=unset:
  HF_HUB_OFFLINE=unset: LOOPSPEC_PULL=unset: NO_COLOR=unset:
  LOOPSPEC_API_KEY=unset: http_proxy=unset: https_proxy=unset: HTTP_PROXY=unset: HTTPS_PROXY=unset:
  ALL_PROXY=unset: all_proxy=unset:)
# Every other test means the CPU: a program that chooses a device by itself then chooses that one, on a machine with a GPU too.
set(LOOPSPEC_ON_CPU CUDA_VISIBLE_DEVICES=set:-1)
set(LOOPSPEC_TEST_ENVIRONMENT ${LOOPSPEC_GPU_TEST_ENVIRONMENT} ${LOOPSPEC_ON_CPU})
