#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Adds an exchange, a schedule, an axis, an operation and a subcommand to a copy of the tree, with no more edits than
# docs/design.md lists ("Extensions"), builds the copy and uses the additions. Lines in CMake lists do not count as edits.
# usage: extension_test.sh SOURCE_FOLDER WORK_FOLDER LAUNCH CMAKE_OPTIONS...
set -euo pipefail
source=$1
work=$2
launch=$3
extension=$source/tests/structure/extension
tree=$work/tree

failed() {
  echo "failed: $*" >&2
  exit 1
}

rm -rf "$work"
mkdir -p "$tree"
for part in CMakeLists.txt app backends cmake core io parallel; do cp -r "$source/$part" "$tree"; done

# --- What is added ---------------------------------------------------------------------------------------------------

for folder in app backends parallel; do
  (cd "$extension" && find "$folder" -type f) | while read -r file; do
    [[ ! -e $tree/$file ]] || failed "the tree has its own $file now"
    cp "$extension/$file" "$tree/$file"
  done
done

# edit FILE LINES SED_ARGUMENTS... edits a file and checks that LINES lines were added or changed.
edit() {
  local file=$tree/$1 lines
  cp "$file" "$work/before"
  sed --in-place "${@:3}" "$file"
  lines=$(diff "$work/before" "$file" | grep --count '^>' || true)
  ((lines == $2)) || failed "$1: $lines lines were edited, not $2: the test does not know the place any more"
}

# The exchange: a declaration and its place in the list.
edit parallel/exchange/exchanges.cpp 1 \
  -e '0,/^extern const ExchangeKind /{//i extern const ExchangeKind dealt_exchange;' -e '}'
edit parallel/exchange/exchanges.cpp 1 -e 's/{&ddp_exchange\>/&, \&dealt_exchange/'

# The schedule: a declaration and its place in the list.
edit parallel/schedule/schedules.cpp 1 -e '/^extern const ScheduleKind file_schedule;/i extern const ScheduleKind eager_1f1b_schedule;'
edit parallel/schedule/schedules.cpp 1 -e 's/&file_schedule,$/\&eager_1f1b_schedule, &/'

# The axis: its place in the order of the ranks, what its ranks compute; a declaration and its place in the list.
edit core/layout/axis.hpp 2 -e '/^  context,$/a\  twin,' -e '/^    {"context", LossTerms::/a\    {"twin", LossTerms::same},'
edit parallel/layout/axis_kinds.cpp 1 -e '/^std::span.* axis_kinds() {$/i extern const AxisKind twin_axis;'
edit parallel/layout/axis_kinds.cpp 1 -e 's/&tensor_axis, /&\&twin_axis, /'

# The operation: a record and its place in the list of all operations; its place in the backend's list, and a
# declaration.
record=$extension/operation.inc
edit core/ops/operations.hpp "$(wc -l <"$record")" -e '/^struct GuardStep {$/,/^};$/{' -e "/^};\$/r $record" -e '}'
edit core/ops/operations.hpp 1 -e '/^using Operations =/,/;$/s/>;$/, LargestMagnitude>;/'
edit backends/compute_kokkos/operations.hpp 1 -e '/^  using List =/,/;$/s/>;$/, LargestMagnitude>;/'
edit backends/compute_kokkos/operations.hpp 1 -e '/^  void run(.*GuardStep& op);$/{p;s/GuardStep/LargestMagnitude/}'
edit backends/compute_kokkos/CMakeLists.txt 1 -e 's/^set(sources /&largest_magnitude.cpp /'

# The subcommand: a declaration and its place in the list.
edit app/commands/commands.hpp 1 -e '/^extern const Command train_command,/i extern const Command largest_command;'
edit app/commands/commands.cpp 1 -e 's/&version_command,$/& \&largest_command,/'

diff --recursive --unified=0 "$source" "$tree" | grep --invert-match '^Only in' || true
for check in includes features openings aliases; do
  python3 "$source/tests/structure/check_tree.py" "$check" "$tree"
done

# --- The build -------------------------------------------------------------------------------------------------------

# Builds only what the test uses, to save time: of the compute backends, only Kokkos with its own matrix products.
cmake -S "$tree" -B "$work/build" -G Ninja -DMYLOS_TESTS=OFF -DMYLOS_BENCHMARKS=OFF -DDNNL_LIBRARY=OFF \
  -DCMAKE_DISABLE_FIND_PACKAGE_KokkosKernels=ON -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
  -DCMAKE_UNITY_BUILD=ON -DMYLOS_UNITY_PLUGINS=ON "${@:4}"
