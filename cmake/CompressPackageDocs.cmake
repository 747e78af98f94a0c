# What Debian's rules ask of a package besides its files: compressed manual pages and changelogs, and a file "copyright" that points to
# the licence's text instead of repeating it, where a component has none of its own. Runs over the staged files of every component before
# they are packed.
find_program(gzip gzip REQUIRED)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(GLOB roots "${CPACK_TEMPORARY_DIRECTORY}/*")
foreach(root IN LISTS roots)
  file(GLOB texts "${root}/usr/share/man/man1/*.1")
  file(GLOB changes "${root}/usr/share/doc/*/CHANGELOG.md")
  foreach(file IN LISTS changes)
    get_filename_component(folder "${file}" DIRECTORY)
    file(RENAME "${file}" "${folder}/changelog")
    file(REMOVE "${folder}/LICENSE")
    file(WRITE "${folder}/changelog.Debian" "loopspec (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium

  * What is new is in changelog.gz.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
    if(NOT EXISTS "${folder}/copyright")
      file(WRITE "${folder}/copyright" "Copyright 2026 the loopspec.cpp authors

Licensed under the Apache License, Version 2.0. On Debian systems its text is in
/usr/share/common-licenses/Apache-2.0.
")
    endif()
    list(APPEND texts "${folder}/changelog" "${folder}/changelog.Debian")
  endforeach()
  foreach(file IN LISTS texts)
    execute_process(COMMAND "${gzip}" -9n -f "${file}" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()
