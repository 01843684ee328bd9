// SPDX-License-Identifier: BSD-3-Clause
// RunConfig: a checked deck as plain structs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/param_spec.hpp"
#include "core/param_values.hpp"
#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/choices/choice_file.hpp"
#include "io/deck/deck.hpp"
#include "io/tokens/data_sources.hpp"
#include "parallel/collectives/simulated_link.hpp"
#include "parallel/engine/step_config.hpp"
#include "parallel/health/watchdog_limits.hpp"
#include "parallel/plan/machine.hpp"
#include "parallel/plan/partition.hpp"

namespace mylos {

/// When a run ends.
struct LimitsConfig {
  std::int64_t steps = 0;      ///< optimizer steps of the whole run
  std::int64_t stop_step = 0;  ///< the run ends after this step with a checkpoint; 0: after `steps`
  double wall_clock = 0.0;     ///< seconds from the launch; 0 is unlimited
  std::optional<std::int64_t> end_time = {};  ///< when the job will be ended, in Unix seconds
  double end_margin = 0.0;                    ///< seconds before `end_time` at which the run is to have ended

  /// Returns whether `end_time` comes before `wall_clock` for a run launched at `launch`, in Unix seconds.
  bool ends_with_job(double launch) const { return seconds(launch) < seconds_of_wall_clock(); }
  /// Returns the seconds from the launch that the run may take; infinite if there is no limit.
  double seconds(double launch) const {
    const double end = end_time ? static_cast<double>(*end_time) - end_margin - launch : INFINITY;
    return std::min(end, seconds_of_wall_clock());
  }
  double seconds_of_wall_clock() const { return wall_clock > 0.0 ? wall_clock : INFINITY; }

