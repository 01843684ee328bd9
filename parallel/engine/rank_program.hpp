// SPDX-License-Identifier: BSD-3-Clause
// RankProgram: everything that one rank of a run executes and keeps, as data. It is made without a backend.
// The engine executes it, the planner adds it up, `mylos inspect --program` prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/model/model_programs.hpp"
#include "core/model/pass.hpp"
#include "core/optim/optimizer.hpp"
#include "parallel/engine/step_config.hpp"
#include "parallel/engine/storage_plan.hpp"
#include "parallel/exchange/exchange.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// What a rank does with the model.
enum class RankRole : std::uint8_t {
  training,   ///< steps, evaluation and passes over the cache
  inference,  ///< only the last two; without gradients and optimizer
};

/// A collective or message of a list, counted as by TrafficCounter and CollectiveCall.
struct ListedCall {
  AxisSet group;
  CommOperation operation = CommOperation::all_reduce;
  std::int64_t count = 0;  ///< elements of the smaller buffer
  DType dtype = DType::fp32;
  std::uint64_t payload_bytes = 0;
  std::uint64_t received_bytes = 0;  ///< of all_to_all_v
  int peer = 0;
};
/// The call that an entry starts, or nothing.
std::optional<ListedCall> listed_call(const Entry& entry);

/// What a rank does with some micro-batches that pass through the model forward, outside steps. Micro-batch i
/// has slot i. Nothing is under way afterwards.
struct ForwardList {
  std::vector<Action> actions;
  std::vector<Pass> passes;  ///< of the actions
  int micro_batches = 1;     ///< as many as keep all stages busy
};

/// The scalars and the guard's input of a step that is under way. The sums of RoutingStatistics follow in
/// memory.
struct StepMemory {
  StepScalars scalars;
  GuardInput guard_input;
};

class RankProgram {
 public:
  /// For the rank at `coordinates`. Throws ExitCode::internal, naming the entry by its source line, if an
  /// entry reads a value that nothing wrote or awaits a call that nothing started; ExitCode::usage if the
  /// schedule and the exchange do not fit each other.
  RankProgram(const StepConfig& config, const Coordinates& coordinates, RankRole role = RankRole::training);
  /// The same for training, with the rank's own of the layout's schedules, which take long to make for many
  /// micro-batches.
  RankProgram(const StepConfig& config, const Coordinates& coordinates, Schedule schedule)
      : RankProgram(config, coordinates, RankRole::training, std::move(schedule)) {}
  RankProgram(const RankProgram&) = delete;
  RankProgram& operator=(const RankProgram&) = delete;

  const StepConfig& config() const { return config_; }
  const Coordinates& coordinates() const { return coordinates_; }
  const ParameterTable& table() const { return table_; }
  const Schedule& schedule() const { return schedule_; }
  const ModelPrograms& programs() const { return programs_; }
  const Storages& storages() const { return programs_.storages; }
  const Holding& holding() const { return holding_; }
  /// Of training.
  const Optimizer& optimizer() const { return *optimizer_; }
  bool has_optimizer() const { return optimizer_.has_value(); }
  const StoragePlan& places() const { return *places_; }

