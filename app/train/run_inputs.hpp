// SPDX-License-Identifier: BSD-3-Clause
// RunInputs: what a run reads before it begins.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/deck/command_line.hpp"
#include "app/launch/launch.hpp"
#include "app/launch/run_directory.hpp"
#include "app/launch/setup.hpp"
#include "app/launch/stop_signals.hpp"
#include "app/train/choice_evaluator.hpp"
#include "app/train/fault.hpp"
#include "app/train/opened_model.hpp"
#include "io/io_thread.hpp"
#include "io/tokens/token_dataset.hpp"

namespace mylos {

/// The deck, the data, and the model with whose weights the run begins.
struct RunInputs {
  std::string deck_name;
  std::optional<std::string> restart;  ///< the value of --restart
  Setup setup;
  Fault fault;
  std::optional<TokenDataset> train_data, valid_data;
  TokenizerIdentity tokenizer;             ///< of the data; without a name if unknown
  std::optional<ChoiceQuestions> choices;  ///< of [eval] choices
  double data_seconds = 0.0;               ///< time taken to open the data
  std::unique_ptr<OpenedModel> initial;    ///< of [model] init, for a run without a checkpoint

  RunPaths paths() const { return {setup.config.run_dir, setup.config.folder}; }
};

/// Returns the value of --restart, if given: "newest", "N" or "step_N". Throws ExitCode::usage for another
/// value.
std::optional<std::string> parse_restart(const CommandLine& line);

/// A time to end that has passed is an error if the user has named it. Slurm's is ignored, with a note: the
/// job's limit was extended.
void note_past_end(Setup& setup, std::vector<std::string>& notes);

/// Lines about data that a run can read but that hardly is what its user means: the warnings of both
/// datasets, and files that occur more than once.
std::vector<std::string> data_warnings(const TokenDataset& train, const std::optional<TokenDataset>& valid);

/// Reads all but the initial model, the same on all ranks. Collective; ends like Launch::agree.
RunInputs read_inputs(const Launch& launch, const CommandLine& line);

/// Opens the model that [model] init names, if the run has no checkpoint. Collective, likewise.
void open_initial(const Launch& launch, RunInputs& inputs, IoThread& io);

/// The run's directory, taken for this launch.
struct TakenDirectory {
  std::optional<RunDirectory> directory;  ///< on rank 0
  std::vector<std::string> removed;       ///< files of an earlier run, likewise
};

/// Takes the run's directory, which must be the same on all nodes. Collective, likewise.
TakenDirectory take_directory(const Launch& launch, const RunInputs& inputs, const StopSignals& signals);

}  // namespace mylos