  std::int64_t last_step() const { return stop_step > 0 ? stop_step : steps; }
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> valid;  ///< empty if nothing is evaluated
  /// A name from `tokenizers`, or "none"; `generate` uses it to convert between text and tokens.
  std::string tokenizer;
  /// File or folder of the tokenizer's merge ranks; empty if the deck names none.
  std::string ranks;
};

struct EvalConfig {
  std::int64_t every = 0;  ///< steps; 0 evaluates only at the end
  /// The maximum number of global batches that an evaluation reads; 0 reads all of the validation data.
  std::int64_t batches = 0;
  std::string choices{};  ///< file of multiple choice questions; empty for none
  ChoiceStyle choices_style = ChoiceStyle::llmc;
  std::optional<std::int64_t> choices_limit{};
};

enum class GuardPolicy : std::uint8_t { skip, stop };

struct GuardSettings {
  GuardPolicy policy = GuardPolicy::skip;
  std::int64_t max_skips = 10;  ///< this value of GuardState::skipped_in_row ends the run with exit code 17
  /// Steps between comparisons of the hashes of weights and optimizer states across replicas; 0 compares
  /// them only for checkpoints.
  std::int64_t replica_check_every = 0;
};

struct CheckpointConfig {
  std::int64_t every = 0;  ///< steps; 0 writes one only at the end
  bool async = false;      ///< checkpoints are written while training continues
  std::string directory;   ///< of the checkpoints; empty: within the run's directory
  CheckpointSettings settings;
};

struct BackendConfig {
  std::string compute;  ///< "auto" or a name
  std::string comm;
  std::int64_t threads = 0;        ///< host threads per rank; 0: see `choose_threads`
  std::string threads_limit = {};  ///< what limits the default number of threads, if not the processors
};

struct CommConfig {
  std::string algorithm = "native";  ///< "auto", or a text for AlgorithmChoice::parse
  bool progress_thread = false;
  std::optional<LinkModel> simulated_link;
  WatchdogLimits limits;  ///< including the timeout of [io]
};

/// What the partitioner knows of the machine.
struct MachineConfig {
  double memory_gb = 0.0;  ///< the most that a rank may need, in 1e9 bytes; 0: no limit
  /// Gbit/s between two ranks of a node, and between two nodes; 0: not known.
  double node_gbps = 0.0;
  double link_gbps = 0.0;
};

/// The unit of ParallelLayout::times.
enum class TimeUnit : std::uint8_t {
  flops,    ///< of recorded operations
  seconds,  ///< of a profile
  given,    ///< that of --pass-times, whatever it is
};

/// A step's configuration and what a run adds to it.
struct RunConfig : StepConfig {
  LimitsConfig limits;
  DataConfig data;
  EvalConfig eval;
  GuardSettings guard_settings;
  CheckpointConfig checkpoint;
  BackendConfig backend;
  CommConfig comm;
  bool has_tensorboard = false;   ///< whether metrics are also written as TensorBoard's events
  std::int64_t profile_step = 0;  ///< the step that is traced; 0 for none
  TimeUnit time_unit = TimeUnit::flops;
  double peak_tflops = 0.0;  ///< of one rank; 0 measures the GEMM rate
  MachineConfig machine;
  std::shared_ptr<const Machine>
      machine_file;          ///< of [machine] file, with what the deck says itself; or null
  std::string unit_profile;  ///< file with the measured costs of units; empty: FLOPs count
  /// Whether the costs of units are seconds.
  bool has_seconds() const { return !unit_profile.empty() || machine_file != nullptr; }
  /// What the stages of an asynchronous pipeline can be chosen from; nothing for other schedules.
  std::optional<PartitionProblem> partition;
  std::string init;  ///< model whose weights the run begins with; empty for random weights
  std::string run_dir;
  std::string folder;               ///< where relative paths of the resolved deck begin
  std::int64_t ranks_per_node = 0;  ///< as in JobSize
};

/// Returns every parameter that mylos itself declares, in the order of the deck reference.
std::span<const ParamSpec> deck_params();

/// The ranks of a job and their distribution over its nodes.
struct JobSize {
  std::int64_t ranks = 1;
  /// Every node has this many ranks with consecutive numbers; 0 if the job is not laid out in this way.
  std::int64_t ranks_per_node = ranks;
  /// As in MachineConfig, measured; 0: not known.
  double node_gbps = 0.0;
  double link_gbps = 0.0;
};

/// Checks `deck` against `specs` (mylos' own and the plugins') for `job` and returns its configuration. Adds
/// all problems to `errors`, each with its place; the result is meaningful only if there are none. `values`
/// receives every parameter (for plugins and for the resolved deck), including the values that the deck
/// leaves open: the preset's shape, train.seq_len, train.micro_batch, train.grad_dtype, train.loss_scale,
/// parallel.data and parallel.shard, and, with parallel.replicas = auto, what the partitioner chooses. Paths
/// are expanded (`expand_path`) in the result, but not in `values`. `unavailable` is as in `resolve_deck`.
/// `initial` is the shape of the model that [model] init names: it gives the shape that the deck leaves open,
/// and must agree with the rest, except that `context` may be smaller.
RunConfig make_run_config(const Deck& deck, std::span<const ParamSpec> specs, const JobSize& job,
                          DeckErrors& errors, ParamValues& values,
                          const std::vector<std::pair<std::string, std::string>>& unavailable = {},
                          const std::optional<ModelConfig>& initial = {});

/// Returns the model that checked values describe.
ModelConfig model_config(const ParamValues& values);

/// Returns what settings of `config` do not do in a run of this length, and what happens instead: "[eval]
/// every = 100 is more than ...".
std::vector<std::string> idle_settings(const RunConfig& config);

/// Adds to `errors` every token file of `config` that does not exist, is not a regular file or cannot be
/// read, and of each source the first pattern that matches no file. Separate from `make_run_config`, so that
/// a dry run needs no data.
void check_token_files(const Deck& deck, const RunConfig& config, DeckErrors& errors);

}  // namespace mylos
