# cmake --install: headers, library, attendConfig.cmake, attend.pc and attend-c.pc, licence; the program installs itself.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# An installed program finds the shared library beside it.
set(CMAKE_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})

target_include_directories(attend PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS attend EXPORT attendTargets)
install(DIRECTORY include/attend DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN llm EXCLUDE)
install(FILES LICENSE THIRD_PARTY_NOTICES DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(ATTEND_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/attend)
install(EXPORT attendTargets NAMESPACE attend:: DESTINATION ${ATTEND_CMAKE_DIR})
if(ATTEND_RING)
  # An export of its own: who does not ask for the ring needs no MPI.
  install(TARGETS attend_ring EXPORT attendRingTargets)
  install(EXPORT attendRingTargets NAMESPACE attend:: DESTINATION ${ATTEND_CMAKE_DIR})
endif()
configure_package_config_file(cmake/attendConfig.cmake.in attendConfig.cmake INSTALL_DESTINATION ${ATTEND_CMAKE_DIR})
write_basic_package_version_file(attendConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attendConfig.cmake ${PROJECT_BINARY_DIR}/attendConfigVersion.cmake
  DESTINATION ${ATTEND_CMAKE_DIR})

# Relative to the .pc file, so that the installed tree can be moved.
file(RELATIVE_PATH ATTEND_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
# A static library brings along what it stands on; whoever links the shared one need not name it.
get_target_property(ATTEND_KIND attend TYPE)
if(ATTEND_KIND STREQUAL "STATIC_LIBRARY")
  set(ATTEND_PC_LIBS "-lattend -lstdc++ -lm -pthread")
else()
  set(ATTEND_PC_LIBS "-lattend")
endif()
# No -std: it would replace the one that the user's own flags ask for. The headers say what they need.
function(attend_pkgconfig ATTEND_PC_NAME ATTEND_PC_LIBS)
  set(ATTEND_PC_CFLAGS "-I\${includedir}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/attend.pc.in ${PROJECT_BINARY_DIR}/${ATTEND_PC_NAME}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${ATTEND_PC_NAME}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
attend_pkgconfig(attend "${ATTEND_PC_LIBS}")
attend_pkgconfig(attend-c "${ATTEND_PC_LIBS}")
