# loopspec_precompile(TARGET FLAVOUR): TARGET's files begin with the precompiled headers that most of them include anyway;
# each file still includes what it needs. A precompiled header fits only files with the same compiler options, so there are
# two: one for cold files (see LoopspecFolder.cmake), one for tests.
set(LOOPSPEC_PRECOMPILED
  <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <string> <string_view> <unordered_map>
  <utility> <vector> <fmt/format.h> <nlohmann/json.hpp>)

function(loopspec_precompile target flavour)
  if(NOT LOOPSPEC_PCH)
    return()
  endif()
  set(source loopspec_precompiled_${flavour})
  if(NOT TARGET ${source})
    set(file "${PROJECT_BINARY_DIR}/${source}.cc")
    if(flavour STREQUAL "cold")
      file(CONFIGURE OUTPUT "${file}" CONTENT "")
      add_library(${source} OBJECT "${file}")
    else()
      file(CONFIGURE OUTPUT "${file}" CONTENT "int main() {}\n")
      add_executable(${source} "${file}")
    endif()
    target_link_libraries(${source} PRIVATE loopspec_flags nlohmann_json::nlohmann_json fmt::fmt)
    target_precompile_headers(${source} PRIVATE ${LOOPSPEC_PRECOMPILED})
    target_compile_options(${source} PRIVATE ${LOOPSPEC_COLD_OPTIONS})
    if(flavour STREQUAL "test")
      target_link_libraries(${source} PRIVATE GTest::gtest)
      target_precompile_headers(${source} PRIVATE <gtest/gtest.h>)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${source})
endfunction()
