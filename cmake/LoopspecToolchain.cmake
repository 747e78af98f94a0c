# Language level, warnings and sanitizers: what every target of the project shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Off, every file is compiled by itself: quicker after a change to one of them, and it shows a missing include.
option(LOOPSPEC_UNITY "Compile several files of a folder as one: a build from nothing takes half the time" ON)

# On in CI, whose compilers are known; off for others, where a warning that we have never seen must not stop the build.
option(LOOPSPEC_WERROR "Warnings are errors" OFF)

# The flags of our own code; dependencies come in as system headers and are not held to them.
add_library(loopspec_flags INTERFACE)
target_compile_options(loopspec_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor;-Wno-psabi>
  # One rounding per written operation on every chip: a product and a sum become one fused operation only where the
  # code says so, so that results do not depend on what the optimiser saw fit.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno>
  # Messages name files as they are in the repository.
  $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)
if(LOOPSPEC_WERROR)
  target_compile_options(loopspec_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LOOPSPEC_SANITIZE)
  target_compile_options(loopspec_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOOPSPEC_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(loopspec_flags INTERFACE -fsanitize=${LOOPSPEC_SANITIZE})
  # Instrumented, GCC 12 takes moved variants and regular expressions of the standard library for uninitialised.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(loopspec_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
endif()

# For code that runs once per command or request (options, templates, config files): almost half of its compile time is
# saved, and nobody waits longer. Release builds only; the others keep their own level.
set(LOOPSPEC_COLD_OPTIONS $<$<CONFIG:Release>:-Og>)
# For tests, which mostly call the library and wait for it: half of their compile time is saved. Those that compute much
# themselves (COMPUTES in LoopspecFolder.cmake) are optimised a little.
set(LOOPSPEC_TEST_OPTIONS $<$<CONFIG:Release>:-O0>)
if(LOOPSPEC_SANITIZE MATCHES "address")  # with ThreadSanitizer they are few, and twice as slow without
  set(LOOPSPEC_TEST_OPTIONS -O0)
endif()
set(LOOPSPEC_COMPUTING_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
