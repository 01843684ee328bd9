// SPDX-License-Identifier: BSD-3-Clause
// Setup: a checked configuration from a deck's text and the command line. Also how ranks agree on inputs and
// errors, and how an error ends the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/command_line.hpp"
#include "app/mpi_runtime.hpp"
#include "app/run_config.hpp"
#include "core/plugin.hpp"
#include "io/deck/deck.hpp"
#include "io/tokens/token_dataset.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

/// A checked deck and the plugins that it was checked against.
struct Setup {
  PluginRegistry plugins;
  std::vector<ParamSpec> specs;  ///< mylos' own and the plugins'
  Deck deck;
  ParamValues values;
  RunConfig config;

  /// Replaces, in `config` and `values`, `auto` by the backends in use and 0 by the number of threads in use,
  /// as `choose_backends` does, and sets `config.model.logits_bytes`.
  void choose(int world_size, std::span<const ThreadLimit> limits);
  std::string resolved_deck() const { return write_deck(specs, values); }
};

using DeckOverrides = std::vector<std::pair<std::string, std::string>>;

/// Where a deck comes from. A checkpoint's deck may name parameters of plugins that are not available here:
/// these parameters are left out. `checkpoint_changed`: with overrides of the user.
enum class DeckOrigin : std::uint8_t { user, checkpoint, checkpoint_changed };

/// Returns the text of a deck: a file, a pipe, or standard input ("-"). Throws ExitCode::usage, naming what
/// is there, if there is no such file, ExitCode::preempted if a signal comes while a pipe is silent
/// (`StopSignals`), or an error of `read_text_file`.
std::string read_deck(const std::string& file);

/// Returns all of standard input. Throws like `read_deck`.
std::string read_standard_input();

/// Writes what has been printed. Throws ExitCode::io if any of it cannot be written.
void flush_output();

/// Has rank 0 read a text, once, and gives it to all ranks. Returns 0, or an exit code like `run_agreed`.
/// Signals end a silent wait with ExitCode::preempted. Collective.
int share_text(const MpiRuntime& mpi, const std::function<std::string()>& read, std::string& text);

/// Returns mylos' own parameters and those of the plugins that could be loaded.
std::vector<ParamSpec> all_params(const PluginRegistry& plugins);

/// Returns the shape of the model at `path`, which `deck` names as [model] init.
using ShapeOfModel = std::function<ModelConfig(const Deck& deck, const std::string& path)>;

/// Parses and checks a deck. If it has [model] init, calls `shape_of` for its shape (by default
/// `look_at_model`). Throws an error that lists every problem: ExitCode::usage, or ExitCode::bad_data for a
/// checkpoint's deck; and what `shape_of` throws.
Setup make_setup(const std::string& deck_text, const std::string& deck_name, const DeckOverrides& overrides,
                 const std::string& plugin_path, const JobSize& job, DeckOrigin origin = DeckOrigin::user,
                 const ShapeOfModel& shape_of = {});

/// Makes the setup for commands that need no launcher. The number of ranks is `--ranks` or, by default, the
/// product of parallel.data, parallel.tensor and parallel.pipeline, in which a 0 counts as 1, or that of
/// parallel.tensor and the sum of parallel.replicas. All ranks are
/// on one node unless `--ranks-per-node` is given. `shape_of` is as in `make_setup`.
Setup planned_setup(const CommandLine& line, const std::string& deck_name, const ShapeOfModel& shape_of = {});

/// Plans the run of `setup` by stage: memory, traffic and work per step (`make_plans`).
std::vector<RunPlan> plans_of(const Setup& setup);
/// The plan of the rank that needs the most memory.
inline RunPlan plan_of(const Setup& setup) {
  return largest_of(plans_of(setup));
}

/// Runs `work` on every rank. An error on any rank is printed once, and all ranks return its code; without an
/// error they return 0. For work before the session's backends exist. Collective.
int run_agreed(const MpiRuntime& mpi, const std::function<void()>& work);

/// Has relative patterns of `sources` begin at `folder`, where a run was started, if they match files there
/// and `here_first` is false or they match none from the current folder. Returns whether any of them does.
bool start_from(const std::string& folder, bool here_first, std::vector<DataSource>& sources);

/// Returns how long the ranks may take to start: [comm] start_timeout from the command line, otherwise from
/// the deck if that is a file that this rank can read (a pipe can be read only once); the default if there is
/// no valid value. The ranks cannot communicate yet.
std::chrono::milliseconds start_timeout(const CommandLine& line, const std::string& deck_name);

/// If the ranks of this job cannot use the chosen communication backend together, warns and chooses MPI
/// instead; if the deck names that backend, reports an error and returns its exit code. Returns 0 otherwise.
/// Call it after `Setup::choose`. Collective.
int fall_back_to_mpi(const MpiRuntime& mpi, Setup& setup);

/// Returns the tokenizer that produced a run's data, according to the sidecars of its token files, or to the
/// deck if there are no sidecars; the result has no name if the tokenizer is unknown. Throws ExitCode::usage,
/// naming both sources, if two sources disagree.
TokenizerIdentity tokenizer_of(const DataConfig& config, const TokenDataset& train,
                               const std::optional<TokenDataset>& valid);

/// Returns the settings that must be the same on all ranks, as lines `key = value`.
std::string identity_of(const Setup& setup, const CommandLine& line);

/// Returns 0 on all ranks if `identity` is the same everywhere. Otherwise prints the first line that differs
/// from rank 0's and returns ExitCode::usage on all ranks. Collective.
int check_identity(const MpiRuntime& mpi, const std::string& identity);

/// Calls `record`, which may write status.json, and prints `error`'s message. Then ends the job on all ranks
/// with `error`'s code, or returns the code if there is one rank: MPICH's launcher may lose it in an abort.
/// Higher ranks wait a little, so that the lowest failing rank reports.
int end_job(const MpiRuntime& mpi, const std::exception& error,
            const std::function<void(ExitCode, const std::string&)>& record);

}  // namespace mylos
