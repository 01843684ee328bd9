# SPDX-License-Identifier: BSD-3-Clause
# How test programs are built and run.
include(MylosLauncher)
cmake_host_system_information(RESULT mylos_cores QUERY NUMBER_OF_LOGICAL_CORES)

# Tests spend their time in the libraries, so their own code is compiled quickly, with GoogleTest's header precompiled.
# nvcc does not know -Og.
add_library(mylos_test_options INTERFACE)
target_link_libraries(mylos_test_options INTERFACE mylos_options mylos_test_support)
target_compile_options(mylos_test_options INTERFACE $<IF:$<BOOL:${MYLOS_CUDA_ARCH}>,-O1,-Og>)
if(MYLOS_SANITIZE MATCHES undefined)
  # UBSan finds little in the tests' own code and slows its compilation down.
  target_compile_options(mylos_test_options INTERFACE -fno-sanitize=undefined)
endif()
if(MYLOS_PRECOMPILE_HEADERS)
  add_library(mylos_precompiled_tests OBJECT ${PROJECT_BINARY_DIR}/precompiled.cpp)
  target_link_libraries(mylos_precompiled_tests PRIVATE mylos_test_options)
  target_precompile_headers(mylos_precompiled_tests PRIVATE <algorithm> <array> <chrono> <cmath> <cstdint> <filesystem>
    <fstream> <functional> <map> <memory> <optional> <span> <string> <string_view> <thread> <vector> <fmt/core.h>
    <gtest/gtest.h>)
endif()

# mylos_test_program(NAME SOURCES files... [LIBRARIES libs...]) makes the GoogleTest program bin/tests/NAME.
function(mylos_test_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/tests)
  target_link_libraries(${name} PRIVATE mylos_options ${arg_LIBRARIES} mylos_test_options)
  # Programs with OpenMP are excluded, because the headers were precompiled without OpenMP's macro.
  if(NOT "${arg_LIBRARIES}" MATCHES "OpenMP|Kokkos")
    mylos_use_precompiled(${name} mylos_precompiled_tests)
  endif()
endfunction()

# mylos_add_test(ENTRY PROGRAM [RANKS n] [TIMEOUT seconds] [LABELS labels...] [ARGUMENTS words...]) adds ENTRY,
# which runs PROGRAM, on n ranks that MYLOS_LAUNCHER starts if RANKS is given, with a watchdog that turns a hang into
# a named failure. tests/README.md lists the labels.
function(mylos_add_test entry program)
  cmake_parse_arguments(arg "" "RANKS;TIMEOUT" "LABELS;ARGUMENTS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1200)
  endif()
  set(patience 300)
  if(arg_LABELS MATCHES long)
    set(patience ${arg_TIMEOUT})
  endif()
  if(MYLOS_SANITIZE)
    set(patience 900)
    math(EXPR arg_TIMEOUT "2 * ${arg_TIMEOUT}")
  endif()
  set(launcher)
  if(arg_RANKS)
    set(launcher ${PROJECT_BINARY_DIR}/launch ${arg_RANKS})
  else()
    set(arg_RANKS 1)
  endif()
  add_test(NAME ${entry} COMMAND ${launcher} $<TARGET_FILE:${program}> ${arg_ARGUMENTS})
  set(processors ${arg_RANKS})
  if(processors GREATER mylos_cores)
    set(processors ${mylos_cores})  # so that a test that waits can still run alongside
  endif()
  set_tests_properties(${entry} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" PROCESSORS ${processors}
    ENVIRONMENT "MYLOS_BUILD=${PROJECT_BINARY_DIR};MYLOS_SOURCE=${PROJECT_SOURCE_DIR};MYLOS_TEST_TIMEOUT=${patience};OMP_PROC_BIND=false;OMP_WAIT_POLICY=passive")
endfunction()

# mylos_test(NAME SOURCES files... [LIBRARIES libs...] [RANKS n...] [TIMEOUT seconds] [LABELS labels...]
# [ARGUMENTS words...]) makes a program and its entry NAME, or one entry NAME_np<n> per rank count.
function(mylos_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;RANKS;LIBRARIES;LABELS;ARGUMENTS" ${ARGN})
  mylos_test_program(${name} SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES})
  if(NOT arg_RANKS)
    mylos_add_test(${name} ${name} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS} ARGUMENTS ${arg_ARGUMENTS})
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    mylos_add_test(${name}_np${ranks} ${name} RANKS ${ranks} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS}
                   ARGUMENTS ${arg_ARGUMENTS})
  endforeach()
endfunction()
