#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Trains 300 steps of inputs/shakespeare.deck on Tiny Shakespeare with two ranks, and checks the validation loss.
# usage: learn_test.sh BUILD SOURCE
set -euo pipefail
build=$1
source=$2
mylos=$build/bin/mylos
text=${MYLOS_TEST_DATA:-}/tinyshakespeare.txt
if [[ ! -f $text ]]; then
  echo "skipped: MYLOS_TEST_DATA has no tinyshakespeare.txt"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$mylos" tokenize "$text" --tokenizer bytes --output "$folder/train.bin" --valid-output "$folder/valid.bin" \
  --valid-fraction 0.1
"$build/launch" 2 "$mylos" train "$source/inputs/shakespeare.deck" --train.stop_step=300 --eval.every=0 \
  --data.train="$folder/train.bin" --data.valid="$folder/valid.bin" --run.dir="$folder/run" --machine.peak_tflops=1 \
  --progress=plain | tail -n 4
"$mylos" eval "$folder/run" --max-loss 2.45
