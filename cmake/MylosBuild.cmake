# SPDX-License-Identifier: BSD-3-Clause
# How mylos' libraries, plugins and programs are built. Programs look for plugins in ../lib/mylos relative to the
# executable, so the library folder is lib on every system.
set(CMAKE_INSTALL_LIBDIR lib)
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS -std=c++20)
check_cxx_source_compiles("
  #include <algorithm>
  #include <source_location>
  struct Pair { int first; int second; };
  int main() {
    Pair pairs[] = {Pair(1, 2)};  // an aggregate in parentheses
    return std::ranges::max(pairs, {}, &Pair::first).second +
           static_cast<int>(std::source_location::current().line());
  }" MYLOS_CXX20)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT MYLOS_CXX20)
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) lacks parts of "
                      "C++20 that mylos uses. GCC 12 and Clang 16, or newer, have them: configure a new build "
                      "folder with CXX=g++-12 or CXX=clang++-16 (and libomp-16-dev) in the environment")
endif()
# If CMAKE_UNITY_BUILD is on, as in most presets, up to this many sources are compiled as one, except in plugins.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 6)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(MYLOS_PLUGIN_DIRECTORY ${PROJECT_BINARY_DIR}/lib/mylos)

# Makes the tree relocatable: libraries are searched for relative to the file that needs them.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN/..")

add_library(mylos_options INTERFACE)
target_include_directories(mylos_options INTERFACE ${PROJECT_SOURCE_DIR})
set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wno-unknown-pragmas)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND warnings -Wno-restrict)  # false warnings about std::string's operator+: GCC bug 105651
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  list(APPEND warnings -Wno-dangling-reference)  # of every reference that a function with temporary arguments returns
endif()
if(MYLOS_WARNINGS_AS_ERRORS)
  list(APPEND warnings -Werror)
