// SPDX-License-Identifier: BSD-3-Clause
// Inference: a model from a checkpoint of any layout or from files of other programs, loaded for forward
// passes on this job's ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "app/deck/command_line.hpp"
#include "app/launch/launch.hpp"
#include "app/launch/session.hpp"
#include "app/launch/setup.hpp"
#include "app/train/opened_model.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/engine/rank_state.hpp"

namespace mylos {

/// A model without gradients or optimizer.
struct Inference {
  std::unique_ptr<IoThread> io;
  std::unique_ptr<OpenedModel> source;
  Setup setup;
  std::unique_ptr<Session> session;
  std::unique_ptr<CheckedProgram> program;
  std::unique_ptr<ModelExecutor> executor;
  std::unique_ptr<RankState> state;

  /// "step 6", or the kind of model without steps.
  std::string name() const {
    return source->is_checkpoint() ? fmt::format("step {}", source->origin().step) : source->origin().kind;
  }
};

/// What a command does with a model.
struct InferenceWork {
  std::int64_t batch = 0;    ///< sequences of an evaluation; 0: the micro-batch of the model's run
  bool needs_valid = false;  ///< looks for the run's validation data; otherwise it has none
  /// Called on all ranks before memory is planned; may set `setup.config.cache`.
  std::function<void(const Launch&, Inference&)> prepare = [](const Launch&, Inference&) {};
  /// Called once the weights are there. Returns the exit code.
  std::function<int(const Launch&, Inference&)> run;
};

/// The argument of commands that call `with_inference`, and the options --step, --dtype and --ranks, which
/// all of them have.
inline constexpr const char* model_argument = "RUN|CHECKPOINT|FOLDER|FILE";
std::vector<CommandOption> inference_options();

/// The file that an option names for output, links followed. Throws ExitCode::usage if the name is empty, or
/// that of one of `inputs` or of another file that mylos keeps; ExitCode::io if it cannot be written.
std::filesystem::path output_file(const CommandLine& line, const std::string& option,
                                  std::span<const std::filesystem::path> inputs);

/// The file that an option names for input. Throws ExitCode::usage if the name is empty or nothing is there.
std::string input_file(const CommandLine& line, const std::string& option);

/// Opens the model that the command line names and prepares forward passes of it. Returns the exit code of
/// `work`, or that of an error on which all ranks agree before they create the backends. Any later error ends
/// the job (`end_job`).
int with_inference(const CommandLine& line, const InferenceWork& work);

/// Returns the lines of all data ranks on rank 0, in the order of what they are of: line i is of data rank i
/// mod D; the ranks along the tensor axis have copies, and those without the model's last chunk none. Empty
/// on the other ranks. Collective.
std::vector<std::string> gather_lines(Inference& model, const std::string& own);

}  // namespace mylos
