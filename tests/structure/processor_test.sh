#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Starts mylos on an emulated processor that lacks what the build needs, and on one that has it.
# usage: processor_test.sh BUILD_FOLDER
set -euo pipefail
mylos=$1/bin/mylos

command -v qemu-x86_64 >/dev/null || { echo "skipped: qemu-x86_64 is not installed" && exit 77; }
needs=$("$mylos" version | sed -n 's/^processor *//p')
[[ $needs == x86-64-v[34]* ]] || { echo "skipped: this build needs $needs" && exit 77; }

for arguments in help version "train missing.deck"; do
  status=0
  # shellcheck disable=SC2086 # two words
  output=$(qemu-x86_64 -cpu Nehalem "$mylos" $arguments 2>&1) || status=$?
  echo "$output"
  [[ $status == 2 && $output == *"mylos: this build (MYLOS_ARCH="*") needs a processor with "*AVX2*", which this one ("* ]]
  [[ $(wc -l <<<"$output") == 1 ]]
done

if [[ $needs == "x86-64-v3 or better" ]]; then
  qemu-x86_64 -cpu Haswell "$mylos" version 2>/dev/null | grep '^plugin *kokkos.*: usable'
fi
