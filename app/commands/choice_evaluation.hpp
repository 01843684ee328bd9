// SPDX-License-Identifier: BSD-3-Clause
// `mylos eval --choices`: answers multiple choice questions.
#pragma once

#include <memory>
#include <vector>

#include "app/deck/command_line.hpp"
#include "app/inference/inference.hpp"
#include "app/train/choice_evaluator.hpp"

namespace mylos {

/// The options of `mylos eval` that belong to --choices, which is one of them.
std::vector<CommandOption> choice_options();

/// Throws ExitCode::usage if options of --choices are given without it, or those of --data with it.
void check_choice_options(const CommandLine& line);

/// From the command line to the output; an InferenceWork.
class ChoiceEvaluation {
 public:
  explicit ChoiceEvaluation(const CommandLine& line) : line_(line) {}

  /// Reads the questions and plans the cache.
  void prepare(const Launch& launch, Inference& model);
  int run(const Launch& launch, Inference& model);

 private:
  const CommandLine& line_;
  ChoiceQuestions questions_;
};

}  // namespace mylos