  /// The entries that passes have in addition to their programs'.
  const std::vector<Entry>& pool() const { return pool_; }
  /// What an action of the schedule runs. Actions of micro-batches that run alike share a pass.
  const Pass& pass_of(std::size_t action) const { return passes_[excerpt_.actions.place(action)]; }
  /// Brings weights that were set from outside to the ranks that use them.
  const Pass& publication() const { return publication_; }
  const ForwardList& evaluation() const { return evaluation_; }
  /// By CacheConfig::passes.
  const std::vector<ForwardList>& cached() const { return cached_; }
  /// The units that the rank updates together, with one norm and one decision to skip: all; in an
  /// asynchronous pipeline those of each of its chunks. Its updates by number, and the number of a chunk's.
  const std::vector<int>& units_of_update(int update) const {
    return updates_[static_cast<std::size_t>(update)].units;
  }
  int num_updates() const { return static_cast<int>(updates_.size()); }
  int update_of(int chunk) const;
  /// The storages of the guard's states, one per update, and of StepMemory for each update of each step under
  /// way, used in rotation.
  int guard_state() const { return guard_state_; }
  int step_memory() const { return step_memory_; }
  /// The number of sums that follow each StepMemory, and the bytes of both.
  std::size_t num_statistics() const;
  std::size_t step_memory_bytes() const;
  /// The storages that hold the versions of a unit's weights; version t has number t modulo their number. A
  /// pass reads the version to which Storages::weights_storage is bound. If there are several, the update
  /// writes that version, and reads the one to which `previous_weights` is bound.
  const std::vector<int>& versions_of_weights(int unit) const {
    return versions_[static_cast<std::size_t>(unit)];
  }
  int previous_weights(int unit) const { return previous_[static_cast<std::size_t>(unit)]; }
  bool has_versions() const { return !previous_.empty(); }
  /// If the steps use two sets of gradients in turn: the storage that holds all gradients, and that of the
  /// second set; otherwise -1.
  int gradients() const { return gradients_; }
  int second_gradients() const { return second_gradients_; }
  /// The passages of training runs of every length up to the longest whose sequence of slots differs from
  /// that of shorter runs, with a few micro-batches for many; then, on slot 0, evaluation and the passes over
  /// the cache.
  std::vector<Passage> passages() const;
  /// Floating-point operations of the programs of a step, recomputation included.
  double flops_per_step() const;

  /// Calls visit(action, entry, times) for the entries of a step in order, each with the number of times that
  /// it runs in the step, because one micro-batch stands for many.
  void for_each_step_entry(const auto& visit) const {
    const Repetition& repeated = excerpt_.actions;
    excerpt_.schedule.for_each_action(1, false, 1, [&](const Occurrence& occurrence) {
      const bool is_repeated = occurrence.index >= repeated.begin && occurrence.index < repeated.end;
      for_each_entry(passes_[occurrence.index], pool_, [&](const Entry& entry, const EntryPlace&) {
        visit(excerpt_.schedule.actions[occurrence.index], entry,
              is_repeated ? repeated.times : std::size_t{1});
      });
    });
  }

 private:
  RankProgram(const StepConfig& config, const Coordinates& coordinates, RankRole role, Schedule schedule);
  void make_passes();
  /// Makes a list of forward passes through all chunks; `of(chunk)` gives a chunk's.
  template <class Of>
  ForwardList forward_list(const Of& of, int micro_batches);
  void divide_updates();
  void keep_versions(const Lowering& lowering);
  void keep_second_gradients();
  void record_reduction(const Lowering& lowering);
  void record_update(const Lowering& lowering, std::size_t number);
  void insert_awaits();
  void record_settling();

  const StepConfig& config_;
  Coordinates coordinates_;
  Schedule schedule_;
  ParameterTable table_;
  ModelPrograms programs_;
  ScheduleExcerpt excerpt_;
  std::deque<Program> messages_;  // one entry each
  std::vector<Entry> pool_;
  std::vector<Pass> passes_;  // by action of the excerpt
  struct Update {
    int chunk = 0;
    std::vector<int> units;
    Program program{};
  };

  Program reduce_, publish_;
  std::vector<Update> updates_;
  Program settle_;  // of steps that overlap: awaits what a slot's last micro-batch has sent
  Pass settling_;
  Pass publication_;
  ForwardList evaluation_;
  std::vector<ForwardList> cached_;
  Holding holding_;
  std::vector<std::vector<int>> versions_;  // storages, by unit and version
  std::vector<int> previous_;               // storages, by unit; empty if there is one version of all
  int gradients_ = -1;
  int second_gradients_ = -1;
  std::optional<Optimizer> optimizer_;
  int guard_state_ = -1;
  int step_memory_ = -1;
  std::optional<StoragePlan> places_;
};

}  // namespace mylos
