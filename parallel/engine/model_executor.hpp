// SPDX-License-Identifier: BSD-3-Clause
// ModelExecutor: the memory of a RankProgram, and the execution of its passes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "core/memory/device_graph.hpp"
#include "core/memory/transfer_buffer.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// Follows what an action does, except within graphs.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  /// An entry of the pass's program is queued next.
  virtual void at_entry(const Entry& entry) = 0;
  /// The rank waits for a call of a group of several ranks; `group` is as the program names it.
  virtual void begin_wait(AxisSet group, bool is_message) = 0;
  virtual void end_wait() = 0;
};

/// The inputs and options of an action.
struct ActionScope {
  /// First sample of the micro-batch, within the global batch.
  std::int64_t first_sample = 0;
  /// The step's scalars, and a GuardInput, in device memory.
  StepScalars* scalars = nullptr;
  void* guard_input = nullptr;
  /// The version of the weights that a pass reads or the update makes (VersionRule).
  std::int64_t version = 0;
  /// Of a message: whether it is the first, and the last, of those that are posted together.
  bool begins_messages = true;
  bool ends_messages = true;
  /// Whether to queue the operations between two communications as a graph, if the executor was made with
  /// graphs.
  bool as_graphs = false;
  ActionObserver* observer = nullptr;
};

/// Whether work is queued as graphs. Throws ExitCode::usage if the configuration wants that and the backend
/// cannot.
bool has_graphs(const StepConfig& config, const ComputeBackend& backend);

/// The new tokens of the texts that a pass over the cache continues.
struct CachedInput {
  std::span<const std::int32_t> tokens;     ///< (texts, tokens)
  std::span<const std::int32_t> rows;       ///< (texts) of the cache, each at most once except `padding_row`
  std::span<const std::int32_t> positions;  ///< (texts) of the first new token; the last is within the cache
  std::span<const std::int32_t> targets{};  ///< (texts, tokens) of a pass with losses; negative: none
};

