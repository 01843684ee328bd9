// SPDX-License-Identifier: BSD-3-Clause
// RunPlan: the memory, traffic and FLOPs of a run, computed in advance.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/plugin.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/engine/step_config.hpp"
#include "parallel/health/traffic.hpp"

namespace mylos {

struct RunPlan {
  int rank = 0;                                              ///< whose memory and traffic are planned
  std::int64_t parameters = 0;                               ///< N, without padding
  std::array<std::int64_t, num_memory_categories> memory{};  ///< bytes of one rank, by category
  std::int64_t checkpoint_bytes = 0;
  std::int64_t tokens_per_step = 0;
  double flops_per_token = 0.0;     ///< 6 N + 12 L C T
  std::vector<TrafficRow> traffic;  ///< of the rank in TrainingStep::run, counted as by TrafficCounter

  std::int64_t memory_total() const;
};

/// 6 N + 12 L C T, where N, L, C and T are the numbers of parameters that a token uses, layers, channels and
/// tokens per sequence (Chowdhery et al., "PaLM", 2022, appendix B).
double model_flops_per_token(const ModelConfig& model, std::int64_t parameters, std::int64_t seq_len);

/// In a snapshot, a piece of at least `pages_of_aligned_piece` pages begins at the same offset within a page
/// as in its tensor, so that it can be written directly (O_DIRECT) to a tensor that begins at a page boundary
/// of its file.
constexpr std::int64_t snapshot_page = 4096;
constexpr std::int64_t pages_of_aligned_piece = 256;

/// Bytes of host memory that suffice for a copy of the values that a rank writes to a checkpoint: weights and
/// states in fp32, plus one page per `pages_of_aligned_piece` pages for the alignment of pieces.
std::int64_t snapshot_bytes(const RankProgram& program);

/// The inputs of a plan other than the StepConfig.
struct Platform {
  std::string algorithm = "native";                                 ///< the value of comm.algorithm
  std::int64_t threads = 0;                                         ///< host threads per rank
  CommunicatorPlan communicator;                                    ///< of the communication backend
  decltype(PluginDescriptor::plan_compute) plan_compute = nullptr;  ///< of the compute backend
  bool keeps_snapshot = false;  ///< checkpoints are written while training continues
};

/// Plans by stage, for its first rank: no other rank of a stage holds more of the model. If the algorithm is
/// "auto", each call is planned with the algorithm that needs the most scratch.
std::vector<RunPlan> make_plans(const StepConfig& config, const Platform& platform = {});

/// The plan that needs the most memory, of equal ones the first.
const RunPlan& largest_of(const std::vector<RunPlan>& plans);

/// The plan of the rank that needs the most memory.
inline RunPlan make_plan(const StepConfig& config, const Platform& platform = {}) {
  return largest_of(make_plans(config, platform));
}

}  // namespace mylos
