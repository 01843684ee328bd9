// SPDX-License-Identifier: BSD-3-Clause
// Program: the operations of a pass through blocks, as data. Calling the blocks records them; replay runs
// them. The planner, the executor and `mylos inspect --program` know a model's operations only from its
// programs.
#pragma once

#include <cstddef>
#include <cstdint>
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
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// The kind of memory in which a tensor of a program lies.
enum class RootKind : std::uint8_t {
  activation,  ///< a place in the arena
  weights,     ///< the flat buffer of a unit
  gradients,   ///< the gradients of a unit
  loss_sum,    ///< the sum of the losses over the micro-batches of a step
};

/// Memory that tensors of programs lie in.
struct Root {
  std::string name;  ///< "h.3.ln1", "weights of block 3"
  RootKind kind = RootKind::activation;
  std::size_t bytes = 0;
  int unit = -1;       ///< of weights and gradients
  bool cheap = false;  ///< to recompute (Cost::cheap)
};

/// Root and offset of an operand of a recorded operation. The operand's address encodes both: (root + 1) 2^48
/// + offset.
struct Place {
  int root = -1;            ///< -1 if the operand is omitted
  std::int64_t offset = 0;  ///< bytes
};
Place place_of(const TensorRef& operand);
void* address_of(int root);

// Collectives among the operations of a program. Each spans the ranks that differ only along the axes in
// `group`. A collective is only started; it is in flight, and needs its buffers, until the Await of the same
// buffers.

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

/// Waits for the call in flight that has these buffers.
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
inline constexpr bool is_collective = requires(const Op& op) {
  op.group;
};

/// An operation that a program may contain.
using Recordable =
    decltype(Operations() + OperationList<AllReduceCall, AllGatherCall, ReduceScatterCall, Await>())::Any;

/// Elements [begin, end) of the gradient of a unit.
struct GradientRange {
  int unit = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What a block does with a unit.
struct UnitAccess {
  int unit = 0;
  bool reads_weights = false;
  bool adds_gradients = false;
};

/// One operation of a program, and how it depends on the others.
struct Entry {
  Recordable operation;
  int block = 0;
  std::source_location where;  ///< the call that recorded it

  std::vector<UnitAccess> acquires{};  ///< units that this entry is the first of its block to use
  std::vector<int> releases{};         ///< units that this entry is the last of its block to use
  /// Gradients to which this entry is the last to contribute, ordered by unit and place in the unit.
  std::vector<GradientRange> completes{};
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

/// The roots that an entry reads or updates, and the roots that it writes or updates.
struct Accesses {
  std::set<int> reads, writes;
};
Accesses accesses_of(const Entry& entry);
/// Returns whether two sets of roots have a root in common.
bool intersect(const std::set<int>& a, const std::set<int>& b);

/// Whether an entry communicates: it starts a collective or awaits one.
bool communicates(const Entry& entry);

/// Return the floating-point operations of an entry, and the bytes that it moves if it accesses all of each
/// operand once, or twice if it updates the operand; an Await moves none.
double flops_of(const Entry& entry);
std::int64_t bytes_of(const Entry& entry);

/// The operations of one pass, in order.
struct Program {
  std::vector<Entry> entries;
};

/// Finds for each entry of `programs`, which run one after another: the units that it acquires and releases,
/// whether it adds to a gradient or, as the first contribution, overwrites it, and the gradients that it
/// completes. Inserts an Await of each collective before the next entry that uses its result or changes its
/// input, or at the end of the program.
void analyse(std::span<Program* const> programs, const std::vector<Root>& roots, const ParameterTable& table);

/// A backward pass in two parts, not yet analysed. `input` computes the gradients that blocks pass on.
/// `weight` has the operations that only the gradients of weights need; it may run at any later time (Qi et
/// al., "Zero Bubble Pipeline Parallelism", 2024). Operations that read memory which `input` later overwrites
/// stay in `input`.
struct SplitProgram {
  Program input, weight;
};
/// Splits a backward pass that has not been analysed. After the pass, only the gradients of weights and the
/// roots `wanted` are used.
SplitProgram split(const Program& backward, const std::vector<Root>& roots, const std::set<int>& wanted);

/// The memory of a root in one replay of a program.
struct Bound {
  std::byte* data = nullptr;
  std::uint64_t version = 0;
  bool holds_terms = false;  ///< has terms of earlier micro-batches, to which operations add
};

/// The values that change from replay to replay.
struct Binding {
  std::vector<Bound> roots;
  std::int64_t first_sample = 0;  ///< of the micro-batch, within the global batch
  const StepScalars* scalars = nullptr;
};

/// Binds the first sample and the scalars of an operation, if it has them.
void bind_scalars(auto& op, const Binding& binding) {
  const auto bind_dropout = [&](Dropout& dropout) {
    dropout.first_sample += binding.first_sample;
    dropout.scalars = binding.scalars;
  };
  if constexpr (requires { op.dropout; }) bind_dropout(op.dropout);
  if constexpr (requires { op.forward.dropout; }) bind_dropout(op.forward.dropout);
  if constexpr (requires { requires std::is_same_v<decltype(op.scalars), const StepScalars*>; }) {
    if (op.scalars != nullptr) op.scalars = binding.scalars;
  }
}

/// Calls visit(operation) with the operation of an entry, its tensors and scalars bound.
void with_bound(const Entry& entry, const Binding& binding, const auto& visit) {
  std::visit(
      [&]<class Op>(const Op& recorded) {
        Op op = recorded;
        Op::operands(op, [&](const char* /*name*/, TensorRef& tensor, Access /*access*/, auto&... adds) {
          if (!tensor) return;
          const Place place = place_of(tensor);
          const Bound& root = binding.roots[static_cast<std::size_t>(place.root)];
          tensor.data = root.data + place.offset;
          tensor.version = root.version;
          ((adds = adds || root.holds_terms), ...);
        });
        bind_scalars(op, binding);
        visit(op);
      },
      entry.operation);
}

}  // namespace mylos
