# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Nodes, links and jobs of with_network, for the commands that it runs. Nodes are numbers from 0.

# shellcheck source=tests/support/wait_for.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/wait_for.sh"

failed() {
  echo "failed: $*" >&2
  exit 1
}

# --- Nodes and links -------------------------------------------------------------------------------------------------

# The node's first process, whose end is the end of all of the node's.
node_pid() { cat "$MYLOS_NETWORK/.nodes/$1"; }

exec_on_node() { exec nsenter --target "$(node_pid "$1")" --net --mount --uts --pid -- "${@:2}"; }
on_node() { (exec_on_node "$@"); }

cut_link() { ip link set "node$1" down; }
restore_link() { ip link set "node$1" up; }

# set_rate NODE RATE in both directions.
set_rate() {
  local limit=(root tbf rate "$2" burst 256kbit latency 50ms)
  tc qdisc replace dev "node$1" "${limit[@]}"
  on_node "$1" tc qdisc replace dev eth0 "${limit[@]}"
}

# All processes of the node end, and the kernel closes their connections, which the others see.
kill_node() { kill -KILL "$(node_pid "$1")"; }
# The others see nothing.
power_off_node() { cut_link "$1" && kill_node "$1"; }

# --- Jobs on node0 and node1 -----------------------------------------------------------------------------------------

mylos=${MYLOS_BUILD:-}/bin/mylos
ranks_per_node=2

# Prints the logs if the test fails, skips it without Hydra, goes to the network's folder and writes the deck and its data there.
begin_test() {
  # shellcheck disable=SC2154 # code
  trap 'code=$?; ((code == 0 || code == 77)) || tail --lines=100 "$MYLOS_NETWORK"/*.log >&2' EXIT
  [[ -x $mylos ]] || failed "MYLOS_BUILD=${MYLOS_BUILD:-} has no bin/mylos"
  if [[ $("$MYLOS_MPIEXEC" --version 2>&1) != *HYDRA* ]]; then
    echo "skipped: $MYLOS_MPIEXEC is not MPICH's Hydra"
    exit 77
  fi
  cd "$MYLOS_NETWORK" || failed "no network"
  for i in {1..300}; do echo "the quick brown fox jumps over $i lazy dogs"; done >text.txt
  "$mylos" tokenize text.txt --tokenizer bytes --output tokens.bin >tokenize.log 2>&1
  # The large epsilon keeps Adam from amplifying rounding, in which layouts differ.
  cat >run.deck <<'END_OF_DECK'
[model]
layers = 2
heads = 4
width = 32
context = 16
vocab = 257
[train]
steps = 8
global_batch = 12
[optim]
lr = 1e-2
warmup = 2
epsilon = 1e-2
[eval]
batches = 2
[data]
train = tokens.bin
tokenizer = bytes
[backend]
threads = 1
[comm]
heartbeat = 60
[machine]
peak_tflops = 1
END_OF_DECK
}

# on_nodes COMMAND... starts the ranks of both nodes. UCX takes TCP, as it would else find the memory that the nodes share.
on_nodes() {
  UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 "$MYLOS_MPIEXEC" -launcher ssh -launcher-exec "$MYLOS_RSH" -iface eth0 \
    -hosts node0,node1 -n $((2 * ranks_per_node)) -ppn $ranks_per_node "$@"
}

# start RUN [KEY...] trains in the background; finish RUN waits for the end and sets `code` to the launcher's exit code.
# Run, log and job have the same name.
declare -A job
start() {
  on_nodes "$mylos" train run.deck "--run.dir=$1" --progress=plain "${@:2}" >"$1.log" 2>&1 &
  job[$1]=$!
}
finish() {
  wait_for "end of $1" has_ended "${job[$1]}"
  code=0
  wait "${job[$1]}" || code=$?
}
has_ended() { ! kill -0 "$1" 2>/dev/null; }
# train RUN [KEY...] must succeed.
train() {
  start "$@"
  finish "$1"
  ((code == 0)) || failed "$1 ended with $code"
  expect_status "$1" "done 0"
}
wait_for_training() { wait_for "step of $1" grep --quiet --no-messages '^step ' "$1.log"; }

# expect_status RUN STATE_AND_CODE...: one of them, such as "done 0".
expect_status() {
  local found expected
  found=$(python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); print(s["state"], s["exit_code"])' \
    "$1/status.json")
  for expected in "${@:2}"; do [[ $found != "$expected" ]] || return 0; done
  failed "$1/status.json says $found"
}
# expect_line RUN PATTERN in the run's log.
expect_line() { grep --quiet --extended-regexp -e "$2" "$1.log" || failed "$1 does not say \"$2\""; }
# No rank stays behind, neither on nodes nor of the launcher.
expect_no_ranks() { wait_for "end of all ranks" no_ranks; }
no_ranks() { ! grep --quiet --no-messages --line-regexp mylos /proc/[0-9]*/comm; }

# expect_same_weights RUN OTHER: weights and optimizer's states of the last step, bit for bit.
expect_same_weights() {
  local file name
  for file in "$1"/checkpoints/step_*/{weights,optimizer}.h5; do
    name=${file#"$1"}
    h5diff "$file" "$2$name" || failed "$1 and $2 differ in $name"
  done
}
