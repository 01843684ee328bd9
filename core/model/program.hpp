// SPDX-License-Identifier: BSD-3-Clause
// Program: the operations of a pass through blocks, as data. Calling the blocks records them; replay runs
// them. The planner, the executor and `mylos inspect --program` know a model's operations only from its
// programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/communication/communicator.hpp"
#include "core/layout/axis.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// What a storage holds.
enum class StorageKind : std::uint8_t {
  activation,  ///< a value of one micro-batch
  weights,     ///< a unit's weights, whole, as passes read them
  gradients,   ///< a unit's gradients, whole, as passes add to them
  bound,       ///< memory that a replay chooses: the guard's input, a version of weights
  kept,        ///< anything else that the rank keeps for the whole run
};

/// Memory that the tensors of programs lie in.
struct Storage {
  std::string name;  ///< "h.3.ln1", "weights of block 3"
  StorageKind kind = StorageKind::activation;
  std::size_t bytes = 0;
  int unit = -1;       ///< of weights and gradients
  bool cheap = false;  ///< to recompute (Cost::cheap)
  /// Whether its content lives for the whole run. Otherwise each value lives from its first write to its last
  /// read, and the storages of a category share an arena.
  bool persists = false;
  MemoryCategory category = MemoryCategory::activations;
  /// Memory within another storage, which is not itself within one: -1 if it has its own.
  int within = -1;
  std::int64_t begin = 0;  ///< bytes from the beginning of `within`
  /// The ranks that share its memory if their communicator can (Communicator::allocate); none if empty. The
  /// storages of an arena all have the same.
  AxisSet window{};
};

/// Storage and offset of an operand of a recorded operation. The operand's address encodes both: (storage +
/// 1) 2^48 + offset.
struct Place {
  int storage = -1;         ///< -1 if the operand is omitted
  std::int64_t offset = 0;  ///< bytes
};
Place place_of(const void* address);
inline Place place_of(const TensorRef& operand) {
  return place_of(operand.data);
}
void* address_of(int storage);

// Collectives and messages among the operations of a program. Each spans the ranks that differ only along the
// axes in `group`. A call is only started; it is in flight, and needs its buffers, until the Await of the
// same buffers.

/// buffer = sum of the buffers of all ranks.
struct AllReduceCall {
  TensorRef buffer{};
  AxisSet group;

  static constexpr std::string_view name = "all_reduce";
  static void operands(auto& op, const auto& visit) { visit("buffer", op.buffer, Access::update); }
  CommCall call() const { return {CommOperation::all_reduce, buffer, buffer}; }
  double flops() const { return 0.0; }
};

/// The collectives from one buffer to another.
template <CommOperation operation>
struct GroupCall {
  TensorRef input{}, output{};
  AxisSet group;

  static constexpr std::string_view name = name_of(operation);
  static void operands(auto& op, const auto& visit) {
    visit("input", op.input, Access::read);
    visit("output", op.output, Access::write);
  }
  CommCall call() const { return {operation, input, output}; }
  double flops() const { return 0.0; }
};
/// output (P, n) = the inputs (n) of all P ranks.
using AllGatherCall = GroupCall<CommOperation::all_gather>;
/// output (n) = this rank's part of the sum of the inputs (P, n) of all P ranks.
using ReduceScatterCall = GroupCall<CommOperation::reduce_scatter>;
/// Part i of rank r's input (P, n) becomes part r of rank i's output (P, n).
using AllToAllCall = GroupCall<CommOperation::all_to_all>;

/// AllToAllCall with numbers of elements per rank; parts follow one another without gaps.
struct AllToAllVCall {
  TensorRef input{}, output{};
  AxisSet group;
  std::shared_ptr<const std::vector<std::int64_t>> send_counts{}, receive_counts{};

  static constexpr std::string_view name = name_of(CommOperation::all_to_all_v);
  static void operands(auto& op, const auto& visit) {
    visit("input", op.input, Access::read);
    visit("output", op.output, Access::write);
  }
  CommCall call() const {
    return {.operation = CommOperation::all_to_all_v,
            .input = input,
            .output = output,
            .send_counts = *send_counts,
            .recv_counts = *receive_counts};
  }
  double flops() const { return 0.0; }
};

