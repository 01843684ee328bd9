#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds an example plugin against the installed tree, as a plugin author would, moves it, and trains with it and the
# installed program.
# usage: example_plugin_test.sh PLUGIN_SOURCE INSTALLED_FOLDER BUILD_FOLDER CXX_COMPILER CXX_FLAGS
set -euo pipefail
source=$1
installed=$2
build=$3

name=$(sed -n 's/^project(mylos_compute_\(.*\) LANGUAGES CXX)/\1/p' "$source/CMakeLists.txt")
rm -rf "$build" "$build.moved"
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$installed" \
  -DCMAKE_CXX_COMPILER="$4" -DCMAKE_CXX_FLAGS="$5"
cmake --build "$build"
mkdir "$build.moved"
mv "$build/libmylos_compute_$name.so" "$build.moved"

mylos=("$installed/bin/mylos")
plugins=$("${mylos[@]}" help plugins --plugin-path "$build.moved")
echo "$plugins"
grep --quiet "libmylos_compute_$name.so" <<<"$plugins"
grep --quiet '^  GELU in a ' <<<"$plugins"
grep --quiet 'its own kernels: gelu_forward$' <<<"$plugins"

# A run in which the forward pass takes the plugin's GELU, beside one without the plugin.
cd "$build.moved"
printf 'the quick brown fox jumps over the lazy dog\n%.0s' {1..50} >text
"${mylos[@]}" tokenize text --output=tokens.bin
cat >deck <<'END'
[model]
layers = 1
heads = 2
width = 32
context = 16
vocab = 257
[train]
steps = 3
global_batch = 4
[data]
train = tokens.bin
[eval]
[run]
dir = run
[backend]
threads = 1
END
losses() { "${mylos[@]}" train deck --alone --plugin-path="$build.moved" --run.dir="$1" "${@:2}" | tee "$1.log" |
  sed -n 's/^step .* loss *\([0-9.]*\) .*/\1/p'; }
own=$(losses plain)
with_plugin=$(losses with "--backend.compute=$name")
grep --quiet 'example over' with.log
echo "losses without and with the plugin:" $own and $with_plugin
[[ -n $own && $own == "$with_plugin" ]]
