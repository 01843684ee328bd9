// SPDX-License-Identifier: BSD-3-Clause
#include "app/plan_text.hpp"

namespace mylos {

std::string plan_text(const RunConfig& config, const RunPlan& plan) {
  const ModelConfig& m = config.model;
  const TrainConfig& t = config.train;
  const auto gb = [](std::int64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  std::string text;
  text += fmt::format(
      "model        {} layers, {} heads, width {}, context {}, vocabulary {} (padded to {}), {}\n", m.layers,
      m.heads, m.width, m.context, m.vocab, m.padded_vocab(), m.tied ? "tied" : "untied");
  text += fmt::format("parameters   {} ({:.1f} M)\n", plan.parameters,
                      static_cast<double>(plan.parameters) * 1e-6);
  const std::string tensor =
      config.parallel.tensor > 1 ? fmt::format("tensor {} x ", config.parallel.tensor) : "";
  text += fmt::format("layout       {} ranks: {}data {}, exchange {}{}\n", config.parallel.world_size(),
                      tensor, config.parallel.data, config.parallel.exchange->name,
                      config.parallel.shard > 1 ? fmt::format(" among {}", config.parallel.shard) : "");
  text += fmt::format("batch        {} sequences of {} tokens = {} micro-batch x {} accumulation x {} data\n",
                      t.global_batch, t.seq_len, t.micro_batch, t.accumulation, config.parallel.data);
  text += fmt::format(
      "run          {} steps of {} tokens = {:.4g} tokens, {:.3g} model FLOPs (6N + 12LCT a token)\n",
      config.limits.steps, plan.tokens_per_step,
      static_cast<double>(config.limits.steps * plan.tokens_per_step),
      static_cast<double>(config.limits.steps * plan.tokens_per_step) * plan.flops_per_token);
  text += fmt::format("numbers      {}, gradients {}{}\n", name_of(t.dtype), name_of(t.grad_dtype),
                      config.optimizer.keeps_master ? "" : ", no master");
  text += "memory       per rank, GB\n";
  for (int i = 0; i < num_memory_categories; ++i) {
    const std::int64_t bytes = plan.memory[static_cast<std::size_t>(i)];
    if (bytes > 0)
      text += fmt::format("  {:<17} {:8.3f}\n", name_of(static_cast<MemoryCategory>(i)), gb(bytes));
  }
  text += fmt::format("  {:<17} {:8.3f}\n", "total", gb(plan.memory_total()));
  if (!plan.traffic.empty()) text += "payload      per rank and step, GB, calls\n";
  for (const TrafficRow& row : plan.traffic) {
    text += fmt::format("  {:<26} {:8.3f} {:6}\n", fmt::format("{} {}", row.axis, name_of(row.operation)),
                        1e-9 * static_cast<double>(row.payload_bytes), row.calls);
  }
  text += fmt::format("checkpoint   {:.3f} GB\n", gb(plan.checkpoint_bytes));
  return text;
}

}  // namespace mylos
