// SPDX-License-Identifier: BSD-3-Clause
// Inference: a checkpoint of any layout, loaded for forward passes on this job's ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "app/command_line.hpp"
#include "app/mpi_runtime.hpp"
#include "app/session.hpp"
#include "app/setup.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/engine/rank_state.hpp"

namespace mylos {

/// A model without gradients or optimizer.
struct Inference {
  std::unique_ptr<IoThread> io;
  Setup setup;
  std::unique_ptr<Session> session;
  std::unique_ptr<CheckedProgram> program;
  std::unique_ptr<ModelExecutor> executor;
  std::unique_ptr<RankState> state;
  std::int64_t step = 0;  ///< of the checkpoint
};

/// Returns --step, for commands that call `with_inference`.
CommandOption step_option();

/// Opens the checkpoint that the command line names, either directly or by a run directory and optionally
/// --step. Prepares forward passes of `batch` sequences (0: the micro-batch of the checkpoint's run) and
/// calls `work`. With `needs_valid`, the run's validation data are looked for; otherwise it has none. Returns
/// the exit code of `work`, or that of an error on which all ranks agree before they create the backends. Any
/// later error ends the job (`end_job`).
int with_inference(const CommandLine& line, std::int64_t batch, bool needs_valid,
                   const std::function<int(const MpiRuntime&, Inference&)>& work);

}  // namespace mylos
