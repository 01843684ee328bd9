#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds the example plugin against the installed tree, as a plugin author would, and loads it with the installed
# program.
# usage: example_plugin_test.sh PLUGIN_SOURCE INSTALLED_FOLDER BUILD_FOLDER CXX_COMPILER CXX_FLAGS
set -euo pipefail
source=$1
installed=$2
build=$3

rm -rf "$build"
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_PREFIX_PATH="$installed" -DCMAKE_CXX_COMPILER="$4" \
  -DCMAKE_CXX_FLAGS="$5"
cmake --build "$build"
plugins=$("$installed/bin/mylos" help plugins --plugin-path "$build")
echo "$plugins"
grep --quiet 'libmylos_compute_example.so' <<<"$plugins"
grep --quiet 'GELU in a plain loop' <<<"$plugins"
grep --quiet 'its own kernels: gelu_forward$' <<<"$plugins"
