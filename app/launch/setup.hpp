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

#include "app/deck/command_line.hpp"
#include "app/deck/run_config.hpp"
#include "app/launch/mpi_runtime.hpp"
#include "core/plugin.hpp"
#include "io/deck/deck.hpp"
#include "io/tokens/token_dataset.hpp"

namespace mylos {

/// A checked deck and the plugins that it was checked against.
struct Setup {
  PluginRegistry plugins;
  std::vector<ParamSpec> specs;  ///< mylos' own and the plugins'
  Deck deck;
  ParamValues values;
  RunConfig config;

  /// Sets `config.model.logits_bytes`: the head's slices are as large as the compute backend likes them.
  void take_logits_bytes();
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

/// Returns mylos' own parameters and those of the plugins that could be loaded.
std::vector<ParamSpec> all_params(const PluginRegistry& plugins);

/// Returns the shape of the model at `path`, which `deck` names as [model] init.
using ShapeOfModel = std::function<ModelConfig(const Deck& deck, const std::string& path)>;

/// Parses and checks a deck. If it has [model] init, calls `shape_of` for its shape. Throws an error that
/// lists every problem: ExitCode::usage, or ExitCode::bad_data for a checkpoint's deck; and what `shape_of`
/// throws.
Setup make_setup(const std::string& deck_text, const std::string& deck_name, const DeckOverrides& overrides,
                 const std::string& plugin_path, const JobSize& job, const ShapeOfModel& shape_of,
                 DeckOrigin origin = DeckOrigin::user);

/// Has relative patterns of `sources` begin at `folder`, where a run was started, if they match files there
/// and `here_first` is false or they match none from the current folder. Returns whether any of them does.
bool start_from(const std::string& folder, bool here_first, std::vector<DataSource>& sources);

/// Returns how long the ranks may take to start: [comm] start_timeout from the command line, otherwise from
/// the deck if that is a file that this rank can read (a pipe can be read only once); the default if there is
/// no valid value. The ranks cannot communicate yet.
std::chrono::milliseconds start_timeout(const CommandLine& line, const std::string& deck_name);

/// Returns the tokenizer that produced a run's data, according to the sidecars of its token files, or to the
/// deck if there are no sidecars; the result has no name if the tokenizer is unknown. Throws ExitCode::usage,
/// naming both sources, if two sources disagree.
TokenizerIdentity tokenizer_of(const DataConfig& config, const TokenDataset& train,
                               const std::optional<TokenDataset>& valid);

/// Returns the settings that must be the same on all ranks, as lines `key = value`.
std::string identity_of(const Setup& setup, const CommandLine& line);

}  // namespace mylos
