// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/plan_report.hpp"

#include <algorithm>
#include <cmath>

#include "app/text/plan_text.hpp"
#include "app/text/planned_setup.hpp"
#include "io/file_util.hpp"
#include "io/report/chrome_trace.hpp"

namespace mylos {

namespace {

constexpr double giga = 1e9;

/// A machine on which nothing takes time, for plans without a machine file.
const Machine& timeless_machine() {
  static const Machine machine = [] {
    Machine made;
    made.peak.fill(1e30);
    made.product_share = 1.0;
    made.bandwidth = made.node_bandwidth = made.network_bandwidth = 1e30;
    made.kernel_shares.fill(1.0);
    made.attention_shares[64] = 1.0;
    return made;
  }();
  return machine;
}

FlopsOfToken flops_of_token(const ModelConfig& model, const RunPlan& plan, std::int64_t seq_len) {
  const auto layers = static_cast<double>(model.layers);
  const auto width = static_cast<double>(model.width);
  const auto inner = static_cast<double>(model.inner_width());
  FlopsOfToken flops;
  flops.whole = plan.flops_per_token;
  const double scores = 12.0 * layers * width * static_cast<double>(seq_len);
  flops.causal = flops.whole - 0.5 * scores;
  const double projections = 24.0 * layers * width * width;
  const double feed_forward = 12.0 * layers * width * inner;
  const double head = 6.0 * width * static_cast<double>(model.vocab);
  const double all = projections + feed_forward + scores + head;
  flops.projections = projections / all;
  flops.feed_forward = feed_forward / all;
  flops.scores = scores / all;
  flops.head = head / all;
  return flops;
}

/// A cell of CSV.
std::string quoted(const std::string& text) {
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? "\"\"" : std::string(1, c);
  return cell + '"';
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100.0 * share);
}

/// Seconds as people read them: "412 us", "3.21 ms", "1.43 s".
std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", 1e6 * seconds);
  return seconds < 1.0 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.4g} s", seconds);
}

}  // namespace

PlayOptions play_options(const RunConfig& config, const Machine* machine) {
  PlayOptions options{.ranks_per_node = config.ranks_per_node,
                      .algorithm = config.comm.algorithm,
                      .link = config.comm.simulated_link};
  const bool has_own_host = machine != nullptr && machine->software && machine->software->host > 0.0;
  options.has_graphs = config.graphs.value_or(machine != nullptr && machine->has_graphs && !has_own_host);
  return options;
}

Setup setup_on_machine(CommandLine line, const std::string& name) {
  Setup setup = planned_setup(line, name);
  const auto* machine = setup.config.machine_file.get();
  if (machine == nullptr || machine->ranks_per_node == 0) return setup;
  const std::int64_t most = machine->ranks_per_node;
  if (line.has("ranks-per-node") && line.integer("ranks-per-node") > most)
    fail(ExitCode::usage, "--ranks-per-node={}: a node of {} has {} ({})", line.integer("ranks-per-node"),
         machine->name, most, machine->file);
  const std::int64_t ranks = setup.config.parallel.world_size();
  if (line.has("ranks-per-node") || ranks <= most) return setup;
  if (ranks % most != 0)
    fail(ExitCode::usage, "{} ranks do not fill nodes of {} ({}, {}); give --ranks-per-node", ranks, most,
         machine->name, machine->file);
  line.options["ranks-per-node"] = most;
  return planned_setup(line, name);
}

PlanReport::PlanReport(const Setup& setup, bool keeps_events)
    : setup_(setup), config_(setup.config), machine_(config_.machine_file.get()), plans_(plans_of(setup)) {
  if (is_backend_elsewhere()) {
    for (RunPlan& plan : plans_) {
      plan.memory[static_cast<std::size_t>(MemoryCategory::workspace)] =
          static_cast<std::int64_t>(machine_->overhead);
      plan.memory[static_cast<std::size_t>(MemoryCategory::communication)] = 0;
    }
  }
  const Machine& machine = machine_ != nullptr ? *machine_ : timeless_machine();
  PlayOptions options = play_options(config_, machine_);
  options.keeps_events = keeps_events;
  if (has_pass_times()) options.pass_times = config_.parallel.times;
  const PlayableStep step(config_);
  played_ = step.play(machine, options);
  flops_ = flops_of_token(config_.model, plan(), config_.train.seq_len);
  flops_.executed = executed_flops() * static_cast<double>(config_.parallel.world_size()) /
                    static_cast<double>(plan().tokens_per_step);
  if (machine_ == nullptr || has_pass_times()) return;
  options.keeps_events = false;
  std::set<std::string> candidates;
  for (const PlayedStep::Lane& lane : played_.lanes) {
    for (const auto& [axis, seconds] : lane.waits) {
      if (seconds > 0.002 * played_.step) candidates.insert(axis);
    }
    if (lane.host > 0.002 * played_.step) candidates.insert("host");
  }
  candidates.insert("memory");
  for (const std::string& name : candidates) {
    options.left_out = name;
    without_.emplace_back(name, step.play(machine, options).step);
  }
  std::ranges::sort(without_, {}, &std::pair<std::string, double>::second);
}

