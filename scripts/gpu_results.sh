# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# For gpu_check: data-sheet rates of GPUs, results in the output of step_benchmark and its peers, tokens for llm.c.

# datasheet_tflops NAME prints the dense bf16 rate that NVIDIA gives for a GPU, in TFLOP/s; nothing if it is not known.
datasheet_tflops() {
  case $1 in
    *NVL* | *PCIe*) ;;
    *H200* | *H100*SXM* | *H100*HBM3*) echo 989 ;;
    *A100*) echo 312 ;;
  esac
}

# step_result LOG TFLOPS prints one line of a measurement's log: of step_benchmark, the rate, time, MFU relative to the
# measured matrix product and, if known, to the datasheet's rate, and memory; of PyTorch and llm.c, the rate and memory.
step_result() {
  awk -v datasheet="${2:-0}" '
    match($0, /MFU refers to [0-9.]+/) { measured = substr($0, RSTART + 14, RLENGTH - 14) }
    $1 == "deck" && !steps { steps = 1; rate = $2; mfu = $3; ms = $4 }
    match($0, /the device counts [0-9.]+/) { memory = substr($0, RSTART + 18, RLENGTH - 18) / 1000 }
    match($0, /tokens_per_second [0-9.]+/) { peer = substr($0, RSTART + 18, RLENGTH - 18) }
    match($0, /peak_device_bytes [0-9]+/) { memory = substr($0, RSTART + 18, RLENGTH - 18) / 1e9 }
    match($0, /device memory usage: [0-9]+/) { memory = substr($0, RSTART + 21, RLENGTH - 21) * 1.048576e-3 }
    / tok\/s$/ && match($0, /[0-9.]+ ms/) { times[++n] = substr($0, RSTART, RLENGTH - 3) + 0 }
    /^\| total batch size / { tokens = $6 }
    END {
      if (n > 3) {  # llm.c: the median of all steps but the first three
        for (i = 4; i <= n; ++i) for (j = i; j > 4 && times[j] < times[j - 1]; --j) {
          t = times[j]; times[j] = times[j - 1]; times[j - 1] = t
        }
        ms = times[int((n + 5) / 2)]
        printf "%.0f tokens/s, %.2f ms per step, %.1f GB\n", 1000 * tokens / ms, ms, memory
        exit
      }
      if (peer) { printf "%.0f tokens/s, %.1f GB\n", peer, memory; exit }
      if (!steps) { print "no result"; exit }
      printf "%s tokens/s, %s ms per step, MFU %s %% of %s TFLOP/s measured", rate, ms, mfu, measured
      if (datasheet > 0) printf ", %.1f %% of %s", mfu * measured / datasheet, datasheet
      if (memory > 0) printf ", %.1f GB", memory
      print ""
    }' "$1"
}

# power_and_clock FILE prints the medians of nvidia-smi's samples "utilization, watts, MHz" with a utilization above 50 %.
power_and_clock() {
  awk -F ', *' '$1 > 50 { print $2, $3 }' "$1" | sort -n | awk '
    { watts[NR] = $1; clocks[NR] = $2 }
    END {
      if (!NR) exit
      for (i = 1; i <= NR; ++i) for (j = i; j > 1 && clocks[j] < clocks[j - 1]; --j) {
        t = clocks[j]; clocks[j] = clocks[j - 1]; clocks[j - 1] = t
      }
      middle = int((NR + 1) / 2)
      printf ", %.0f W, %d MHz", watts[middle], clocks[middle]
    }'
}

# make_llmc_tokens PYTHON FILE writes random tokens in llm.c's format: a header of 256 32-bit numbers (magic, version,
# count), then 16 bits per token.
make_llmc_tokens() {
  "$1" - "$2" <<'END'
import array, random, struct, sys
count = 1 << 22
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
    array.array("H", random.Random(1).choices(range(50257), k=count)).tofile(file)
END
}
