# loopspec_install_check(TARGET ...): `cmake --install` looks for the built files before it copies any, so that an unfinished
# build leaves no half of an installation behind. To be called before the other install rules.
function(loopspec_install_check)
  set(files)
  foreach(target IN LISTS ARGN)
    list(APPEND files "$<TARGET_FILE:${target}>")
  endforeach()
  list(JOIN files "\" \"" files)
  install(CODE "
    foreach(file IN ITEMS \"${files}\")
      if(NOT EXISTS \"\${file}\")
        message(FATAL_ERROR \"\${file} is not built yet: cmake --build ${CMAKE_BINARY_DIR}\")
      endif()
    endforeach()")
endfunction()
