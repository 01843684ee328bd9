// SPDX-License-Identifier: BSD-3-Clause
// Setup: a checked configuration from a deck's text and the command line. Also ends a job on an error.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
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

  /// Replaces `auto`, and 0 threads, by the backends and threads that are used, in `config` and `values`.
  void choose(int world_size, int ranks_sharing_cores);
  std::string resolved_deck() const { return write_deck(specs, values); }
};

using DeckOverrides = std::vector<std::pair<std::string, std::string>>;

/// Where a deck comes from. A checkpoint's deck may name parameters of plugins that are not available here:
/// these parameters are left out.
enum class DeckOrigin : std::uint8_t { user, checkpoint };

/// The text of a deck. Throws ExitCode::usage if there is no such file.
std::string read_deck(const std::string& file);

/// mylos' own parameters and those of the plugins that were found.
std::vector<ParamSpec> all_params(const PluginRegistry& plugins);

/// Throws ExitCode::usage, or ExitCode::bad_data for a checkpoint's deck, with every problem of the deck.
Setup make_setup(const std::string& deck_text, const std::string& deck_name, const DeckOverrides& overrides,
                 const std::string& plugin_path, const JobSize& job, DeckOrigin origin = DeckOrigin::user);

/// The setup for commands that need no launcher. The number of ranks is `--ranks`, otherwise that of the
/// deck's layout, or one if the deck leaves it open. All ranks are on one node unless `--ranks-per-node` is
/// given.
Setup planned_setup(const CommandLine& line, const std::string& deck_name);

/// Plans the run of `setup`: its memory, traffic and work per step.
RunPlan plan_of(const Setup& setup);

/// Runs `work` on every rank. An error of any rank is printed once, and all ranks return its code; without an
/// error they return 0. For the work before the first collective of the backends.
int run_agreed(const MpiRuntime& mpi, const std::function<void()>& work);

/// How long the ranks may take to start: [comm] start_timeout of the command line, otherwise of the deck if
/// this rank can read it, otherwise the default. The ranks cannot communicate yet.
std::chrono::milliseconds start_timeout(const CommandLine& line, const std::string& deck_name);

/// If the ranks of this job cannot use the chosen communication backend together, warns and chooses MPI
/// instead. If the deck names that backend, returns an exit code other than 0. Call it after
/// `Setup::choose`. Collective.
int fall_back_to_mpi(const MpiRuntime& mpi, Setup& setup);

/// The tokenizer that made a run's data, according to the sidecars of its token files, or to the deck if
/// there are none; without a name if it is unknown. Throws ExitCode::usage if two of these disagree, and
/// names both.
TokenizerIdentity tokenizer_of(const DataConfig& config, const TokenDataset& train,
                               const std::optional<TokenDataset>& valid);

/// The settings that must be the same on all ranks, as lines `key = value`.
std::string identity_of(const Setup& setup, const CommandLine& line);

/// Returns 0 on all ranks if `identity` is the same everywhere. Otherwise prints the first line that differs
/// from rank 0's and returns ExitCode::usage on all ranks. Collective.
int check_identity(const MpiRuntime& mpi, const std::string& identity);

/// Calls `record`, which may write status.json, then ends the job on all ranks with `error`'s code and a
/// message. Higher ranks wait a little, so that the lowest failing rank reports.
[[noreturn]] void end_job(const MpiRuntime& mpi, const std::exception& error,
                          const std::function<void(ExitCode, const std::string&)>& record);

}  // namespace mylos
