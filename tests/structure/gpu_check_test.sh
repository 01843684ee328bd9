#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# scripts/gpu_check over programs of which one never ends and ignores SIGTERM, one lacks a library, one runs out of
# memory, and one has no test: each is reported, the others run, what has no time left is named, and another call goes
# on from there.
# usage: gpu_check_test.sh SOURCE
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/bundle
mkdir -p "$folder"/{bin/tests,lib/mylos,data/inputs}
cp "$source"/scripts/gpu_{check,layout,restart,results.sh} "$folder/"

# program NAME writes a program from its standard input.
program() {
  { echo '#!/usr/bin/env bash' && cat; } >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}
program mylos <<'END'
printf 'cuda (compute backend)\n  a summary\n  its own kernels: adamw\n'
END
program mpiexec <<'END'
shift 2
exec "$@"
END
program step_benchmark <<'END'
echo 'MFU refers to 750.000 TFLOP/s per rank, a measured matrix product.'
echo 'deck                  500000   60.0     32.00    31.00    33.00'
echo 'deck  1.0 2.0  the device counts 7500.000'
END
program tests/ops_test <<'END'
case $* in
  *attention_backward*) trap '' TERM && exec sleep 1000 ;;
  */cuda_gelu_forward*) echo 'ops_test: libcudnn.so.9: cannot open shared object file' >&2 && exit 127 ;;
  *adamw*) echo "what():  out of memory: 42 bytes for x" >&2 && kill -ABRT $$ ;;
  *sgd*) echo '[==========] Running 0 tests from 0 test suites.' && exit ;;
esac
echo '[  PASSED  ] 3 tests.'
END
for name in reference_test unit_test allocation_test parallel_test parallel_training_test checkpoint_test; do
  program "tests/$name" <<<"echo '[  PASSED  ] 1 test.'"
done
program ops_benchmark <<<'echo measured'
program mlp_benchmark <<<'echo measured'
printf '#!/bin/sh\n' | tee "$folder"/gpu_{layout,restart} >/dev/null

# expect TEXT stops unless the last call printed it.
expect() {
  grep -qE -- "$1" "$work/output" || { echo "not printed: $1" && cat "$work/output" && exit 1; }
}
# call EXIT_CODE ARGUMENTS... runs gpu_check.
call() {
  local status=0
  LLMC='' OUT=$work/logs PYTHON=false "$folder/gpu_check" "${@:2}" >"$work/output" 2>&1 || status=$?
  ((status == $1)) || { echo "exit code $status, not $1" && cat "$work/output" && exit 1; }
}

call 1 --minutes=0.5  # one program hangs until the end
expect '^first_kernel +passed .* 3 tests'
expect '^operation_attention_backward +FAILED .* exit code 137'
expect '^operation_gelu_forward +FAILED .* exit code 127'
expect '  \| ops_test: libcudnn.so.9: cannot open shared object file'
expect '^operation_adamw +FAILED .* exit code 134'
expect '  \| what\(\):  out of memory: 42 bytes for x'
expect '^operation_sgd +FAILED .* exit code 0'
expect '^operation_cross_entropy +passed'
expect '^reference +passed'
expect '^no time or no program for: .*step_124m_16 '
expect '^4 tests or benchmarks failed'

call 0 --minutes=1 --from=step_124m_16
expect '^  step_124m_16 +500000 tokens/s, 32.00 ms per step, MFU 60.0 % of 750.000 TFLOP/s measured.*7.5 GB'
expect '^no time or no program for: .*llmc_124m_16 '
expect '^mlp +passed'
expect '^0 tests or benchmarks failed'
if grep -q '^first_kernel' "$work/output"; then exit 1; fi

call 2 --minutes=1 --from=no_such_entry
expect 'no entry is named no_such_entry'
call 2 --minutes=soon

program mylos <<'END'
printf 'cuda (compute backend)\n  not usable here: no CUDA device\n  its own kernels: adamw\nkokkos (compute'
END
call 1
expect 'the backend cuda is not usable here'