bool PlanReport::is_backend_elsewhere() const {
  if (machine_ == nullptr || machine_->backend.empty()) return false;
  const auto usable = setup_.plugins.usable(PluginKind::compute);
  return std::ranges::none_of(usable, [&](const auto* plugin) { return plugin->name == machine_->backend; });
}

double PlanReport::peak() const {
  return config_.peak_tflops > 0.0 ? 1e12 * config_.peak_tflops : machine_->peak_of(config_.train.dtype);
}

double PlanReport::executed_flops() const {
  double flops = 0.0;
  for (const PlayedStep::Lane& lane : played_.lanes) {
    for (const auto& [name, operation] : lane.operations) flops += operation.flops;
  }
  return flops / static_cast<double>(played_.lanes.size());
}

double PlanReport::mfu() const {
  return plan().flops_per_token * tokens_per_second() /
         (peak() * static_cast<double>(config_.parallel.world_size()));
}

double PlanReport::hfu() const {
  return executed_flops() / (played_.step * peak());
}

std::string PlanReport::memory_left_text() const {
  const double memory = machine_->memory - machine_->reserved;
  if (machine_->memory == 0.0) return "";
  const double left = memory - static_cast<double>(plan().memory_total());
  if (left < 0.0)
    return fmt::format("  DOES NOT FIT: {:.3f} GB more than the {:.3f} GB that {} leaves\n", -left / giga,
                       memory / giga, machine_->name);
  return fmt::format("  {:<17} {:8.3f} of {:.3f}\n", "left", left / giga, memory / giga);
}

std::string PlanReport::flops_text() const {
  std::string text =
      fmt::format("FLOPs        per token: {:.4g} executed, {:.4g} by 6N + 6LCT, {:.4g} by 6N + 12LCT\n",
                  flops_.executed, flops_.causal, flops_.whole);
  text += fmt::format(
      "             of the last: attention projections {}, feed-forward {}, attention scores {}, head {}\n",
      percent(flops_.projections), percent(flops_.feed_forward), percent(flops_.scores),
      percent(flops_.head));
  const PlayedStep::Lane& lane = played_.busiest();
  text +=
      fmt::format("links        payload of rank {} per step, GB: {:.3f} within nodes, {:.3f} between nodes\n",
                  lane.rank, lane.node_bytes / giga, lane.network_bytes / giga);
  return text;
}

PlanReport::Hiding PlanReport::hiding() const {
  const PlayedStep::Lane& lane = played_.busiest();
  double flops = 0.0;
  double seconds = 0.0;
  for (const auto& [name, operation] : lane.operations) {
    if (name.find("linear") == std::string::npos) continue;
    flops += operation.flops;
    seconds += operation.seconds;
  }
  Hiding hiding;
  if (seconds > 0.0) hiding.rate = flops / seconds;
  const auto tokens = [&](DType dtype, double passes, double speed) {
    return static_cast<double>(size_of(dtype)) / passes * hiding.rate / speed;
  };
  if (lane.longest_gather > 0.0) {
    hiding.gather_speed = lane.gathered_bytes / lane.longest_gather;
    hiding.gather_tokens = tokens(config_.train.dtype, 2.0, hiding.gather_speed);
  }
  if (lane.reduced_seconds > 0.0) {
    hiding.sum_speed = lane.reduced_bytes / lane.reduced_seconds;
    hiding.sum_tokens = tokens(config_.train.grad_dtype, 4.0, hiding.sum_speed);
  }
  return hiding;
}

