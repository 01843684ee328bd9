# SPDX-License-Identifier: BSD-3-Clause
# What the tests in a private Slurm share. Sourced by scripts that with_slurm runs, with WORK FOLDER and BUILD as
# arguments; not run. They judge by exit codes and files, and wait for events.
# shellcheck shell=bash
set -euo pipefail

[[ -n ${SLURM_LOGS:-} ]] || { echo "usage: with_slurm NODES CPUS $0 WORK_FOLDER BUILD" >&2 && exit 2; }
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$1
build=$2
export PATH=$build/bin:$source/scripts/slurm:$PATH OMP_NUM_THREADS=1 OMP_PROC_BIND=false
rm -rf "$work"
mkdir -p "$work"
cd "$work"

# failed MESSAGE... ends the test, with the ends of all logs.
failed() {
  {
    echo "failed: $*"
    squeue || true
    tail -n 25 "$SLURM_LOGS"/* || true
    find . -name '*.log' -exec tail -n 40 {} +
  } >&2
  exit 1
}

# shellcheck source=tests/support/wait_for.sh
. "$source/tests/support/wait_for.sh"

# expect CODE COMMAND... runs a command whose exit code must be CODE; its output is in output.log.
expect() {
  local code=$1 status
  shift
  echo "== $*"
  for _ in 1 2 3; do
    status=0
    timeout 240 "$@" >output.log 2>&1 </dev/null || status=$?
    # If two sockets of srun 22.05 draw the same port of its range, it tries no other for the second, and says this.
    grep -q 'all ports in range .* exhausted' output.log || break
  done
  ((status == code)) || failed "exit code $status, not $code: $*"
}

# says FILE PATTERN...: a file holds each pattern.
says() {
  local pattern
  for pattern in "${@:2}"; do grep -qE -e "$pattern" "$1" || failed "$1 does not say: $pattern"; done
}

# --- Jobs ------------------------------------------------------------------------------------------------------------

# submit RUN SCRIPT OPTIONS... submits one of scripts/slurm/ for RUN, or a file, and sets job. WORDS are for mylos.
WORDS=()
submit() {
  local run=$1 script=$2
  shift 2
  [[ $script == /* ]] || script=$source/scripts/slurm/$script
  job=$(sbatch --parsable --output="$run.log" "$@" "$script" run.deck --run.dir="$run" --progress=none \
    ${WORDS[@]+"${WORDS[@]}"})
  echo "== job $job: $run $(basename "$script") $*"
}

# field JOB NAME prints a field of a job.
field() { scontrol show job "$1" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1; }

has_ended() { [[ $(field "$1" JobState) =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT)$ ]]; }

# go_on JOB: a rank that is held goes on.
go_on() { ! is_held "$1" || kill -CONT "$held" 2>/dev/null || true; }

# goes_on_to_its_end JOB: as has_ended; ranks that a fault has stopped go on.
goes_on_to_its_end() {
  ! has_ended "$1" || return 0
  go_on "$1"
  return 1
}

# ended JOB CODE RESTARTS waits for the end of a job and checks its exit code and how often it was requeued.
ended() {
  wait_for "the end of job $1" goes_on_to_its_end "$1"
  local code restarts
  code=$(field "$1" ExitCode) restarts=$(field "$1" Restarts)
  [[ $code == "$2:0" && $restarts == "$3" ]] ||
    failed "job $1 ended with $code after $restarts requeues, not with $2:0 after $3"
}

# ranks JOB [VARIABLE=VALUE] prints the processes of mylos of a job, with VALUE in their environment.
ranks() {
  local pid line
  for pid in $(pgrep -x mylos); do
    for line in "SLURM_CONF=$SLURM_CONF" "SLURM_JOB_ID=$1" "${@:2}"; do
      grep -qsz "^$line\$" "/proc/$pid/environ" || continue 2
    done
    echo "$pid"
  done
}

# is_held JOB: MYLOS_FAULT has stopped a rank, held.
is_held() {
  for held in $(ranks "$1"); do
    [[ $(cut -d' ' -f3 "/proc/$held/stat" 2>/dev/null) != T ]] || return 0
  done
  return 1
}

# equal A B: the last checkpoints and the losses of two runs are equal bit for bit.
equal() {
  local last file
  last=$(cd "$1/checkpoints" && printf '%s\n' step_?????? | sort | tail -n 1)
  for file in weights.h5 optimizer.h5; do
    h5diff "$1/checkpoints/$last/$file" "$2/checkpoints/$last/$file" || failed "$file of $1 and $2 differ in $last"
  done
  h5diff "$1/metrics.h5" "$2/metrics.h5" /steps/loss || failed "the losses of $1 and $2 differ"
}

# --- The run ---------------------------------------------------------------------------------------------------------

cat >run.deck <<'END'
[model]
layers = 1
heads = 2
width = 16
context = 16
vocab = 257
[train]
steps = 300
global_batch = 4
[optim]
lr = 1e-3
[data]
train = tokens.bin
tokenizer = bytes
[checkpoint]
every = 100
[comm]
heartbeat = 240  # the watchdog leaves ranks alone that a fault has stopped
[run]
dir = runs/deck  # tests name others
END
seq 1 20000 >text
mylos tokenize text --tokenizer bytes --output tokens.bin >tokenize.log 2>&1 || failed "tokenize"
