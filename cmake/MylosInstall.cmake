# SPDX-License-Identifier: BSD-3-Clause
# What `cmake --install` adds to the libraries, plugins and programs: what Slurm jobs use and, except in a static build,
# Kokkos, so that the tree can be moved, and the package that plugins outside the tree are built against.
include(CMakePackageConfigHelpers)

install(PROGRAMS scripts/slurm/mylos-job DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY scripts/slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mylos/slurm FILES_MATCHING PATTERN "*.sbatch")

install(DIRECTORY inputs DESTINATION ${CMAKE_INSTALL_DATADIR}/mylos)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}
        PATTERN results.md EXCLUDE PATTERN design-changes.md EXCLUDE)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(MYLOS_SANITIZE)
  return()
endif()

# What mylos prints of itself: completion and man pages.
set(manuals ${PROJECT_BINARY_DIR}/share)
set(pages mylos.1)
set(print_pages COMMAND mylos help man > ${manuals}/mylos.1)
foreach(command train eval generate tokenize inspect convert report help version)
  list(APPEND pages mylos-${command}.1)
  list(APPEND print_pages COMMAND mylos help man ${command} > ${manuals}/mylos-${command}.1)
endforeach()
list(TRANSFORM pages PREPEND ${manuals}/)
add_custom_command(OUTPUT ${manuals}/mylos.bash ${pages}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${manuals}
  COMMAND mylos help completion > ${manuals}/mylos.bash ${print_pages}
  DEPENDS mylos COMMENT "Printing completion and man pages")
add_custom_target(mylos_manuals ALL DEPENDS ${manuals}/mylos.bash)
install(FILES ${manuals}/mylos.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME mylos)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

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
