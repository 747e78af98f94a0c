# One library for others: libloopspec.a from the folders' objects, with a package file for find_package(loopspec).
include(CMakePackageConfigHelpers)

get_property(folders GLOBAL PROPERTY LOOPSPEC_FOLDERS)
set(objects)
foreach(folder IN LISTS folders)
  list(APPEND objects $<TARGET_OBJECTS:${folder}>)
endforeach()
add_library(loopspec STATIC ${objects})
add_library(loopspec::loopspec ALIAS loopspec)
target_include_directories(loopspec INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(loopspec INTERFACE cxx_std_20)
set_target_properties(loopspec PROPERTIES LINKER_LANGUAGE CXX)
# Named again in the package file, where they are looked up afresh.
target_link_libraries(loopspec INTERFACE $<BUILD_INTERFACE:loopspec_link_libraries>)
add_library(loopspec_link_libraries INTERFACE)
target_link_libraries(loopspec_link_libraries INTERFACE fmt::fmt Threads::Threads PkgConfig::HWY
  PkgConfig::PCRE2 PkgConfig::UTF8PROC ZLIB::ZLIB)
if(LOOPSPEC_HAS_CUDA)
  target_link_libraries(loopspec_link_libraries INTERFACE CUDA::cudart CUDA::cublasLt)
endif()

# Three parts, which are packages of their own: "program", "development" and "demo", the model that `loopspec demo` runs. A copy of the
# sources without models/ has no demo.
if(EXISTS "${PROJECT_SOURCE_DIR}/models/ouro-demo/model.safetensors")
  set(LOOPSPEC_HAS_DEMO_MODEL ON)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/models/ouro-demo" DESTINATION ${CMAKE_INSTALL_DATADIR}/loopspec/models COMPONENT demo)
  install(FILES "${PROJECT_SOURCE_DIR}/CHANGELOG.md" DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/loopspec-demo COMPONENT demo)
endif()
install(TARGETS loopspec EXPORT loopspecTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/loopspec" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(EXPORT loopspecTargets NAMESPACE loopspec:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/loopspec COMPONENT development)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/loopspecConfig.cmake.in" "${PROJECT_BINARY_DIR}/loopspecConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/loopspec)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/loopspecConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/loopspecConfig.cmake" "${PROJECT_BINARY_DIR}/loopspecConfigVersion.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/loopspec COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/CHANGELOG.md" DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libloopspec-dev COMPONENT development)

# What to read, and the unit of the server, which names the binary where it is installed.
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md" "${PROJECT_SOURCE_DIR}/SECURITY.md"
  "${PROJECT_SOURCE_DIR}/CONTRIBUTING.md" "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program PATTERN journal EXCLUDE)
install(CODE "
  file(READ \"${PROJECT_SOURCE_DIR}/deploy/loopspec.service\" unit)
  string(REPLACE \"ExecStart=/usr/bin/\" \"ExecStart=\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" unit \"\${unit}\")
  string(REPLACE \"file:///usr/share/doc/loopspec\" \"file://\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\" unit \"\${unit}\")
  set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/system/loopspec.service\")
  message(STATUS \"Installing: \${file}\")
  file(WRITE \"\${file}\" \"\${unit}\")" COMPONENT program)
