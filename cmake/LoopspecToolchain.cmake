# Language level, warnings, sanitizers and ccache: what every target of the project shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(LOOPSPEC_CCACHE ccache)
if(LOOPSPEC_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${LOOPSPEC_CCACHE}")
endif()

# The flags of our own code; dependencies come in as system headers and are not held to them.
add_library(loopspec_flags INTERFACE)
target_compile_options(loopspec_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Werror;-Wshadow;-Wnon-virtual-dtor;-Wno-psabi>
  # One rounding per written operation on every chip: a product and a sum become one fused operation only where the
  # code says so, so that results do not depend on what the optimiser saw fit.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno>)
if(LOOPSPEC_SANITIZE)
  target_compile_options(loopspec_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOOPSPEC_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(loopspec_flags INTERFACE -fsanitize=${LOOPSPEC_SANITIZE})
  # Instrumented for ThreadSanitizer, GCC 12 takes moved variants of the standard library for uninitialised.
  if(LOOPSPEC_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(loopspec_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
endif()

# For code that runs once per command or request (options, templates, config files): a third of its compile time is saved,
# and nobody waits longer. Release builds only; the others keep their own level.
set(LOOPSPEC_COLD_OPTIONS $<$<CONFIG:Release>:-O1>)
