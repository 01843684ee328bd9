# SPDX-License-Identifier: BSD-3-Clause
# How tests and benchmarks start ranks: makes the scripts `launch` and `launch_here` in the build folder. Its test runs
# it by itself: cmake -DMYLOS_LAUNCHER=... -DPROJECT_BINARY_DIR=... -P MylosLauncher.cmake
set(MYLOS_LAUNCHER "${MPIEXEC_EXECUTABLE};${MPIEXEC_NUMPROC_FLAG}" CACHE STRING
  "starts the ranks of tests and benchmarks: a list that ends where their number comes, as srun;--mpi=pmi2;--overcommit;-n")
set(mylos_launcher_program "")
if(MYLOS_LAUNCHER MATCHES "^[^;]+")
  set(mylos_launcher_program "${CMAKE_MATCH_0}")
  find_program(mylos_launcher_found NAMES "${mylos_launcher_program}" NO_CACHE)
endif()
if(NOT mylos_launcher_found)
  message(FATAL_ERROR "mylos: MYLOS_LAUNCHER = \"${MYLOS_LAUNCHER}\": \"${mylos_launcher_program}\" is no program that "
    "can be found. Give a list that ends where the number of ranks comes, its words separated by semicolons, such as "
    "\"-DMYLOS_LAUNCHER=srun;--mpi=pmi2;--overcommit;-n\", or -DMYLOS_TESTS=OFF")
endif()

# mylos_launch_script(NAME WORDS...) makes the script NAME RANKS PROGRAM ARGUMENTS...
function(mylos_launch_script name)
  set(command "")
  foreach(word IN LISTS ARGN)
    string(REPLACE "'" "'\\''" word "${word}")
    string(APPEND command "'${word}' ")
  endforeach()
  file(WRITE ${PROJECT_BINARY_DIR}/${name} "#!/bin/sh\nexec ${command}\"$@\"\n")
  file(CHMOD ${PROJECT_BINARY_DIR}/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
endfunction()
mylos_launch_script(launch ${MYLOS_LAUNCHER})
# For tests that look for the ranks' processes, so that these must run where the test runs.
mylos_launch_script(launch_here ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG})