cmake --build "$work/build" --parallel 2 --target mylos
mylos=$work/build/bin/mylos

# --- The help --------------------------------------------------------------------------------------------------------

# shows TEXT COMMAND... checks that TEXT is in the command's output.
shows() {
  local output
  output=$("${@:2}")
  [[ $output == *"$1"* ]] || failed "no \"$1\" in the output of ${*:2}:"$'\n'"$output"
}

shows 'mylos largest   RUN|CHECKPOINT   magnitude of the largest weight' "$mylos" help
shows 'mylos largest RUN|CHECKPOINT: magnitude of the largest weight' "$mylos" help largest
shows '; dealt: whole units are dealt out to the ranks, which step and store them' "$mylos" help deck parallel
shows '; eager_1f1b: 1f1b with a warm-up that is twice as long' "$mylos" help deck parallel
shows 'deal                 integer: 1 to 1000000000, units; default 1' "$mylos" help deck parallel
shows 'changes results, per rank; in a restart: refused' "$mylos" help deck parallel
shows '| `deal_apart` | boolean | true or false | false |  | results, per rank | refused | false, open |' \
  "$mylos" help deck --markdown
shows 'twin                 integer: 1 to 2, ranks; default 1' "$mylos" help deck parallel
shows ', largest_magnitude,' "$mylos" help plugins

# --- A run by the new exchange, and one by ddp -----------------------------------------------------------------------

for _ in {1..100}; do echo "the quick brown fox jumps over the lazy dog, again and again and again"; done >"$work/text"
"$mylos" tokenize "$work/text" --tokenizer bytes --output "$work/tokens.bin"
# No clipping: if the states are dealt out, the norm is summed in another order.
cat >"$work/deck" <<END
[model]
layers = 2
heads = 2
width = 32
context = 16
vocab = 257
[train]
steps = 6
global_batch = 8
[optim]
lr = 1e-2
min_lr = 1e-3
warmup = 2
clip_norm = 0
[data]
train = $work/tokens.bin
tokenizer = bytes
[backend]
threads = 1
[machine]
peak_tflops = 1
END

# train NAME OPTIONS... trains on two ranks in the directory NAME.
train() {
  "$launch" 2 "$mylos" train "$work/deck" --progress=plain --run.dir="$work/$1" "${@:2}" | tee -a "$work/$1.log"
}
train ddp
# Each rank owns two of the four units.
dealt=(--parallel.exchange=dealt --parallel.deal=2)
train dealt "${dealt[@]}" --train.stop_step=3
train dealt "${dealt[@]}" --restart

# What the records of its keys say: to restarts, to ranks that must agree, to evaluations.
train changed "${dealt[@]}" --train.stop_step=3
train changed --parallel.exchange=dealt --restart --train.stop_step=4
grep --quiet 'not bitwise, because of: .*parallel.deal 2 -> 1' "$work/changed.log" || failed "no change of deal"
! refused=$(train changed "${dealt[@]}" --parallel.deal_apart=true --restart 2>&1) || failed "deal_apart was not refused"
[[ $refused == *'holds units of another deal: '*'parallel.deal_apart false -> true'* ]] || failed "$refused"
# shellcheck disable=SC2016 # the ranks' shells expand it
! differs=$("$launch" 2 sh -c '"$@" --parallel.deal=$((1 + PMI_RANK))' sh "$mylos" train "$work/deck" --progress=plain \
  --run.dir="$work/differs" --parallel.exchange=dealt 2>&1) || failed "ranks with two values of deal trained"
[[ $differs == *'parallel.deal = 2, but rank 0 has parallel.deal = 1'* ]] || failed "$differs"
# shellcheck disable=SC2016
"$launch" 2 sh -c 'if [ "$PMI_RANK" = 1 ]; then set -- "$@" --parallel.deal_apart=true; fi; "$@"' sh "$mylos" train \
  "$work/deck" --progress=plain --run.dir="$work/apart" "${dealt[@]}" --train.stop_step=1
! closed=$("$mylos" eval "$work/changed" --data="$work/tokens.bin" --parallel.deal=2 2>&1) || failed "deal is open"
[[ $closed == *'vocab, exchange, deal_apart and stages can be changed for a model'* ]] || failed "$closed"
"$mylos" eval "$work/changed" --data="$work/tokens.bin" --parallel.deal_apart=true

