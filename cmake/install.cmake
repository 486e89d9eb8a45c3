# What `make install` puts where. scripts/uninstall takes exactly this back.

include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tarn)

install(TARGETS tarn tarn_static EXPORT tarnTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tarn_command)
    install(TARGETS tarn_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
set(TARN_PLUGIN_DIR ${CMAKE_INSTALL_LIBDIR} CACHE STRING "Folder that libtarn-NAME.so is installed to: that of libtarn, or tarn/ in it")
foreach(backend tarn_cuda tarn_opencl tarn_mpi)
    if(TARGET ${backend})
        install(TARGETS ${backend} LIBRARY DESTINATION ${TARN_PLUGIN_DIR} OPTIONAL) # the tests install without building it
    endif()
endforeach()
install(DIRECTORY include/tarn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# pkg-config: the prefix is found from where the file lies, so that the installed tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(TARN_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
    set(TARN_PC_LIBDIR ${CMAKE_INSTALL_FULL_LIBDIR})
    set(TARN_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
    file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
    string(REGEX REPLACE "/$" "" up ${up})
    set(TARN_PC_PREFIX "\${pcfiledir}/${up}")
    set(TARN_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(TARN_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/tarn.pc.in generated/tarn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/tarn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# CMake: find_package(tarn) gives tarn::tarn and tarn::tarn_static.
install(EXPORT tarnTargets NAMESPACE tarn:: DESTINATION ${package_folder})
configure_package_config_file(cmake/tarnConfig.cmake.in generated/tarnConfig.cmake INSTALL_DESTINATION ${package_folder})
# 0.x: a minor version may change the interface.
write_basic_package_version_file(generated/tarnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/tarnConfig.cmake ${PROJECT_BINARY_DIR}/generated/tarnConfigVersion.cmake
    DESTINATION ${package_folder})

# Man page, completions, licence.
configure_file(docs/tarn.1 generated/tarn.1 @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/tarn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES completions/tarn.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tarn)
install(FILES completions/_tarn DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Models of `make models`, where they were made; `tarn demo --chat` finds the one of stories there.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/build/models DESTINATION ${CMAKE_INSTALL_DATADIR}/tarn OPTIONAL)

# Settings for `tarn train`; docs, results and examples in the folders of the sources, so that links hold.
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/tarn FILES_MATCHING PATTERN "*.json")
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
install(DIRECTORY contrib DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY bench/results DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench FILES_MATCHING PATTERN "*.md" PATTERN "*.tsv")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.c" PATTERN "*.cu" PATTERN "CMakeLists.txt")
