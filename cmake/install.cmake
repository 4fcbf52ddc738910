# `cmake --install`: headers, the shared library, the command, and what CMake and pkg-config find them by.
set(INRUSH_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/inrush)

install(TARGETS inrush EXPORT inrushTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS inrush_probe RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/inrush)
install(DIRECTORY include/inrush DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET inrush_command)
  install(TARGETS inrush_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# Nothing that inrush is built from is part of its interface: the targets file alone is the configuration.
install(EXPORT inrushTargets NAMESPACE inrush:: DESTINATION ${INRUSH_CONFIG_DIR})
file(WRITE ${PROJECT_BINARY_DIR}/inrushConfig.cmake
     "include(\"\${CMAKE_CURRENT_LIST_DIR}/inrushTargets.cmake\")\n")
# Before 1.0 a minor version may break what the one before it promised.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/inrushConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/inrushConfig.cmake ${PROJECT_BINARY_DIR}/inrushConfigVersion.cmake
        DESTINATION ${INRUSH_CONFIG_DIR})

# The .pc file works the prefix out from its own place, so one that is given late or moved stays right.
set(INRUSH_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH INRUSH_PC_TO_PREFIX /prefix/${INRUSH_PC_DIR} /prefix)
configure_file(cmake/inrush.pc.in inrush.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/inrush.pc DESTINATION ${INRUSH_PC_DIR})
