// SPDX-License-Identifier: BSD-3-Clause
// Plan: what a run will need, computed from the deck alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "app/run_config.hpp"
#include "core/memory_ledger.hpp"
#include "core/plugin.hpp"

namespace mylos {

struct RunPlan {
  std::int64_t parameters = 0;                               ///< N, without padding
  std::array<std::int64_t, num_memory_categories> memory{};  ///< bytes of one rank, by category
  std::int64_t checkpoint_bytes = 0;
  std::int64_t tokens_per_step = 0;
  double flops_per_token = 0.0;  ///< 6 N + 12 L C T

  std::int64_t memory_total() const;
};

/// 6 N + 12 L C T (Chowdhery et al., "PaLM", 2022, appendix B).
double model_flops_per_token(const ModelConfig& model, std::int64_t parameters, std::int64_t seq_len);

/// `comm` is what the communication backend takes. Of what an algorithm allocates the gradients' reduction is
/// counted, on the rank that needs most; where comm.algorithm is "auto", of the algorithm that needs most.
/// `plan_compute` is the compute backend's, or null.
RunPlan make_plan(const RunConfig& config, const CommunicatorPlan& comm = {},
                  decltype(PluginDescriptor::plan_compute) plan_compute = nullptr);

/// The text of `--dry-run`.
std::string plan_text(const RunConfig& config, const RunPlan& plan);

}  // namespace mylos