endif()
target_compile_options(mylos_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
# std::source_location names files relative to the root of the tree, wherever it lies.
target_compile_options(mylos_options INTERFACE
                       "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
# constexpr functions of the standard library are called on the device too.
target_compile_options(mylos_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>")
set(constexpr_fmt FMT_USE_CONSTEXPR=1)  # in some places fmt 9 assumes that nvcc has no constexpr
target_compile_definitions(mylos_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${constexpr_fmt}>")
if(MYLOS_ARCH)
  target_compile_options(mylos_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-march=${MYLOS_ARCH}>"
                                                 "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=${MYLOS_ARCH}>")
endif()

# MYLOS_SANITIZE: the argument of -fsanitize=, such as "address,undefined".
set(MYLOS_SANITIZE "" CACHE STRING "sanitizers to build with; empty for none")
if(MYLOS_SANITIZE)
  # Of UBSan's checks, those are omitted that take a third of the compilation. AddressSanitizer finds most of what they
  # find, except wrong alignment, which fuzzing still checks, for readers only.
  # GCC 12 reports instrumented std::regex as uninitialised.
  string(REPLACE ";" "," sanitizers "${MYLOS_SANITIZE}")
  target_compile_options(mylos_options INTERFACE -fsanitize=${sanitizers} -fno-sanitize-recover=all
                                                 -fno-sanitize=alignment,null,object-size,pointer-overflow
                                                 -fno-omit-frame-pointer -O1 -g1
                                                 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(mylos_options INTERFACE -fsanitize=${sanitizers})
endif()

# A small file spends most of its compile time on the standard library's headers, so these are precompiled. Files still
# include what they use: MYLOS_FULL_TESTS compiles each header by itself, and clang-tidy reads joined sources, both
# without precompiled headers.
if(MYLOS_PRECOMPILE_HEADERS)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cpp CONTENT "")
  add_library(mylos_precompiled OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
  target_link_libraries(mylos_precompiled PRIVATE mylos_options fmt::fmt)
  target_precompile_headers(mylos_precompiled PRIVATE <algorithm> <array> <atomic> <chrono> <cmath> <cstddef> <cstdint>
    <cstring> <filesystem> <functional> <initializer_list> <map> <memory> <mutex> <numeric> <optional> <ranges> <span>
    <source_location> <string> <string_view> <thread> <utility> <vector> <fmt/core.h>)
endif()
# mylos_use_precompiled(TARGET [FROM]) compiles TARGET with the headers that were precompiled for the target FROM, by
# default mylos_precompiled.
function(mylos_use_precompiled target)
  set(from mylos_precompiled)
  if(ARGN)
    set(from ${ARGN})
  endif()
  if(TARGET ${from})
    target_precompile_headers(${target} REUSE_FROM ${from})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE)
      # Precompiled headers need the option that they were compiled with: -fPIC, not an executable's -fPIE.
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
    # GCC 12 forgets that precompiled headers are system headers, and no longer hides their false warnings.
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow)
    endif()
  endif()
endfunction()

# mylos_precompile_kokkos(TARGET) precompiles headers for sources with Kokkos kernels, if MYLOS_PRECOMPILE_HEADERS is on
# and nvcc does not compile the sources.
function(mylos_precompile_kokkos target)
  if(MYLOS_PRECOMPILE_HEADERS AND NOT MYLOS_CUDA_ARCH)
    target_precompile_headers(${target} PRIVATE <Kokkos_Core.hpp>
      ${PROJECT_SOURCE_DIR}/backends/compute_kokkos/kokkos_simd.hpp <fmt/core.h>)
  endif()
endfunction()

# Shorter compilation for code whose own speed does not matter. Link this library after mylos_options, whose flags it
# changes.
add_library(mylos_light_options INTERFACE)
set(light_optimisation -O1)
if(MYLOS_SANITIZE)
  set(light_optimisation -Og)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13
       AND CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  # -O1 leaves these out, and then GCC does not take precompiled headers that were made with -O3.
  list(APPEND light_optimisation -munroll-only-small-loops -mvzeroupper)
endif()
target_compile_options(mylos_light_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${light_optimisation}>)

if(MYLOS_STATIC)
  set(MYLOS_LIBRARY_TYPE STATIC)
  target_compile_definitions(mylos_options INTERFACE MYLOS_STATIC)
else()
  set(MYLOS_LIBRARY_TYPE SHARED)
endif()

# mylos_library(NAME SOURCES...) makes libmylos_NAME. A shared one does not link if a symbol is undefined.
function(mylos_library name)
  add_library(mylos_${name} ${MYLOS_LIBRARY_TYPE} ${ARGN})
  target_link_libraries(mylos_${name} PRIVATE mylos_options)
  target_compile_features(mylos_${name} PUBLIC cxx_std_20)
  mylos_use_precompiled(mylos_${name})
  target_include_directories(mylos_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/mylos>)
  if(NOT MYLOS_STATIC)
    target_link_options(mylos_${name} PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(mylos_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS mylos_${name} EXPORT mylos_${name})
endfunction()

# mylos_plugin(NAME SOURCES...) makes lib/mylos/libmylos_NAME.so, or, in a static build, part of the executable.
# The target mylos_plugins builds all of them.
add_custom_target(mylos_plugins)
define_property(GLOBAL PROPERTY MYLOS_PLUGINS BRIEF_DOCS "plugin targets" FULL_DOCS "plugin targets")
function(mylos_plugin name)
  if(MYLOS_STATIC)
    add_library(mylos_${name} OBJECT ${ARGN})
    target_compile_definitions(mylos_${name} PRIVATE MYLOS_PLUGIN_SYMBOL=mylos_plugin_${name})
  else()
    add_library(mylos_${name} MODULE ${ARGN})
    target_link_options(mylos_${name} PRIVATE LINKER:--no-undefined)
    set_target_properties(mylos_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${MYLOS_PLUGIN_DIRECTORY})
    install(TARGETS mylos_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/mylos)
  endif()
  target_link_libraries(mylos_${name} PRIVATE mylos_options mylos_core)
  # Kernels are the same code in every build that runs: functions of other sources are not inlined into them.
  set_target_properties(mylos_${name} PROPERTIES UNITY_BUILD ${MYLOS_UNITY_PLUGINS})
  add_dependencies(mylos_plugins mylos_${name})
  set_property(GLOBAL APPEND PROPERTY MYLOS_PLUGINS ${name})
endfunction()

# mylos_kokkos_compilation(TARGET) is for sources with Kokkos kernels. With CUDA they go through nvcc, which a compiler
# cache would bypass.
function(mylos_kokkos_compilation target)
  if(MYLOS_CUDA_ARCH)
    kokkos_compilation(TARGET ${target})
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "")
    target_compile_definitions(${target} PRIVATE ${constexpr_fmt})
  endif()
endfunction()

# mylos_link_plugins(TARGET PLUGINS...) links plugins into a static program, with the table that the registry reads.
function(mylos_link_plugins target)
  set(declarations)
  set(entries)
  foreach(plugin IN LISTS ARGN)
    string(APPEND declarations "extern const mylos::PluginDescriptor mylos_plugin_${plugin};\n")
    string(APPEND entries "      &mylos_plugin_${plugin},\n")
    target_link_libraries(${target} PRIVATE mylos_${plugin})
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/static_plugins.cpp.in static_plugins.cpp @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/static_plugins.cpp)
endfunction()

# mylos_use_plugins(TARGET) gives a program all plugins: linked into it in a static build, built alongside it otherwise.
function(mylos_use_plugins target)
  get_property(plugins GLOBAL PROPERTY MYLOS_PLUGINS)
  if(MYLOS_STATIC)
    mylos_link_plugins(${target} ${plugins})
  else()
    foreach(plugin IN LISTS plugins)
      add_dependencies(${target} mylos_${plugin})
    endforeach()
  endif()
endfunction()
