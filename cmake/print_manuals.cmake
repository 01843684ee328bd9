# SPDX-License-Identifier: BSD-3-Clause
# Writes what mylos prints of itself: completion for bash and a man page for itself and each of its commands.
# usage: cmake -DMYLOS=PROGRAM -DFOLDER=FOLDER -P print_manuals.cmake
function(print_to file)
  execute_process(COMMAND ${MYLOS} help ${ARGN} OUTPUT_FILE ${FOLDER}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/man1)
print_to(mylos.bash completion)
print_to(man1/mylos.1 man)
execute_process(COMMAND ${MYLOS} help OUTPUT_VARIABLE usage COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n  mylos [a-z]+" lines "${usage}")
foreach(line IN LISTS lines)
  string(REGEX REPLACE ".* " "" command "${line}")
  print_to(man1/mylos-${command}.1 man ${command})
endforeach()