std::string PlanReport::hiding_text() const {
  const Hiding hiding = this->hiding();
  const std::int64_t tokens = config_.train.micro_batch * config_.train.seq_len;
  std::string text;
  if (hiding.gather_tokens > 0.0)
    text += fmt::format(
        "hidden if    a rank's micro-batch has {:.0f} tokens or more ({} here): a gather of weights takes as "
        "long as their forward pass, at {:.1f} GB/s and {:.3g} TFLOP/s\n",
        hiding.gather_tokens, tokens, hiding.gather_speed / giga, hiding.rate / 1e12);
  if (hiding.sum_tokens > 0.0)
    text += fmt::format(
        "hidden if    a rank's {} has {:.0f} tokens or more ({} here): the sum of gradients takes as long as "
        "the backward pass, at {:.1f} GB/s and {:.3g} TFLOP/s\n",
        config_.train.accumulation > 1 ? "last micro-batch" : "micro-batch", hiding.sum_tokens, tokens,
        hiding.sum_speed / giga, hiding.rate / 1e12);
  return text;
}

std::string PlanReport::time_text() const {
  const PlayedStep::Lane& lane = played_.busiest();
  const auto share = [&](double seconds) { return percent(seconds / played_.step); };
  std::string text = fmt::format("time         of a step on {}: {}; {:.4g} tokens/s, {:.4g} per rank\n",
                                 machine_->name, seconds_text(played_.step), tokens_per_second(),
                                 tokens_per_second() / static_cast<double>(config_.parallel.world_size()));
  text +=
      fmt::format("             MFU {} (6N + 12LCT), HFU {} (executed, causal scores) of {:.4g} TFLOP/s\n",
                  percent(mfu()), percent(hfu()), peak() / 1e12);
  constexpr std::array<const char*, 4> phases = {"forward", "backward", "communication", "optimizer"};
  text += fmt::format("phases       of rank {}\n", lane.rank);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    if (lane.phases[i] > 0.0)
      text += fmt::format("  {:<30} {:>9} {:>7}\n", phases[i], seconds_text(lane.phases[i]),
                          share(lane.phases[i]));
  }
  for (const auto& [axis, seconds] : lane.waits)
    text += fmt::format("  {:<30} {:>9} {:>7}  of {} of communication\n", fmt::format("waiting for {}", axis),
                        seconds_text(seconds), share(seconds),
                        seconds_text(lane.communication.contains(axis) ? lane.communication.at(axis) : 0.0));
  if (lane.host > 0.0)
    text += fmt::format("  {:<30} {:>9} {:>7}\n", "waiting for the host", seconds_text(lane.host),
                        share(lane.host));
  if (played_.lanes.size() > 1)
    text += fmt::format("  {:<30} {:>9} {:>7}\n", "bubble of all stages", "", percent(played_.bubble()));
  std::vector<std::pair<std::string, PlayedStep::Operation>> operations(lane.operations.begin(),
                                                                        lane.operations.end());
  std::ranges::sort(operations,
                    [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  text += "operations   calls, time, share, rate\n";
  constexpr std::size_t most_operations = 12;
  operations.resize(std::min(operations.size(), most_operations));
  for (const auto& [name, operation] : operations) {
    const bool has_rate = name.find("linear") != std::string::npos || name.starts_with("attention");
    text += fmt::format(
        "  {:<30} {:>6} {:>9} {:>7}{}\n", name, operation.calls, seconds_text(operation.seconds),
        share(operation.seconds),
        has_rate ? fmt::format("  {:.4g} TFLOP/s", 1e-12 * operation.flops / operation.seconds) : "");
  }
  text += hiding_text();
  if (!without_.empty()) {
    const auto& [name, step] = without_.front();
    const double gain = 1.0 - step / played_.step;
    const std::string what =
        name == "host" ? "the host, which queues operations too slowly: record graphs, or larger operations"
        : name == "memory" ? "operations that only move data"
                           : fmt::format("communication along the axis {}", name);
    if (gain > 0.005)
      text += fmt::format("gains most   {}: without it a step takes {} less\n", what, percent(gain));
  }
  const double gather = lane.longest_gather;
  const auto blocks =
      static_cast<double>(config_.model.layers) / static_cast<double>(config_.parallel.pipeline);
  const double forward = lane.forward_work / (static_cast<double>(config_.train.accumulation) * blocks);
  if (gather > forward && forward > 0.0) {
    text += fmt::format(
        "             the gather of a block takes {:.2f} x the block's forward pass: micro_batch = {:.0f} "
        "would hide it\n",
        gather / forward, std::ceil(static_cast<double>(config_.train.micro_batch) * gather / forward));
  }
  return text;
}

std::string PlanReport::run_text() const {
  const auto ranks = static_cast<double>(config_.parallel.world_size());
  const double hours = static_cast<double>(config_.limits.steps) * played_.step / 3600.0;
  std::string text = fmt::format("whole run    {} steps: {:.4g} h, {:.4g} device hours", config_.limits.steps,
                                 hours, ranks * hours);
  if (machine_->price > 0.0)
    text += fmt::format(", {:.2f} at {} per device hour", ranks * hours * machine_->price, machine_->price);
  text += "\n";
  const double nodes = ranks / static_cast<double>(std::max<std::int64_t>(1, config_.ranks_per_node));
  if (nodes > 1.0 && machine_->loss_per_doubling_high > 0.0) {
    const double doublings = std::log2(nodes);
    text += fmt::format(
        "             {:.4g} to {:.4g} h with the loss of {} to {} per doubling of the nodes that others "
        "report\n",
        hours * std::pow(1.0 - machine_->loss_per_doubling_low, -doublings),
        hours * std::pow(1.0 - machine_->loss_per_doubling_high, -doublings),
        percent(machine_->loss_per_doubling_low), percent(machine_->loss_per_doubling_high));
  }
  return text;
}

std::vector<std::string> PlanReport::assumed() const {
  std::vector<std::string> all(played_.fallbacks.begin(), played_.fallbacks.end());
  if (is_backend_elsewhere())
    all.push_back(
        fmt::format("{} GB of workspace: backend {} is not installed here; buffers of communication are in "
                    "what is reserved",
                    machine_->overhead / giga, machine_->backend));
  return all;
}

std::string PlanReport::text() const {
  std::string text = plan_text(config_, plan());
  text += flops_text();
  if (has_pass_times())
    return text +
           fmt::format("time         of a step, played: {:.6g} in the unit of --pass-times\n", played_.step);
  if (machine_ == nullptr) return text + "time         not known: give a machine file with --machine=FILE\n";
  const std::string left = memory_left_text();
  if (!left.empty()) text += "memory       of a device\n" + left;
  text += time_text();
  text += run_text();
  for (const std::string& what : assumed()) text += fmt::format("assumed      {}\n", what);
  return text;
}

std::vector<PlanReport::Number> PlanReport::numbers() const {
  std::vector<Number> all;
  const auto add = [&](std::string section, std::string name, double value, std::string unit) {
    all.push_back({std::move(section), std::move(name), value, std::move(unit)});
  };
  add("model", "parameters", static_cast<double>(plan().parameters), "");
  add("run", "rank", plan().rank, "");  // whose memory and payload these are
  add("run", "ranks", static_cast<double>(config_.parallel.world_size()), "");
  add("run", "tokens_per_step", static_cast<double>(plan().tokens_per_step), "tokens");
  add("run", "steps", static_cast<double>(config_.limits.steps), "");
  for (int i = 0; i < num_memory_categories; ++i) {
    const std::int64_t bytes = plan().memory[static_cast<std::size_t>(i)];
    if (bytes > 0)
      add("memory", std::string(name_of(static_cast<MemoryCategory>(i))), static_cast<double>(bytes),
          "bytes");
  }
  add("memory", "total", static_cast<double>(plan().memory_total()), "bytes");
  for (const TrafficRow& row : plan().traffic) {
    const std::string name = fmt::format("{} {}", row.axis, name_of(row.operation));
    add("payload", name, static_cast<double>(row.payload_bytes), "bytes");
    add("calls", name, static_cast<double>(row.calls), "");
  }
  const PlayedStep::Lane& lane = played_.busiest();
  add("links", "node", lane.node_bytes, "bytes");
  add("links", "network", lane.network_bytes, "bytes");
  add("checkpoint", "bytes", static_cast<double>(plan().checkpoint_bytes), "bytes");
  add("flops", "executed", flops_.executed, "FLOP/token");
  add("flops", "6N+6LCT", flops_.causal, "FLOP/token");
  add("flops", "6N+12LCT", flops_.whole, "FLOP/token");
  add("flops", "share_projections", flops_.projections, "");
  add("flops", "share_feed_forward", flops_.feed_forward, "");
  add("flops", "share_scores", flops_.scores, "");
  add("flops", "share_head", flops_.head, "");
  if (has_pass_times()) add("time", "step", played_.step, "of --pass-times");
  if (machine_ == nullptr || has_pass_times()) return all;
  if (machine_->memory > 0.0)
    add("memory", "left", machine_->memory - machine_->reserved - static_cast<double>(plan().memory_total()),
        "bytes");
  add("time", "step", played_.step, "s");
  constexpr std::array<const char*, 4> phases = {"forward", "backward", "communication", "optimizer"};
  for (std::size_t i = 0; i < phases.size(); ++i) add("time", phases[i], lane.phases[i], "s");
  for (const auto& [axis, seconds] : lane.waits) add("wait", axis, seconds, "s");
  for (const auto& [axis, seconds] : lane.communication) add("communication", axis, seconds, "s");
  add("wait", "host", lane.host, "s");
  add("time", "bubble", played_.bubble(), "");
  for (const auto& [name, operation] : lane.operations) add("operation", name, operation.seconds, "s");
  for (const auto& [name, step] : without_) add("without", name, step, "s");
  if (const Hiding own = hiding(); own.gather_tokens + own.sum_tokens > 0.0) {
    add("hidden_if", "gather_tokens", own.gather_tokens, "tokens per micro-batch");
    add("hidden_if", "sum_tokens", own.sum_tokens, "tokens per micro-batch");
  }
  add("rate", "tokens_per_second", tokens_per_second(), "tokens/s");
  add("rate", "mfu", mfu(), "");
  add("rate", "hfu", hfu(), "");
  const double hours = static_cast<double>(config_.limits.steps) * played_.step / 3600.0;
  const double device_hours = hours * static_cast<double>(config_.parallel.world_size());
  add("run", "hours", hours, "h");
  add("run", "device_hours", device_hours, "h");
  if (machine_->price > 0.0) add("run", "price", device_hours * machine_->price, "");
  return all;
}

Json PlanReport::json() const {
  std::vector<Json::Member> sections;
  for (const Number& number : numbers()) {
    if (sections.empty() || sections.back().first != number.section) {
      const auto found = std::ranges::find(sections, number.section, &Json::Member::first);
      if (found != sections.end()) std::rotate(found, found + 1, sections.end());
      if (found == sections.end()) sections.emplace_back(number.section, Json::object({}));
    }
    std::vector<Json::Member> members = sections.back().second.members();
    const bool is_whole = number.unit == "bytes" || number.unit == "tokens" || number.section == "calls";
    members.emplace_back(number.name,
                         is_whole ? Json(static_cast<std::int64_t>(number.value)) : Json(number.value));
    sections.back().second = Json::object(members);
  }
  if (machine_ != nullptr) sections.emplace_back("machine", machine_->name);
  std::vector<Json> texts;
  for (const std::string& what : assumed()) texts.emplace_back(what);
  sections.emplace_back("assumed", Json::array(texts));
  return Json::object(sections);
}

std::string PlanReport::csv() const {
  std::string text = "section,name,value,unit\n";
  for (const Number& number : numbers())
    text += fmt::format("{},{},{},{}\n", number.section, number.name, number.value, number.unit);
  if (machine_ != nullptr) text += fmt::format("machine,{},,\n", quoted(machine_->name));
  for (const std::string& what : assumed()) text += fmt::format("assumed,{},,\n", quoted(what));
  return text;
}

void PlanReport::write_traces(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  std::vector<std::string> events;
  for (const PlayedStep::Lane& lane : played_.lanes) events.push_back(chrome_events(lane.events, lane.rank));
  TraceSummary summary;
  summary.profile.seconds = played_.step;
  for (const auto& [name, operation] : played_.busiest().operations) {
    summary.profile.operations.push_back({.label = name,
                                          .kind = TraceKind::operation,
                                          .calls = operation.calls,
                                          .seconds = operation.seconds});
  }
  write_chrome_trace(folder / planned_trace, events, summary);
}

}  // namespace mylos
