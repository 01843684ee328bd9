#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs the tree, moves it, and runs it at its new place with an environment that does not mention the build.
# usage: install_test.sh BUILD_FOLDER INSTALLED_FOLDER
set -euo pipefail
build=$1
installed=$2

rm -rf "$installed" "$installed.first"
cmake --install "$build" --prefix "$installed.first" >"$installed.log"
mv "$installed.first" "$installed"

if readelf --dynamic "$installed"/bin/mylos "$installed"/lib/libmylos_*.so "$installed"/lib/mylos/*.so |
  grep -E 'R(UN)?PATH' | grep --fixed-strings "$build"; then
  echo "the installed files look for libraries in the build folder"
  exit 1
fi

mylos=(env --ignore-environment "PATH=$PATH" "HOME=$installed" OMP_PROC_BIND=false "$installed/bin/mylos")
"${mylos[@]}" help
plugins=$("${mylos[@]}" help plugins)
echo "$plugins"
grep --quiet kokkos <<<"$plugins"
if grep --fixed-strings "$build/lib" <<<"$plugins"; then
  echo "the installed program looks for plugins in the build folder"
  exit 1
fi

# What mylos prints of itself, and what describes it.
"${mylos[@]}" help | sed -n 's/^  mylos \([a-z]*\) .*/\1/p' | while read -r command; do
  man=$installed/share/man/man1/mylos-$command.1
  "${mylos[@]}" help man "$command" | cmp - "$man"
  grep --quiet "^.SH SYNOPSIS" "$man"
done
[[ -s $installed/share/man/man1/mylos.1 && -s $installed/share/doc/mylos/LICENSE ]]
[[ -s $installed/share/doc/mylos/deck.md && -s $installed/share/mylos/inputs/quickstart.deck ]]

# completed WORDS... prints what bash offers for the last word.
completed() (
  # shellcheck disable=SC1091 # it is part of the installation
  source "$installed/share/bash-completion/completions/mylos"
  compopt() { :; }
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
  _mylos
  printf '%s ' "${COMPREPLY[@]}"
)
[[ $(completed mylos tr) == "train " ]]
[[ $(completed mylos train --dry) == "--dry-run " ]]
[[ $(completed mylos train x.deck --model.tie) == "--model.tied= " ]]
[[ $(completed mylos train x.deck --model.tied =) == "true false " ]]
[[ $(completed mylos train x.deck --parallel.schedule = zero) == "zero_bubble zero_bubble_v " ]]
[[ $(completed mylos eval --plug) == "--plugin-path= " ]]
[[ $(completed mylos convert x --to = c) == "checkpoint " ]]
[[ $(completed mylos help ma) == "man " ]]

# What Slurm jobs and studies use.
"$installed/bin/mylos-job" --help
env --ignore-environment "PATH=$PATH" "$installed/bin/mylos-study" "$installed/share/mylos/inputs/quickstart.deck" \
  "$installed/study" --ranks=1 --dry-run | grep --fixed-strings "$installed/bin/mylos train"
for script in "$(dirname "${BASH_SOURCE[0]}")"/../../scripts/slurm/*.sbatch; do
  cmp "$script" "$installed/share/mylos/slurm/$(basename "$script")"
done
