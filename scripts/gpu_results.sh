# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# What gpu_check and gpu_compare share: data-sheet rates of GPUs, and the results in step_benchmark's output.

# datasheet_tflops NAME prints the dense bf16 rate that NVIDIA gives for a GPU, in TFLOP/s; nothing if it is not known.
datasheet_tflops() {
  case $1 in
    *NVL* | *PCIe*) ;;
    *H200* | *H100*SXM* | *H100*HBM3*) echo 989 ;;
    *A100*) echo 312 ;;
  esac
}

# step_result LOG TFLOPS prints one line: rate, time, MFU relative to the measured matrix product and, if known, to the
# datasheet's rate, memory.
step_result() {
  awk -v datasheet="${2:-0}" '
    match($0, /MFU refers to [0-9.]+/) { measured = substr($0, RSTART + 14, RLENGTH - 14) }
    $1 == "deck" && !steps { steps = 1; rate = $2; mfu = $3; ms = $4 }
    match($0, /the device counts [0-9.]+/) { memory = substr($0, RSTART + 18, RLENGTH - 18) / 1000 }
    END {
      if (!steps) { print "no result"; exit }
      printf "%s tokens/s, %s ms per step, MFU %s %% of %s TFLOP/s measured", rate, ms, mfu, measured
      if (datasheet > 0) printf ", %.1f %% of %s", mfu * measured / datasheet, datasheet
      if (memory > 0) printf ", %.1f GB", memory
      print ""
    }' "$1"
}
