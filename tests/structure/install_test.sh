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

# What Slurm jobs use.
"$installed/bin/mylos-job" --help
for script in "$(dirname "${BASH_SOURCE[0]}")"/../../scripts/slurm/*.sbatch; do
  cmp "$script" "$installed/share/mylos/slurm/$(basename "$script")"
done
