# Debian packages: `cpack --config build/release/CPackConfig.cmake -B DIR` writes loopspec_VERSION_ARCH.deb (the program),
# libloopspec-dev_VERSION_ARCH.deb (the library and its headers), loopspec-demo_VERSION_all.deb (the demo model) and, with LOOPSPEC_PYTHON_LINKED, python3-loopspec_VERSION_ARCH.deb.
set(LOOPSPEC_PACKAGE_CONTACT "the loopspec.cpp developers <loopspec@packages.invalid>" CACHE STRING "Maintainer in packages")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME loopspec)
set(CPACK_PACKAGE_CONTACT "${LOOPSPEC_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fast, lossless inference for looped transformers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL)
if(LOOPSPEC_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL program development)
  if(LOOPSPEC_HAS_DEMO_MODEL)
    list(APPEND CPACK_COMPONENTS_ALL demo)
  endif()
endif()
if(LOOPSPEC_PYTHON_LINKED)
  list(APPEND CPACK_COMPONENTS_ALL python)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
# The version of this very commit, and files that Debian wants compressed: known when packages are made.
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_BINARY_DIR}/LoopspecPackageVersion.cmake")
configure_file("${PROJECT_SOURCE_DIR}/cmake/LoopspecPackageVersion.cmake.in" "${CPACK_PROJECT_CONFIG_FILE}" @ONLY)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/CompressPackageDocs.cmake")

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME loopspec)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "ca-certificates, loopspec-demo")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
  "One program for Ouro, Nanbeige, Raven and Huginn checkpoints as they are released:
generation, chat, an OpenAI-compatible server, measurements. LoopSpec decoding
gives exactly the text of autoregressive decoding, several times sooner.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libloopspec-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(packages libfmt-dev libhwy-dev libpcre2-dev libutf8proc-dev zlib1g-dev)
list(JOIN packages ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "The library behind loopspec, static, with its headers and a package file for
CMake: find_package(loopspec) and loopspec::loopspec.")

set(CPACK_DEBIAN_DEMO_PACKAGE_NAME loopspec-demo)
set(CPACK_DEBIAN_DEMO_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DEMO_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DEMO_PACKAGE_ENHANCES "loopspec, python3-loopspec")
set(CPACK_COMPONENT_DEMO_DESCRIPTION
  "A small looped transformer that tells children's stories and solves short word
problems: what `loopspec demo` and `loopspec chat` run without any download,
and Engine('ouro-demo') in Python.")

if(LOOPSPEC_PYTHON_LINKED)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-loopspec)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS ON)
  # The module is for one version of Python: that of the distribution.
  math(EXPR next "${Python_VERSION_MINOR} + 1")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.${Python_VERSION_MINOR}), python3 (<< 3.${next})")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS python3-numpy)
  set(scripts "${PROJECT_SOURCE_DIR}/deploy/debian/python")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${scripts}/postinst;${scripts}/prerm")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_STRICT_PERMISSION ON)
  set(CPACK_COMPONENT_PYTHON_DESCRIPTION
    "The engine behind loopspec as a Python package: answers, streams for threads
and asyncio, logits of every depth, traces, calibrations. The same library and
the same texts as the program.")
endif()
include(CPack)