/// The collectives and messages that concern one rank of the group in particular: `peer`.
template <CommOperation operation, Access access>
struct PeerCall {
  TensorRef buffer{};
  AxisSet group;
  int peer = 0;

  static constexpr std::string_view name = name_of(operation);
  static void operands(auto& op, const auto& visit) { visit("buffer", op.buffer, access); }
  CommCall call() const { return {.operation = operation, .input = buffer, .output = buffer, .peer = peer}; }
  double flops() const { return 0.0; }
};
/// buffer = the buffer of rank `peer`.
using BroadcastCall = PeerCall<CommOperation::broadcast, Access::update>;
/// The buffer of rank `peer` = the sum of the buffers of all ranks.
using ReduceCall = PeerCall<CommOperation::reduce, Access::update>;
/// Messages. Those between two ranks keep their order.
using SendCall = PeerCall<CommOperation::send, Access::read>;
using ReceiveCall = PeerCall<CommOperation::recv, Access::write>;

/// Waits for the call that has these buffers, if it is in flight.
struct Await {
  TensorRef input{}, output{};

  static constexpr std::string_view name = "await";
  static void operands(auto& op, const auto& visit) {
    visit("input", op.input, Access::read);
    visit("output", op.output, Access::read);
  }
  double flops() const { return 0.0; }
};

template <class Op>
inline constexpr bool is_call = requires(const Op& op) {
  op.group;
};

/// An operation that a program may contain.
using Recordable =
    decltype(Operations() +
             OperationList<AllReduceCall, AllGatherCall, ReduceScatterCall, AllToAllCall, AllToAllVCall,
                           BroadcastCall, ReduceCall, SendCall, ReceiveCall, Await>())::Any;

/// Elements [begin, end) of the gradient of a unit.
struct GradientRange {
  int unit = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What one pass through a block does with a unit.
struct UnitUse {
  int unit = 0;
  int visit = 0;          ///< number of the pass through a block, within the program
  std::size_t first = 0;  ///< the first entry that uses the unit, and the last
  std::size_t last = 0;
  bool reads_weights = false;
  bool adds_gradients = false;
};

/// One operation of a program, and how it depends on the others.
struct Entry {
  Recordable operation;
  int block = 0;
  std::source_location where;  ///< the call that recorded it