# losses NAME prints step, loss, norm and learning rate of the first and the last step.
losses() { grep --only-matching -E '^step (1|6)/6 .* lr [^ ]+' "$work/$1.log"; }
[[ $(losses ddp | wc -l) == 2 ]] || failed "ddp did not print its first and its last step"
diff <(losses ddp) <(losses dealt) || failed "the losses differ from those of ddp"
for file in weights.h5 optimizer.h5; do
  cmp "$work"/{ddp,dealt}/checkpoints/step_000006/$file || failed "$file differs from that of ddp"
done

# --- A run by the new schedule: untied and without clipping, two stages give the bits of one -------------------------

stages=(--model.tied=false --train.micro_batch=1)
"$launch" 1 "$mylos" train "$work/deck" --progress=plain --run.dir="$work/whole" "${stages[@]}"
train staged "${stages[@]}" --parallel.pipeline=2 --parallel.schedule=eager_1f1b
for file in weights.h5 optimizer.h5; do
  cmp "$work"/{whole,staged}/checkpoints/step_000006/$file || failed "$file differs from that of one stage"
done
shows 'bubble       1/9' "$mylos" train "$work/deck" --dry-run --ranks=2 --parallel.pipeline=2 --train.micro_batch=1 \
  --parallel.schedule=eager_1f1b --schedule --pass-times=1,1,1 --run.dir="$work/planned"

# --- Runs along the new axis ------------------------------------------------------------------------------------------

# planned TEXT OPTIONS... checks that TEXT is in the plan of a run.
planned() { shows "$1" "$mylos" train "$work/deck" --dry-run --layout --run.dir="$work/planned" "${@:2}"; }
planned 'layout       ranks 2: twin 2 x data 1, exchange ddp' --ranks=2 --parallel.twin=2
planned $'\nrank  twin  heads ' --parallel.twin=2
planned $'\n1     1     all ' --parallel.twin=2
planned 'layout       ranks 8: tensor 2 x twin 2 x data 2, exchange ddp' --parallel.{tensor,twin,data}=2

# refused TEXT RANKS OPTIONS... checks that RANKS ranks do not train, and that TEXT is in what they say.
refused() {
  local output
  ! output=$("$launch" "$2" "$mylos" train "$work/deck" --progress=plain --run.dir="$work/refused" "${@:3}" 2>&1) ||
    failed "ranks trained with ${*:3}"
  [[ $output == *"$1"* ]] || failed "no \"$1\" in:"$'\n'"$output"
}
refused '[parallel] twin = 3 is out of range; use 1 to 2' 2 --parallel.twin=3
refused "[parallel] twin = 2 must divide this run's 1 ranks; use 1" 1 --parallel.twin=2
refused "[parallel] twin = 2 must divide this run's 2 ranks divided by tensor = 2; use 1" 2 --parallel.{tensor,twin}=2

"$launch" 1 "$mylos" train "$work/deck" --progress=plain --run.dir="$work/alone"
train twin --parallel.twin=2 --guard.replica_check_every=2
for file in weights.h5 optimizer.h5; do
  cmp "$work"/{alone,twin}/checkpoints/step_000006/$file || failed "$file differs from that of one rank"
done
steps=$("$mylos" inspect "$work/twin" --csv=steps)
[[ $steps == *wait_twin* && $steps == *payload_twin_all_reduce* ]] || failed "no metrics of the axis: ${steps%%$'\n'*}"
"$launch" 2 "$mylos" eval "$work/twin" --data="$work/tokens.bin"

# --- The new subcommand, which runs the new operation -----------------------------------------------------------------

largest=$(
  python3 - "$work/ddp/checkpoints/step_000006" <<'END'
import array, json, math, pathlib, sys

folder = pathlib.Path(sys.argv[1])
content = (folder / "weights.h5").read_bytes()
weights = array.array("f")
for tensor in json.loads((folder / "manifest.json").read_text())["files"][0]["tensors"]:
    weights.frombytes(content[tensor["offset"] : tensor["offset"] + 4 * math.prod(tensor["shape"])])
print("%.9g" % max(map(abs, weights)))
END
)
for ranks in 1 2; do
  shows "step 6: the largest weight has the magnitude $largest" "$launch" $ranks "$mylos" largest "$work/dealt"
done
