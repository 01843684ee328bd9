# SPDX-License-Identifier: BSD-3-Clause
# What `cmake --install` adds to the libraries, plugins and programs: what Slurm jobs and studies use and,
# except in a static build, Kokkos, so that the tree can be moved, and the package that plugins outside the tree are
# built against.
include(CMakePackageConfigHelpers)

install(PROGRAMS scripts/slurm/mylos-job DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY scripts/slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mylos/slurm FILES_MATCHING PATTERN "*.sbatch")

# Studies: the script finds its modules in share, or beside itself, and they their style sheets.
install(PROGRAMS scripts/study DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME mylos-study)
install(FILES scripts/pictures.css scripts/plots.css scripts/plots.py scripts/study_page.css scripts/study_page.py
        DESTINATION ${CMAKE_INSTALL_DATADIR}/mylos/scripts)

install(DIRECTORY inputs DESTINATION ${CMAKE_INSTALL_DATADIR}/mylos)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}
        PATTERN results.md EXCLUDE PATTERN results EXCLUDE PATTERN design-changes.md EXCLUDE)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(MYLOS_SANITIZE)
  return()
endif()

# What mylos prints of itself: completion and man pages.
set(manuals ${PROJECT_BINARY_DIR}/share)
add_custom_command(OUTPUT ${manuals}/mylos.bash
  COMMAND ${CMAKE_COMMAND} -DMYLOS=$<TARGET_FILE:mylos> -DFOLDER=${manuals} -P ${PROJECT_SOURCE_DIR}/cmake/print_manuals.cmake
  DEPENDS mylos cmake/print_manuals.cmake COMMENT "Printing completion and man pages")
add_custom_target(mylos_manuals ALL DEPENDS ${manuals}/mylos.bash)
install(FILES ${manuals}/mylos.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME mylos)
install(DIRECTORY ${manuals}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})

if(MYLOS_STATIC)
  return()
endif()

install(IMPORTED_RUNTIME_ARTIFACTS Kokkos::kokkoscore Kokkos::kokkoscontainers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/mylos)
install(DIRECTORY core DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mylos FILES_MATCHING PATTERN "*.hpp")
install(EXPORT mylos_core NAMESPACE mylos:: FILE mylosTargets.cmake DESTINATION ${package})
configure_package_config_file(cmake/mylosConfig.cmake.in ${PROJECT_BINARY_DIR}/mylosConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mylosConfigVersion.cmake COMPATIBILITY ExactVersion)
install(FILES ${PROJECT_BINARY_DIR}/mylosConfig.cmake ${PROJECT_BINARY_DIR}/mylosConfigVersion.cmake
        DESTINATION ${package})