  /// Gradients to which this entry is the last to contribute, ordered by unit and place in the unit.
  std::vector<GradientRange> completes{};
  /// Of a backward pass: whether only the gradients of weights need it (SplitProgram::weight).
  bool is_deferrable = false;
};

/// Calls visit(place, access) for each operand that an entry has.
void for_each_place(const Entry& entry, const auto& visit) {
  std::visit(
      [&]<class Op>(const Op& op) {
        Op::operands(
            op, [&](const char* /*name*/, const TensorRef& tensor, Access access, const auto&... /*adds*/) {
              if (tensor) visit(place_of(tensor), access);
            });
      },
      entry.operation);
}

/// Calls visit(result, operand) for each pair of tensors of an entry that may share memory.
void for_each_in_place(const Entry& entry, const auto& visit) {
  std::visit(
      [&]<class Op>(const Op& op) {
        const auto visit_pair = [&](const TensorRef& result, const TensorRef& operand) {
          if (result && operand) visit(result, operand);
        };
        if constexpr (requires { Op::in_place(op, visit_pair); }) Op::in_place(op, visit_pair);
      },
      entry.operation);
}

/// The storages that an entry reads or updates, and the storages that it writes or updates.
struct Accesses {
  std::set<int> reads, writes;
};
Accesses accesses_of(const Entry& entry);
/// Returns whether two sets of storages have one in common.
bool intersect(const std::set<int>& a, const std::set<int>& b);

/// Whether an entry communicates: it starts a call or awaits one.
bool communicates(const Entry& entry);
/// The ranks that an entry calls, and the call; nothing for an entry that starts none.
struct GroupedCall {
  AxisSet group;
  CommCall call;
};
std::optional<GroupedCall> call_of(const Entry& entry);
/// Returns the Await of a call, or nothing for an entry that starts none.
std::optional<Entry> await_of(const Entry& entry);

/// The name of an entry's operation or call.
std::string_view name_of(const Entry& entry);

/// Return the floating-point operations of an entry, and the bytes that it moves if it accesses all of each
/// operand once, or twice if it updates the operand; an Await moves none.
double flops_of(const Entry& entry);
std::int64_t bytes_of(const Entry& entry);

/// The operations of one pass, in order.
struct Program {
  std::vector<Entry> entries;
  std::vector<UnitUse> uses{};  ///< ordered by `first`
};

/// Finds for `programs`, which run one after another, the units that they use, and for each entry whether it
/// adds to a gradient or, as the first contribution, overwrites it, and the gradients that it completes.
/// Inserts an Await of each call before the next entry that uses its result or changes its input, or at the
/// end of the program.
void analyse(std::span<Program* const> programs, const std::vector<Storage>& storages,
             const ParameterTable& table);

/// A backward pass in two parts, not yet analysed. `input` computes the gradients that blocks pass on.
/// `weight` has the operations that only the gradients of weights need; it may run at any later time (Qi et
/// al., "Zero Bubble Pipeline Parallelism", 2024). Operations that read memory which `input` later overwrites
/// stay in `input`.
struct SplitProgram {
  Program input, weight;
};
/// Finds the deferrable entries of a backward pass that has not been analysed. After the pass, only the
/// gradients of weights and the storages `wanted` are used.
void find_deferrable(Program& backward, const std::vector<Storage>& storages, const std::set<int>& wanted);
/// Splits a backward pass whose deferrable entries were found.
SplitProgram split(const Program& backward);

/// The memory of a storage in one replay of a program.
struct Bound {
  std::byte* data = nullptr;
  std::uint64_t version = 0;
  bool holds_terms = false;  ///< has terms of earlier micro-batches, to which operations add
};

/// The values that change from replay to replay.
struct Binding {
  std::vector<Bound> storages;
  std::int64_t first_sample = 0;  ///< of the micro-batch, within the global batch
  StepScalars* scalars = nullptr;

  /// The memory at an address of a recorded operation.
  void* at(const void* recorded) const {
    const Place place = place_of(recorded);
    return storages[static_cast<std::size_t>(place.storage)].data + place.offset;
  }
};

/// Binds the members of an operation that are no tensors: the first sample, the scalars, and the table of
/// segments and blocks.
void bind_others(auto& op, const Binding& binding) {
  const auto bind_dropout = [&](Dropout& dropout) {
    dropout.first_sample += binding.first_sample;
    dropout.scalars = binding.scalars;
  };
  if constexpr (requires { op.noise; }) {
    op.noise.first_sample += binding.first_sample;
    op.noise.scalars = binding.scalars;
  }
  if constexpr (requires { op.dropout; }) bind_dropout(op.dropout);
  if constexpr (requires { op.forward.dropout; }) bind_dropout(op.forward.dropout);
  if constexpr (requires { requires std::is_convertible_v<StepScalars*, decltype(op.scalars)>; }) {
    if (op.scalars != nullptr) op.scalars = binding.scalars;
  }
  if constexpr (requires { op.segments; }) op.segments = static_cast<const Segment*>(binding.at(op.segments));
  if constexpr (requires { op.blocks; }) op.blocks = static_cast<const CopiedBlock*>(binding.at(op.blocks));
}

/// Calls visit(operation) with the operation of an entry, its tensors and scalars bound.
void with_bound(const Entry& entry, const Binding& binding, const auto& visit) {
  std::visit(
      [&]<class Op>(const Op& recorded) {
        Op op = recorded;
        Op::operands(op, [&](const char* /*name*/, TensorRef& tensor, Access /*access*/, auto&... adds) {
          if (!tensor) return;
          const Bound& bound = binding.storages[static_cast<std::size_t>(place_of(tensor).storage)];
          tensor.data = binding.at(tensor.data);
          tensor.version = bound.version;
          ((adds = adds || bound.holds_terms), ...);
        });
        bind_others(op, binding);
        visit(op);
      },
      entry.operation);
}

}  // namespace mylos
