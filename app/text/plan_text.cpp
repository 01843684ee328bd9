// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/plan_text.hpp"

#include <algorithm>
#include <vector>

#include "core/base/join.hpp"

namespace mylos {

std::string flops_note(bool has_experts, bool has_depths) {
  std::string text;
  if (has_experts) text += ", of experts those that a token uses";
  if (has_depths) text += ", of routed blocks for the tokens that they take";
  return text;
}

std::string plan_text(const RunConfig& config, const RunPlan& plan) {
  const ModelConfig& m = config.model;
  const TrainConfig& t = config.train;
  const auto gb = [](std::int64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  std::string text;
  text += fmt::format("model        {} layers, {} heads, {}, context {}, vocabulary {} (padded to {}), {}\n",
                      m.layers, m.heads, width_text(m), m.context, m.vocab, m.padded_vocab(),
                      m.tied ? "tied" : "untied");
  if (m.experts.count > 0) text += fmt::format("experts      {}\n", experts_text(m.experts));
  if (m.depths.capacity > 0.0) text += fmt::format("depths       {}\n", depths_text(m.depths));
  text += fmt::format("parameters   {} ({:.1f} M)\n", plan.parameters,
                      static_cast<double>(plan.parameters) * 1e-6);
  const ParallelLayout& layout = config.parallel;
  const std::string emulated =
      layout.emulated_stages > 1
          ? fmt::format(", {} with {} emulated stages", layout.schedule->name, layout.emulated_stages)
          : "";
  text += fmt::format("layout       ranks {}: {}{}, exchange {}{}\n", layout.world_size(), axes_text(layout),
                      emulated, layout.exchange->name,
                      layout.shard > 1 ? fmt::format(" among {}", layout.shard) : "");
  text += fmt::format("batch        {} sequences of {} tokens = {} micro-batch x {} accumulation x {} data\n",
                      t.global_batch, t.seq_len, t.micro_batch, t.accumulation, layout.data);
  text += fmt::format(
      "run          {} steps of {} tokens = {:.4g} tokens, {:.3g} model FLOPs (6N + 12LCT per token{})\n",
      config.limits.steps, plan.tokens_per_step,
      static_cast<double>(config.limits.steps * plan.tokens_per_step),
      static_cast<double>(config.limits.steps * plan.tokens_per_step) * plan.flops_per_token,
      flops_note(m.experts.count > 0, m.depths.capacity > 0.0));
  text += fmt::format("numbers      {}, gradients {}{}\n", name_of(t.dtype), name_of(t.grad_dtype),
                      config.optimizer.keeps_master ? "" : ", no master");
  const int stage = layout.coordinates(plan.rank).index(Axis::pipeline);
  text += fmt::format("memory       per rank, GB; rank {}{} needs the most\n", plan.rank,
                      layout.pipeline > 1 ? fmt::format(" (stage {})", stage) : "");
  for (int i = 0; i < num_memory_categories; ++i) {
    const std::int64_t bytes = plan.memory[static_cast<std::size_t>(i)];
    if (bytes > 0)
      text += fmt::format("  {:<17} {:8.3f}\n", name_of(static_cast<MemoryCategory>(i)), gb(bytes));
  }
  text += fmt::format("  {:<17} {:8.3f}\n", "total", gb(plan.memory_total()));
  if (!plan.traffic.empty()) text += fmt::format("payload      of rank {} per step, GB, calls\n", plan.rank);
  for (const TrafficRow& row : plan.traffic) {
    text += fmt::format("  {:<26} {:8.3f} {:6}\n", fmt::format("{} {}", row.axis, name_of(row.operation)),
                        1e-9 * static_cast<double>(row.payload_bytes), row.calls);
  }
  text += fmt::format("checkpoint   {:.3f} GB\n", gb(plan.checkpoint_bytes));
  for (const std::string& idle : idle_settings(config)) text += fmt::format("warning: {}\n", idle);
  return text;
}

namespace {

/// Returns "all", "none", or a range of indices such as "0-5".
std::string part_text(std::int64_t begin, std::int64_t count, std::int64_t whole) {
  if (count == whole) return "all";
  return count == 0 ? "none" : fmt::format("{}-{}", begin, begin + count - 1);
}

std::string part_text(const Parameter& parameter, std::string_view dimension) {
  const auto found = std::ranges::find(parameter.view, dimension, &Dimension::name);
  const auto d = static_cast<std::size_t>(found - parameter.view.begin());
  return part_text(parameter.box.start[d], parameter.box.count[d], found->extent);
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string units_text(const ParameterTable& table) {
  constexpr std::string_view block = "block ";
  std::string text;
  for (int unit = 0; unit < table.num_units(); ++unit) {
    const std::string& name = table.unit(unit).name;
    const auto is_block = [&](int other) {
      return other >= 0 && other < table.num_units() && table.unit(other).name.starts_with(block);
    };
    const auto number = [&](int other) { return std::stoi(table.unit(other).name.substr(block.size())); };
    const auto follows = [&](int other) {
      return is_block(other) && is_block(other - 1) && number(other) == number(other - 1) + 1;
    };
    if (follows(unit)) continue;
    int last = unit;
    while (follows(last + 1)) ++last;
    if (!text.empty()) text += ", ";
    text += last == unit ? name : fmt::format("blocks {} to {}", number(unit), number(last));
  }
  return text;
}

std::string layout_text(const RunConfig& config) {
  const TrainConfig& t = config.train;
  const int ranks = static_cast<int>(config.parallel.world_size());
  const AxisSet used = config.parallel.coordinates(0).used_axes();
  std::vector<std::string> head = {"rank"};
  for (int i = 0; i < num_axes; ++i) {
    if (used.contains(static_cast<Axis>(i))) head.emplace_back(name_of(static_cast<Axis>(i)));
  }
  const bool shards = used.contains(Axis::shard);
  const GridExtents extents = config.parallel.extents();
  const ParameterTable whole = parameters_of(config.model);
  // All blocks are divided alike, but some may have no dense layer, or no experts.
  const auto weight_of_some_block = [&](std::string_view end) -> std::string {
    for (const Parameter& parameter : whole.parameters()) {
      if (parameter.name.ends_with(end)) return parameter.name;
    }
    return "";
  };
  const std::string dense = weight_of_some_block(".mlp.c_proj.weight");
  const std::string experts = weight_of_some_block(".moe.experts.c_proj.weight");
  head.emplace_back("heads");
  if (!dense.empty()) head.emplace_back("feed-forward");
  if (!experts.empty()) head.insert(head.end(), {"experts", "of their width"});
  for (const char* name : {"tokens", "stream rows"}) head.emplace_back(name);
  if (config.parallel.pipeline > 1) head.emplace_back("units");
  const bool is_asynchronous = config.parallel.is_asynchronous();
  std::vector<VersionRule> rules;
  std::vector<int> in_flight;
  if (is_asynchronous) {
    rules = config.parallel.schedule->rules(config.parallel.scope(t.accumulation));
    in_flight = micro_batches_in_flight(config.parallel.scope(t.accumulation));
    for (const char* name : {"delay", "versions", "in flight"}) head.emplace_back(name);
  }
  if (shards) head.push_back(fmt::format("of each unit ({})", config.parallel.exchange->name));
  head.emplace_back("sequences");
  std::vector<std::vector<std::string>> rows = {head};
  for (int rank = 0; rank < ranks; ++rank) {
    const Coordinates at(extents, ranks, rank);
    const ParameterTable table = whole.local(at, config.parallel.splits);
    const BatchShape shape = config.programs(Schedule(), at).shape;
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(std::to_string(rank));
    for (int i = 0; i < num_axes; ++i) {
      if (used.contains(static_cast<Axis>(i))) row.push_back(std::to_string(at.index(static_cast<Axis>(i))));
    }
    row.push_back(part_text(table.find("h.0.attn.c_proj.weight"), "heads"));
    if (!dense.empty()) row.push_back(part_text(table.find(dense), "inner"));
    if (!experts.empty()) {
      row.push_back(part_text(table.find(experts), "experts"));
      row.push_back(part_text(table.find(experts), "inner"));
    }
    row.push_back(part_text(table.find("wte.weight"), "vocab"));
    row.push_back(part_text(shape.first_residual_row(), shape.residual_rows(), shape.rows()));
    if (config.parallel.pipeline > 1) row.push_back(units_text(config.table(at)));
    if (is_asynchronous) {
      const int stage = at.index(Axis::pipeline);
      const VersionRule& rule = rules[static_cast<std::size_t>(stage)];
      row.push_back(std::to_string(rule.delay));
      row.push_back(std::to_string(rule.versions()));
      row.push_back(std::to_string(in_flight[static_cast<std::size_t>(stage)]));
    }
    if (shards)
      row.push_back(fmt::format("part {} of {}", at.index(Axis::shard) + 1, at.extent(Axis::shard)));
    std::string sequences = part_text(at.index(sample_axes) * t.micro_batch, t.micro_batch, t.global_batch);
    const int replicas = at.extent(sample_axes);
    if (const std::int64_t more = t.global_batch / (t.micro_batch * replicas) - 1; more > 0)
      sequences += fmt::format(" and {} more micro-batch{}, {} apart", more, more > 1 ? "es" : "",
                               t.micro_batch * replicas);
    row.push_back(sequences);
  }
  return aligned(rows);
}

}  // namespace mylos
