#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# MYLOS_LAUNCHER: its words come before the number of ranks, whatever they contain; without a program that can be found
# it is refused.
# usage: launcher_test.sh CMAKE SOURCE_FOLDER
set -euo pipefail
cmake=$1
script=$2/cmake/MylosLauncher.cmake
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

failed() {
  echo "failed: $*" >&2
  exit 1
}

"$cmake" "-DMYLOS_LAUNCHER=printf;<%s>;two words;it's;-n" -DMPIEXEC_EXECUTABLE=/mpiexec -DMPIEXEC_NUMPROC_FLAG=-np \
  "-DPROJECT_BINARY_DIR=$folder" -P "$script"
[[ $("$folder/launch" 3 program 'an argument') == "<two words><it's><-n><3><program><an argument>" ]] ||
  failed "$("$folder/launch" 3 program 'an argument')"
grep --quiet "^exec '/mpiexec' '-np' " "$folder/launch_here" || failed "launch_here: $(cat "$folder/launch_here")"
rm "$folder/launch"

# The second is what somebody writes who does not know about the semicolons.
for wrong in '' 'printf <%s> -n' ';-n' "$folder/none;-n"; do
  ! "$cmake" "-DMYLOS_LAUNCHER=$wrong" "-DPROJECT_BINARY_DIR=$folder" -P "$script" 2>"$folder/error" ||
    failed "MYLOS_LAUNCHER=$wrong is taken"
  tr --squeeze-repeats ' \n' ' ' <"$folder/error" >"$folder/line"
  grep --quiet --fixed-strings "mylos: MYLOS_LAUNCHER = \"$wrong\": " "$folder/line" &&
    grep --quiet --fixed-strings '"-DMYLOS_LAUNCHER=srun;--mpi=pmi2;--overcommit;-n"' "$folder/line" ||
    failed "MYLOS_LAUNCHER=$wrong: $(cat "$folder/error")"
  [[ ! -e $folder/launch ]] || failed "MYLOS_LAUNCHER=$wrong makes a script"
done
