# SPDX-License-Identifier: BSD-3-Clause
# What `cmake --install` adds to the libraries, plugins and programs: what Slurm jobs use and, except in a static build,
# Kokkos, so that the tree can be moved, and the package that plugins outside the tree are built against.
include(CMakePackageConfigHelpers)

install(PROGRAMS scripts/slurm/mylos-job DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY scripts/slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/mylos/slurm FILES_MATCHING PATTERN "*.sbatch")

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
