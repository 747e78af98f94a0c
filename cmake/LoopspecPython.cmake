# Whether the build has the Python module (LOOPSPEC_HAS_PYTHON), and if not why (LOOPSPEC_NO_PYTHON).
#   AUTO  where Python 3.10 or later has its headers, nanobind and nanobind-backend, as scripts/python-venv.sh installs them
#   ON    the same, and an error where they are not, as for `pip install .`
#   OFF   never
set(LOOPSPEC_HAS_PYTHON OFF)
set(LOOPSPEC_NO_PYTHON "LOOPSPEC_PYTHON is OFF")
if(NOT LOOPSPEC_PYTHON STREQUAL "OFF")
  set(venv "${PROJECT_SOURCE_DIR}/build/venv-python/bin/python")
  if(NOT DEFINED Python_EXECUTABLE AND EXISTS "${venv}")
    set(Python_EXECUTABLE "${venv}" CACHE FILEPATH "The Python that the module is built for")
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
  set(LOOPSPEC_NO_PYTHON "")
  if(NOT Python_Interpreter_FOUND)
    set(LOOPSPEC_NO_PYTHON "there is no Python 3.10 or later")
  elseif(NOT Python_Development.Module_FOUND)
    set(LOOPSPEC_NO_PYTHON "${Python_EXECUTABLE} has no headers (Debian: python3-dev)")
  else()
    # Split mode is new in nanobind 3.
    execute_process(COMMAND "${Python_EXECUTABLE}" -c
      "import nanobind, nanobind_backend; assert int(nanobind.__version__.split('.')[0]) >= 3; print(nanobind.cmake_dir())"
      OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
    if(NOT status EQUAL 0)
      set(LOOPSPEC_NO_PYTHON "${Python_EXECUTABLE} has no nanobind 3 with its backend (scripts/python-venv.sh installs both)")
    endif()
  endif()
  if(NOT LOOPSPEC_NO_PYTHON)
    set(LOOPSPEC_HAS_PYTHON ON)
  elseif(LOOPSPEC_PYTHON STREQUAL "ON")
    message(FATAL_ERROR "LOOPSPEC_PYTHON is ON, and ${LOOPSPEC_NO_PYTHON}")
  endif()
endif()
if(LOOPSPEC_HAS_PYTHON)
  message(STATUS "Python module: for ${Python_EXECUTABLE}")
else()
  message(STATUS "Python module: not in this build, ${LOOPSPEC_NO_PYTHON}")
endif()
