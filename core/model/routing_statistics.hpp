// SPDX-License-Identifier: BSD-3-Clause
// RoutingStatistics: what a step records about its routers, as sums over the tokens of the global batch.
#pragma once

#include <cstdint>

#include "core/model/model_config.hpp"

namespace mylos {

/// Where the sums (fp32) of each block lie among those of the model. A rank has those of its blocks, and of
/// its micro-batches.
class RoutingStatistics {
 public:
  /// Elements [begin, begin + count).
  struct Range {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  explicit RoutingStatistics(const ModelConfig& model) : model_(model) {}

  /// Of a block with experts, counted from 0: what RouterStatistics sums.
  Range experts(std::int64_t layer) const { return {begin(layer), num_of_experts()}; }
  /// Of a routed block: what DepthPredictorLoss sums.
  Range depths(std::int64_t layer) const {
    return {begin(layer) + (model_.experts.are_in(layer) ? num_of_experts() : 0), num_of_depths};
  }
  std::int64_t count() const { return begin(model_.layers); }

 private:
  static constexpr std::int64_t num_of_depths = 3;
  std::int64_t num_of_experts() const { return 3 + model_.experts.count; }
  std::int64_t begin(std::int64_t layer) const {
    std::int64_t sums = 0;
    for (std::int64_t before = 0; before < layer; ++before) {
      if (model_.experts.are_in(before)) sums += num_of_experts();
      if (model_.depths.are_in(before)) sums += num_of_depths;
    }
    return sums;
  }

  const ModelConfig& model_;
};

}  // namespace mylos
