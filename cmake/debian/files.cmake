# Run by cpack over the files that were installed, before they are packed: what Debian asks for besides.
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
include(${source}/cmake/commit.cmake)
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr)
set(documents ${root}/share/doc/attend)

file(REMOVE ${documents}/LICENSE)  # copyright names the system's own copy
configure_file(${CMAKE_CURRENT_LIST_DIR}/copyright ${documents}/copyright COPYONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/lintian-overrides ${root}/share/lintian/overrides/attend COPYONLY)
configure_file(${source}/CHANGELOG.md ${documents}/changelog COPYONLY)
attend_git(date ${source} log -1 --format=%cD)
if(NOT date)
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()
set(version ${CPACK_DEBIAN_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
file(WRITE ${documents}/changelog.Debian "attend (${version}) unstable; urgency=medium\n\n"
  "  * Built from its own repository; changelog.gz says what is new.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")

execute_process(COMMAND gzip -9nf ${documents}/changelog ${documents}/changelog.Debian ${root}/share/man/man1/attend.1
  COMMAND_ERROR_IS_FATAL ANY)
