# SPDX-License-Identifier: BSD-3-Clause
# What mylos is built on (docs/design.md, "Dependencies").

set(MYLOS_CUDA_ARCH "" CACHE STRING "compute capability that CUDA code is built for, such as 80 or 90; empty for none")

if(MYLOS_CUDA_ARCH)
  include(MylosCuda)
endif()

# Kokkos: in Kokkos_ROOT, installed, or built by scripts/setup. With CUDA, only targets given to kokkos_compilation go
# through Kokkos' nvcc_wrapper.
if(MYLOS_CUDA_ARCH)
  list(APPEND CMAKE_PREFIX_PATH ${PROJECT_SOURCE_DIR}/.deps/kokkos-cuda${MYLOS_CUDA_ARCH})
else()
  list(APPEND CMAKE_PREFIX_PATH ${PROJECT_SOURCE_DIR}/.deps/kokkos ${PROJECT_SOURCE_DIR}/.deps/kokkos-kernels)
endif()
find_package(Kokkos 5.0 QUIET OPTIONAL_COMPONENTS separable_compilation)
if(NOT Kokkos_FOUND)
  message(FATAL_ERROR "Kokkos 5 was not found: run scripts/setup (for a GPU with --cuda=ARCH), or point Kokkos_ROOT at an "
                      "installed one")
endif()
if(MYLOS_CUDA_ARCH AND NOT Kokkos_ENABLE_CUDA)
  message(FATAL_ERROR "MYLOS_CUDA_ARCH is ${MYLOS_CUDA_ARCH}, but Kokkos at ${Kokkos_DIR} has no CUDA: run "
                      "scripts/setup --cuda=${MYLOS_CUDA_ARCH}")
endif()
find_package(KokkosKernels QUIET)
find_package(MPI REQUIRED COMPONENTS C CXX)
find_package(Boost 1.74 REQUIRED COMPONENTS program_options)
find_package(fmt REQUIRED)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND fmt_VERSION VERSION_LESS 10)
  # Clang gives a template of fmt 9 another symbol than GCC, with which packages of fmt are built.
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY)
endif()
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.0)

# oneDNN, which computes in host memory only. It is searched for by hand, because Debian's CMake package requires
# OpenCL's development files, which mylos does not need.
if(NOT MYLOS_CUDA_ARCH)
  find_library(DNNL_LIBRARY dnnl)
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
endif()
if(DNNL_LIBRARY AND DNNL_INCLUDE_DIR)
  file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h numbers REGEX "define DNNL_VERSION_(MAJOR|MINOR) +[0-9]+")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" dnnl_version "${numbers}")
  if(dnnl_version VERSION_LESS 2.6)
    message(FATAL_ERROR "oneDNN in ${DNNL_INCLUDE_DIR} is ${dnnl_version}, but mylos needs 2.6 or newer; to do without, "
                        "configure with -DDNNL_LIBRARY=OFF")
  elseif(dnnl_version VERSION_GREATER 3.7)
    message(WARNING "oneDNN ${dnnl_version} was not tried with mylos, which is tested with 2.6 and 3.7")
  endif()
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
else()
  message(STATUS "oneDNN not found: no compute_onednn")
endif()

# HDF5: in HDF5_ROOT, else Debian's serial build. A parallel build works too, but the code that it runs in MPI_Finalize
# crashes if a file could not be written.
if(NOT HDF5_ROOT AND NOT DEFINED ENV{HDF5_ROOT} AND EXISTS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/hdf5/serial)
  set(HDF5_ROOT /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/hdf5/serial)
endif()
find_package(HDF5 REQUIRED COMPONENTS C)
add_library(mylos_hdf5 INTERFACE)
target_include_directories(mylos_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(mylos_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
if(HDF5_IS_PARALLEL)
  target_link_libraries(mylos_hdf5 INTERFACE MPI::MPI_C)
endif()

# Plugins need one shared Kokkos per process; a static build does not. Neither can use relocatable device code.
get_target_property(kokkos_options Kokkos::kokkoscore INTERFACE_COMPILE_OPTIONS)
if(kokkos_options MATCHES "-march=native" AND NOT MYLOS_ARCH STREQUAL native)
  message(FATAL_ERROR "MYLOS_ARCH is '${MYLOS_ARCH}', but Kokkos at ${Kokkos_DIR} was built for this machine, and so "
                      "would be everything that uses it. MYLOS_ARCH='${MYLOS_ARCH}' scripts/setup builds another Kokkos")
endif()
get_target_property(kokkos_type Kokkos::kokkoscore TYPE)
if(NOT MYLOS_STATIC AND NOT kokkos_type STREQUAL "SHARED_LIBRARY")
  message(FATAL_ERROR "Kokkos at ${Kokkos_DIR} is static. Plugins need one shared Kokkos: build it with "
                      "BUILD_SHARED_LIBS=ON, or configure mylos with -DMYLOS_STATIC=ON")
endif()
if(Kokkos_ENABLE_CUDA_RELOCATABLE_DEVICE_CODE)
  message(FATAL_ERROR "Kokkos at ${Kokkos_DIR} uses relocatable device code, which cannot cross plugins")
endif()

if(MYLOS_TESTS)
  find_package(GTest REQUIRED)
  if(MYLOS_BENCHMARKS)
    find_package(benchmark REQUIRED)
  endif()
endif()
if(TARGET Kokkos::kokkoskernels)
  message(STATUS "Kokkos Kernels ${KokkosKernels_VERSION}: GEMM of compute_kokkos")
else()
  message(STATUS "Kokkos Kernels not found: compute_kokkos uses its own GEMM")
endif()