class ModelExecutor {
 public:
  /// Allocates and clears the memory of `program`. With `graphs`, actions can be queued as graphs. All
  /// arguments must outlive the object. Collective.
  ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                const RankProgram& program, bool graphs = false);
  /// Waits for the calls in flight, except while an exception propagates: the job is about to end, and other
  /// ranks may never join.
  ~ModelExecutor();

  ModelExecutor(const ModelExecutor&) = delete;
  ModelExecutor& operator=(const ModelExecutor&) = delete;

  BatchShape shape() const { return program_.config().train.shape(); }
  /// Returns the memory of a recorded tensor of a storage that persists; of weights, the version that the
  /// update has written last.
  TensorRef bound(TensorRef recorded) const;
  /// The same of gradients, of which there may be two sets: those of the action that ran last.
  TensorRef bound_gradient(TensorRef recorded) const {
    if (recorded) recorded.data = bindings_[slot_].at(recorded.data);
    return recorded;
  }
  /// Returns the memory of a storage that persists.
  void* memory_of(int storage) const { return bindings_.front().at(address_of(storage)); }

  /// Gives an action of a micro-batch its slot. Returns true if it is the first action of its micro-batch:
  /// then call `load` before `run`.
  bool begin(const Occurrence& occurrence);
  /// Whether the rank's chunks need the tokens or targets of micro-batches.
  bool needs_tokens() const { return memory("tokens") != nullptr || memory("targets") != nullptr; }
  /// Loads a micro-batch into its slot: B rows of T + 1 tokens, of which the first T are inputs and the last
  /// T are targets. A negative token is ignored as a target and read as 0 as an input. `tokens` may change
  /// after this call returns, although the device may still be copying.
  void load(std::span<const std::int32_t> tokens);
  /// The same for micro-batch `number` of the next evaluation.
  void load_evaluation(std::span<const std::int32_t> tokens, int number = 0);
  /// The same with inputs and targets (B, T) apart.
  void load_evaluation(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets,
                       int number = 0);
  /// Queues an action; one of a micro-batch must have begun.
  void run(const Occurrence& occurrence, const ActionScope& scope);

  /// Brings weights that were set from outside to the ranks that use them; does not wait until they arrive.
  /// Collective.
  void publish();
  /// Waits for all calls in flight. Call it before this rank accesses weights from outside, or stops
  /// communicating for long.
  void settle();
  /// The weights that are set from outside next are version `version`.
  void set_version(std::int64_t version);
  /// The memory of a recorded part of a unit's weights in one of the versions that are kept.
  TensorRef bound(TensorRef recorded, std::int64_t version) const;
  /// Identifies the content of a unit's weights; 0 if they keep no place.
  std::uint64_t version(int unit) const;

  /// The number of micro-batches that an evaluation takes: all must be loaded.
  int evaluated_micro_batches() const { return program_.evaluation().micro_batches; }
  /// Runs the forward passes of the loaded samples without gradients; no step may be under way. The ranks of
  /// a pipeline need not be called at the same time. On the stage with the last chunk, until the next call,
  /// `evaluation_losses(number)` and `evaluation_correct(number)` hold the losses and hits by row. Row b * T
  /// + t is position t of sample b.
  void evaluate();
  std::span<const float> evaluation_losses(int number = 0) const { return of_batch(host_losses_, number); }
  std::span<const std::int32_t> evaluation_correct(int number = 0) const {
    return of_batch(host_correct_, number);
  }

  /// Runs a pass over the cache, by its number in CacheConfig::passes; no step may be under way. The keys and
  /// values of earlier positions must be in the cache. The results are valid until the next call.
  void continue_texts(std::size_t pass, const CachedInput& input);
  /// The row of the cache for texts that only fill up a pass; at position 0 they read nothing else.
  std::int32_t padding_row() const { return static_cast<std::int32_t>(program_.config().cache.rows); }
  /// Copies the results of the last pass over the cache to the host, on the stage with the last chunk:
  /// (texts, vocabulary) as fp32; or the losses and hits of all new tokens.
  std::span<const float> cached_logits();
  std::pair<std::span<const float>, std::span<const std::int32_t>> cached_losses();

 private:
  /// A call under way.
  struct InFlight {
    Communicator* communicator = nullptr;
    Request request;
    AxisSet group{};
    bool is_message = false;
  };
  template <class T>
  std::span<const T> of_batch(const std::vector<T>& values, int number) const {
    const auto rows = static_cast<std::size_t>(shape().rows());
    return std::span(values).subspan(static_cast<std::size_t>(number) * rows, rows);
  }
  void allocate(MemoryLedger& ledger);
  void bind_all();
  /// Makes the current slot's passes through the chunk of an update read a version of the weights, or the
  /// update make it from the one before.
  void bind_weights(int update, std::int64_t version);
  /// Makes the current slot's passes add to the gradients of a step.
  void bind_gradients(std::int64_t step);
  /// The content of the newest version of a unit's weights has changed, or another version is the newest.
  void renew_version(int unit);
  void renew_versions();
  static constexpr std::size_t place_of_version(const std::vector<Bound>& versions, std::int64_t version) {
    return static_cast<std::size_t>(version) % versions.size();
  }
  void run_pass(std::string_view name, const Pass& pass);
  /// Runs a list; calls after(action) after each action, with its slot set.
  template <class Visit>
  void run_list(std::string_view name, const ForwardList& list, const Visit& after);
  void run_as_graphs(std::string_view name, std::span<const Pass> passes, std::vector<DeviceGraph>& graphs);
  /// The memory of an entry's operands.
  const Binding& binding_of(const EntryPlace& place) const {
    return bindings_[place.slot < 0 ? slot_ : static_cast<std::size_t>(place.slot)];
  }
  /// Runs the pass of a message, which may begin and end those that are posted together.
  void run_message(const Action& action, const Pass& pass, bool begins, bool ends);
  /// Queues an entry; `name` and `number` are those of the pass and of the entry within it.
  void queue(std::string_view name, std::size_t number, const Entry& entry, const Binding& binding);
  void await(const Await& op);
  /// Notes that `calls` more calls of a communicator are in flight.
  void count(Communicator& communicator, int calls);
  /// Advances the calls in flight.
  void progress();
  /// The memory (2, B, T) int32 of the next inputs and targets, and their upload into the current slot.
  std::span<std::int32_t> next_inputs();
  void upload_inputs();
  /// Memory of the activation `name` in the current slot; null if the rank has none.
  std::byte* memory(std::string_view name) const;

  ComputeBackend& backend_;
  const ProcessGrid& grid_;
  const RankProgram& program_;
  const bool graphs_;
  SlotAssignment slots_{program_.schedule()};
  std::map<int, DeviceBuffer> kept_;  // by storage
  std::map<ArenaKey, DeviceBuffer> arenas_;
  std::vector<Binding> bindings_;            // by slot
  std::vector<std::vector<Bound>> weights_;  // by unit and place of a version
  std::vector<std::int64_t> newest_;         // versions, by unit
  ActionObserver* observer_ = nullptr;       // of the action that runs
  std::size_t slot_ = 0;                     // of the action begun last; 0 after `load_evaluation`
  // By action, slot, and place of the step's scalars with set of gradients and version of weights: one graph
  // per segment.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::vector<DeviceGraph>> recorded_;
  std::map<const void*, InFlight> in_flight_;                 // by output
  std::vector<std::pair<Communicator*, int>> communicators_;  // numbers of calls in flight
  std::vector<const Entry*> segment_;                         // of a pass that is queued as graphs
  std::array<TransferBuffer, 2> uploads_;  // inputs and targets of micro-batches, used alternately
  std::size_t next_upload_ = 0;
  std::vector<float> host_losses_;
  std::vector<std::int32_t> host_correct_;
  TransferBuffer cached_upload_;  // of a pass over the cache
  std::size_t cached_pass_ = 0;   // the last one
  // By pass; of the first run, in which libraries allocate, there are none.
  std::vector<std::optional<std::vector<DeviceGraph>>> cached_graphs_;
  std::vector<std::byte> raw_logits_;
  std::vector<float> host_logits_;
};

}  // namespace mylos
