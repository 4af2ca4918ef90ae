# For packagers: shell completions and the manual page, which the program makes of itself, and the Debian package
# (./dev deb: the preset deb, then cpack -G DEB).
if(TARGET attend_cli AND (NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR))
  set(ATTEND_ZSH_COMPLETIONS ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "Where zsh's completions are installed")
  set(made ${PROJECT_BINARY_DIR}/made_by_program)
  file(MAKE_DIRECTORY ${made})
  add_custom_command(OUTPUT ${made}/attend ${made}/_attend ${made}/attend.fish ${made}/attend.1
    COMMAND attend_cli completion bash > ${made}/attend
    COMMAND attend_cli completion zsh > ${made}/_attend
    COMMAND attend_cli completion fish > ${made}/attend.fish
    COMMAND attend_cli man > ${made}/attend.1
    DEPENDS attend_cli COMMENT "Making completions and the manual page")
  add_custom_target(attend_made_by_program ALL DEPENDS ${made}/attend.1)
  add_dependencies(attend_product attend_made_by_program)
  install(FILES ${made}/attend DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${made}/_attend DESTINATION ${ATTEND_ZSH_COMPLETIONS})
  install(FILES ${made}/attend.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  install(FILES ${made}/attend.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME attend)
set(CPACK_PACKAGE_VENDOR "The attend authors")
set(CPACK_PACKAGE_CONTACT "The attend authors <attend@invalid.invalid>")  # reports go where SECURITY.md says
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "exact attention on the CPU: program, library and headers")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Attention as transformers use it, computed exactly, forward and backward: all
masks, all head layouts, linear memory, the same bits every time.

The program runs small language models; the library serves C and C++.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "fonts-dejavu-core, fonts-noto-cjk | fonts-wqy-microhei")  # letters of pictures
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-pip, libzstd1")  # attend pull; training data as .zst
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/debian/version.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/debian/files.cmake)
include(CPack)
