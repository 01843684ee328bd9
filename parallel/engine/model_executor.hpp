// SPDX-License-Identifier: BSD-3-Clause
// ModelExecutor: runs micro-batches through the blocks, with weights from the exchange and activations in the
// arena.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "core/memory/device_graph.hpp"
#include "core/memory/upload_buffer.hpp"
#include "core/model/model_programs.hpp"
#include "parallel/engine/activation_plan.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/process_grid.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// What an action of a micro-batch works with.
struct ActionScope {
  /// Of the micro-batch, within the global batch.
  std::int64_t first_sample = 0;
  /// Device memory, of the step.
  const StepScalars* scalars = nullptr;
  /// (1) fp32, device memory, of the step: receives the sum of losses.
  TensorRef loss_sum;
  /// What lies between two communications is queued as a whole, if that was asked for.
  bool as_graphs = false;
};

class ModelExecutor {
 public:
  /// `graphs`: records the actions for `ActionScope::as_graphs`. All references outlive the object.
  ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                GradientExchange& exchange, const Schedule& schedule, ModelPrograms programs,
                const ModelConfig& model, const BatchShape& shape, bool graphs = false);

  ModelExecutor(const ModelExecutor&) = delete;
  ModelExecutor& operator=(const ModelExecutor&) = delete;

  const BatchShape& shape() const { return shape_; }
  /// Floating-point operations that this rank's programs execute in a step, recomputation included.
  double flops_per_step() const;

  /// Before the actions of a step.
  void begin_step() { exchange_.begin(UnitSequence::step); }
  /// Gives an action of a micro-batch its slot; waits for messages unless it is one. True if it is the first
  /// of its micro-batch: then `load` comes before `run`.
  bool begin(const Occurrence& occurrence);
  /// Brings a micro-batch into its slot: B rows of T + 1 tokens, of which the last T are the targets; a
  /// negative token is a target that does not count (0 as input). The device may take them later.
  void load(std::span<const std::int32_t> tokens);
  /// The same for evaluation and generation.
  void load_evaluation(std::span<const std::int32_t> tokens);
  /// Queues the action that was begun. Messages are only posted.
  void run(const Occurrence& occurrence, const ActionScope& scope);
  /// Waits for the messages that were posted.
  void finish_messages();
  bool has_messages() const { return !messages_.empty(); }

  /// Forward without gradients of what was loaded while no step is under way. Losses and hits are then on the
  /// host for `evaluation_losses()` and `evaluation_correct()`, one per row, until the next call.
  void evaluate();
  std::span<const float> evaluation_losses() const { return host_losses_; }
  std::span<const std::int32_t> evaluation_correct() const { return host_correct_; }

  /// The same, then the logits of row `row` (b * T + t) as fp32, vocabulary only.
  std::vector<float> logits(std::int64_t row);

 private:
  using Entries = std::span<const Entry>;

  /// A pass through a program: what its entries have in common.
  struct Pass {
    bool holds_terms = false;  ///< gradients have contributions of earlier micro-batches
    bool completes = false;    ///< its own are the last before their reduction
    Binding& binding;
    Entries entries;  ///< all of the program's
  };

  void run_pass(const Occurrence& occurrence, bool holds_terms, bool as_graphs);
  std::vector<DeviceGraph>& graphs_of(const Occurrence& occurrence);
  Request send_or_receive(const Action& action);
  void run_entries(const Pass& pass);
  /// Waits for the collectives that an entry needs, or for all.
  void await(const Entry& entry, const Pass& pass);
  void await_all();
  /// The units of an entry are there, and bound.
  void acquire(const Entry& entry, const Pass& pass);
  void queue(const Entry& entry, const Pass& pass);
  /// Gradients that are complete, and units that nothing of the block uses any more.
  void finish(const Entry& entry, const Pass& pass);
  /// Whether the entry itself, or what follows it, communicates.
  bool is_cut(const Entry& entry, bool completes) const;
  /// Calls visit(number, entries) for what lies between two cuts, each with the entry that ends it.
  template <class Visit>
  void for_each_segment(Entries entries, bool completes, const Visit& visit) const;
  /// Whether an earlier micro-batch of the step has contributed what the pass contributes.
  bool has_contributed(const Occurrence& occurrence);
  /// Memory of the activation of this name.
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
  std::size_t slot_ = 0;                   // of what was begun last
  std::vector<bool> completes_;            // by action: see Pass
  std::vector<std::int64_t> contributed_;  // by chunk and part: the last step that it contributed to
  // By action, slot and place of the step's scalars, for each segment; empty without graphs.
  std::vector<std::vector<DeviceGraph>> graphs_;
  std::vector<Request> messages_;                // posted
  std::map<const Entry*, Request> collectives_;  // of programs, under way
  std::array<UploadBuffer, 2> uploads_;          // inputs and targets of a micro-batch, in turn
  std::size_t next_upload_ = 0;
  std::vector<float> host_losses_;
  std::vector<std::int32_t> host_correct_;
};

}  // namespace mylos
