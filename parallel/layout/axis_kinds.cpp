// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/layout/axis_kinds.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "core/base/join.hpp"
#include "parallel/layout/parallel_layout.hpp"

namespace mylos {

namespace {

std::string text_of(const AxisKind& kind, const ParallelLayout& layout) {
  return kind.text != nullptr ? kind.text(layout)
                              : fmt::format("{} {}", kind.key.name, layout.extent_of(kind));
}

std::string tensor_text(const ParallelLayout& layout) {
  return fmt::format("tensor {}{}{}", layout.tensor, layout.splits.vocab ? ", vocab" : "",
                     layout.splits.sequence ? ", sequence" : "");
}

/// The axes that divide the data ranks follow them.
std::string data_text(const ParallelLayout& layout) {
  std::string text = fmt::format("data {}", layout.data);
  for (const AxisKind* kind : axis_kinds()) {
    if (!kind->multiplies_ranks && layout.extent_of(*kind) > 1) text += ", " + text_of(*kind, layout);
  }
  return text;
}

std::string pipeline_text(const ParallelLayout& layout) {
  const std::string replicas =
      layout.replicas.empty() ? "" : fmt::format(" with {} replicas", join(layout.replicas, ","));
  return fmt::format("pipeline {}{}, {}", layout.pipeline, replicas, layout.schedule->name);
}

constexpr AxisKind data_axis{
    .axis = Axis::replicate,
    .key = integer_param("parallel", "data", "0", 0, 65536, "groups",
                         "Length of the data axis: the number of groups of ranks that read different "
                         "samples. Each group has tensor x pipeline ranks; 0 uses all ranks."),
    .member = &ParallelLayout::data,
    .text = data_text,
};

constexpr AxisKind expert_axis{
    .axis = Axis::expert,
    .key = integer_param("parallel", "expert", "1", 1, 65536, "ranks",
                         "Number of neighbouring ranks along the data axis that divide the experts (expert "
                         "parallelism); a divisor of model.experts, parallel.data and, where an exchange "
                         "divides something, parallel.shard."),
    .multiplies_ranks = false,
    .member = &ParallelLayout::expert,
};

constexpr AxisKind tensor_axis{
    .axis = Axis::tensor,
    .key = integer_param("parallel", "tensor", "1", 1, 65536, "ranks",
                         "Number of neighbouring ranks that divide the heads and the feed-forward layer of "
                         "each block (Megatron-LM); a divisor of heads.")
               .open_in_evaluation(),
    .divided = "model.heads",
    .member = &ParallelLayout::tensor,
    .text = tensor_text,
};

constexpr AxisKind pipeline_axis{
    .axis = Axis::pipeline,
    .key = integer_param("parallel", "pipeline", "1", 0, 1024, "stages",
                         "Number of stages that the blocks are divided into, the slowest axis of the grid: "
                         "ranks = tensor x data x pipeline. 0, with replicas = auto: the number with the "
                         "shortest time.")
               .evaluated_with("1")
               .open_in_evaluation(),
    .member = &ParallelLayout::pipeline,
    .text = pipeline_text,
};

}  // namespace

std::span<const AxisKind* const> axis_kinds() {
  static constexpr const AxisKind* all[] = {&data_axis, &expert_axis, &tensor_axis, &pipeline_axis};
  return all;
}

std::vector<const AxisKind*> rank_factors(AxisSet left_out) {
  std::vector<const AxisKind*> kinds;
  for (const AxisKind* kind : axis_kinds()) {
    if (kind->multiplies_ranks && !left_out.contains(kind->axis)) kinds.push_back(kind);
  }
  return kinds;
}

std::string axes_text(const ParallelLayout& layout) {
  std::vector<const AxisKind*> kinds = rank_factors();
  std::ranges::sort(kinds, {}, &AxisKind::axis);
  std::vector<std::string> texts;
  for (const AxisKind* kind : kinds) {
    if (kind->axis == Axis::replicate || layout.extent_of(*kind) > 1) texts.push_back(text_of(*kind, layout));
  }
  return join(texts, " x ");
}

}  // namespace mylos
