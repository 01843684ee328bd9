// SPDX-License-Identifier: BSD-3-Clause
// ModelExecutor: runs micro-batches through the blocks, with weights from the exchange and activations in the
// arena.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "core/memory/device_graph.hpp"
#include "core/memory/transfer_buffer.hpp"
#include "core/model/model_programs.hpp"
#include "parallel/engine/activation_plan.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/process_grid.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// The inputs and options of an action of a micro-batch.
struct ActionScope {
  /// First sample of the micro-batch, within the global batch.
  std::int64_t first_sample = 0;
  /// The step's scalars in device memory.
  const StepScalars* scalars = nullptr;
  /// (1) fp32 in device memory: receives the sum of the step's losses.
  TensorRef loss_sum;
  /// Whether to queue the operations between two communications as a graph, if the executor was made with
  /// graphs.
  bool as_graphs = false;
};

class ModelExecutor {
 public:
  /// With `graphs`, prepares to record the actions for `ActionScope::as_graphs`. `backend`, `ledger`, `grid`
  /// and `exchange` must outlive the object; it keeps copies of the other arguments.
  ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                GradientExchange& exchange, const Schedule& schedule, ModelPrograms programs,
                const ModelConfig& model, const BatchShape& shape, bool graphs = false);

  ModelExecutor(const ModelExecutor&) = delete;
  ModelExecutor& operator=(const ModelExecutor&) = delete;

  const BatchShape& shape() const { return shape_; }
  /// Floating-point operations that this rank's programs execute in a step, recomputation included.
  double flops_per_step() const;

  /// Call before the actions of a step.
  void begin_step() { exchange_.begin(UnitSequence::step); }
  /// Gives an action of a micro-batch its slot; waits for the posted messages unless the action is itself a
  /// message. Returns true if it is the first action of its micro-batch: then call `load` before `run`.
  bool begin(const Occurrence& occurrence);
  /// Loads a micro-batch into its slot: B rows of T + 1 tokens, of which the first T are inputs and the last
  /// T are targets. A negative token is ignored as a target and read as 0 as an input. `tokens` may change
  /// after this call returns, although the device may still be copying.
  void load(std::span<const std::int32_t> tokens);
  /// The same for evaluation and generation.
  void load_evaluation(std::span<const std::int32_t> tokens);
  /// Queues the action that was begun. A message is only posted.
  void run(const Occurrence& occurrence, const ActionScope& scope);
  /// Waits for the posted messages.
  void finish_messages();
  bool has_messages() const { return !messages_.empty(); }

  /// Runs the forward pass of the loaded samples without gradients; no step may be under way. Until the next
  /// call, `evaluation_losses()` and `evaluation_correct()` hold the losses and hits by row. Row b * T + t is
  /// position t of sample b.
  void evaluate();
  std::span<const float> evaluation_losses() const { return host_losses_; }
  std::span<const std::int32_t> evaluation_correct() const { return host_correct_; }

  /// Runs a forward pass in the same way and returns the logits of row `row` as fp32, for the vocabulary
  /// without padding.
  std::vector<float> logits(std::int64_t row);

 private:
  using Entries = std::span<const Entry>;

  /// The properties that all entries of one pass through a program share.
  struct Pass {
    bool holds_terms = false;  ///< gradients already hold contributions of earlier micro-batches
    bool completes = false;    ///< its contributions are the last before the reduction
    Binding& binding;
    Entries entries;  ///< the entries to run
  };

  void run_pass(const Occurrence& occurrence, bool holds_terms, bool as_graphs);
  std::vector<DeviceGraph>& graphs_of(const Occurrence& occurrence);
  Request send_or_receive(const Action& action);
  /// A collective under way.
  struct InFlight {
    const void* output = nullptr;
    Request request;
  };

  void run_entries(const Pass& pass);
  /// Waits for the collective in flight that has these buffers.
  void await(const Await& op);
  /// Acquires and binds the units of an entry.
  void acquire(const Entry& entry, const Pass& pass);
  void queue(const Entry& entry, const Pass& pass);
  /// Reports the gradients that the entry completes, if the pass completes any, and releases the units that
  /// its block no longer uses.
  void finish(const Entry& entry, const Pass& pass);
  /// Whether a reduction starts after the entry.
  bool starts_reduction(const Entry& entry, bool completes) const;
  /// Calls visit(entries) for each segment: one entry that communicates, or entries that do not and of which
  /// none but the last starts a reduction.
  void for_each_segment(Entries entries, bool completes, const auto& visit) const;
  /// Whether an earlier micro-batch of the step has already contributed to the same gradients. Records this
  /// contribution.
  bool has_contributed(const Occurrence& occurrence);
  /// Memory of the activation `name`.
  std::byte* memory(std::string_view name) const;

  ComputeBackend& backend_;
  const ProcessGrid& grid_;
  GradientExchange& exchange_;
  const Schedule schedule_;
  ModelConfig model_;
  BatchShape shape_;
  ModelPrograms programs_;
  SlotAssignment slots_{schedule_};
  DeviceBuffer arena_;
  std::vector<Binding> bindings_;          // by slot
  std::size_t slot_ = 0;                   // of the action begun last; 0 after `load_evaluation`
  std::vector<bool> completes_;            // by action: see Pass
  std::vector<std::int64_t> contributed_;  // by chunk and part: the last step that contributed
  // By action, slot and place of the step's scalars: one graph per segment; empty without graphs.
  std::vector<std::vector<DeviceGraph>> graphs_;
  std::vector<Request> messages_;          // posted
  std::vector<InFlight> in_flight_;        // collectives of programs
  std::array<TransferBuffer, 2> uploads_;  // inputs and targets of micro-batches, used alternately
  std::size_t next_upload_ = 0;
  std::vector<float> host_losses_;
  std::vector<std::int32_t> host_correct_;
};

}  // namespace mylos
