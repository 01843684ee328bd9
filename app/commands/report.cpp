// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/report.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "app/commands/commands.hpp"
#include "app/deck/unchecked_deck.hpp"
#include "app/text/plan_text.hpp"
#include "app/train/run_state.hpp"
#include "app/train/step_record.hpp"
#include "app/train/tensorboard.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "core/memory/memory_ledger.hpp"
#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/deck/deck.hpp"
#include "io/json.hpp"
#include "io/report/chrome_trace.hpp"
#include "io/report/html_report.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/tokens/data_sources.hpp"

namespace mylos {

namespace {

std::string last_of(const MetricsTable& table, const char* column, const char* format) {
  const auto found = table.find(column);
  if (found == table.end() || found->second.empty() || std::isnan(found->second.back())) return "";
  return fmt::format(fmt::runtime(format), found->second.back());
}

/// Returns the summary of the last step whose trace can be read; empty if there is none.
TraceSummary newest_summary(const RunPaths& paths) {
  const auto traces = traces_of(paths);
  for (auto trace = traces.rbegin(); trace != traces.rend(); ++trace) {
    if (std::optional<TraceSummary> summary = read_summary(trace->second)) return *std::move(summary);
    say(stderr, "warning: {} is not a whole trace; the report leaves it out\n", trace->second.string());
  }
  return {};
}

/// Returns a label and a description of each source of training data.
std::vector<std::pair<std::string, std::string>> source_facts(const std::string& deck_text,
                                                              const MetricsTable& steps) {
  const UncheckedDeck deck(deck_text);
  if (!deck.has("data.train")) return {};
  std::vector<std::pair<std::string, std::string>> facts;
  try {
    const std::vector<DataSource> sources = parse_sources(deck.text("data.train"));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::string epochs = last_of(steps, epochs_column(i).c_str(), ", {:.3g} epochs");
      facts.emplace_back(sources.size() == 1 ? "data" : fmt::format("data source {}", i + 1),
                         sources[i].text + epochs);
    }
  } catch (const Error&) {  // the deck of an older run may not be valid
  }
  return facts;
}

/// Where the run's weights began: as its newest checkpoint says or, if there is none that says it, the deck.
std::string initial_weights(const RunPaths& paths, const std::string& deck_text) {
  try {
    const std::vector<std::int64_t> steps = list_steps(paths.checkpoints());
    if (!steps.empty()) {
      const std::int64_t step = std::ranges::max(steps);
      const std::filesystem::path file = paths.checkpoints() / step_name(step) / "state.json";
      const RunState state = parse_state(read_text_file(file), file.string(), step);
      return state.initial ? state.initial->text() : "random";
    }
  } catch (const Error&) {  // a damaged checkpoint
  }
  const std::string init = UncheckedDeck(deck_text).text("model.init");
  return init.empty() ? "random" : init;
}

/// Throws ExitCode::bad_data, naming what is there, if `paths` are not those of a run.
void check_run(const RunPaths& paths) {
  std::error_code unknown;
  if (std::filesystem::exists(paths.metrics(), unknown)) return;
  const std::string present = what_is_at(paths.root);
  if (present == "nothing") fail(ExitCode::bad_data, "{} does not exist", paths.root.string());
  fail(ExitCode::bad_data, "{} holds no run: there is {}, and at {} {}", paths.root.string(), present,
       paths.metrics().string(), what_is_at(paths.metrics()));
}

}  // namespace

void write_report(IoThread& io, const RunPaths& paths, const std::filesystem::path& output) {
  check_run(paths);
  ReportData data;
  data.title = paths.root.filename().empty() ? paths.root.parent_path().filename() : paths.root.filename();
  data.steps = read_metrics(io, paths.metrics(), "steps");
  data.evaluations = read_metrics(io, paths.metrics(), "eval");
  data.choices = read_metrics(io, paths.metrics(), "choices");
  data.launches = read_metrics(io, paths.metrics(), "launches");
  data.checkpoints = read_metrics(io, paths.metrics(), "checkpoints");
  if (std::filesystem::exists(paths.resolved_deck())) data.deck_text = read_text_file(paths.resolved_deck());

  Json status;
  if (std::filesystem::exists(paths.status())) {
    status = Json::parse_if_whole(read_text_file(paths.status())).value_or(Json());
  }
  const auto said = [&](const char* key, const std::string& otherwise) {
    return status.has(key) ? status.text(key) : otherwise;
  };
  const std::int64_t cores = status.has("cores") ? status.integer("cores") : 0;
  data.facts = {
      {"status", said("state", "unknown: there is no whole status.json")},
      {"run directory", paths.root.string()},
      {"host of rank 0", said("host", "unknown")},
      {"processor", said("processor", "unknown")},
      {"cores", cores > 0 ? std::to_string(cores) : "unknown"},
      {"ranks", last_of(data.launches, "ranks", "{:.0f}")},
      {"threads per rank", last_of(data.launches, "threads", "{:.0f}")},
      {"peak that MFU refers to", last_of(data.launches, "peak_tflops", "{:.3g} TFLOP/s per rank")},
      {"MFU counts", "6N + 12LCT FLOPs per token" + flops_note(data.steps.contains("largest_load"),
                                                               data.steps.contains("predictor_hits"))},
      {"mylos", fmt::format("{} ({})", said("mylos", "unknown"), said("git", "unknown"))},
      {"initial weights", initial_weights(paths, data.deck_text)}};
  for (auto& fact : source_facts(data.deck_text, data.steps)) data.facts.push_back(std::move(fact));
  for (int i = 0; i < num_memory_categories; ++i) {
    const std::string name(name_of(static_cast<MemoryCategory>(i)));
    const auto column = data.steps.find("memory_" + name);
    if (column != data.steps.end() && !column->second.empty()) {
      data.memory_bytes.emplace_back(name, column->second.back());
    }
  }
  TraceSummary traced = newest_summary(paths);
  data.profile = std::move(traced.profile);
  data.diagram = std::move(traced.diagram);
  write_output(output, html_report(data));
}

namespace {

std::vector<CommandOption> options() {
  return {
      {"output", OptionKind::text,
       "file to write; RUN/report.html by default. With --tensorboard: folder; RUN/tensorboard by default"},
      {"tensorboard", OptionKind::flag,
       "instead of the report, write the run's metrics as TensorBoard's events"}};
}

/// Writes the events of a run into RUN/tensorboard or the folder that the user names.
int report_events(const CommandLine& line, const RunPaths& paths) {
  const std::filesystem::path folder =
      line.has("output") ? expand_path(line.text("output")) : paths.tensorboard().string();
  if (folder.empty()) fail(ExitCode::usage, "--output is empty; name a folder");
  if (const std::string_view own = own_kind(folder); !own.empty())
    fail(ExitCode::usage, "--output={} is a {}; name another folder", folder.string(), own);
  const std::filesystem::path inside = place_of(folder).lexically_relative(place_of(paths.root));
  if (!inside.empty() && *inside.begin() != ".." && !is_same_file(folder, paths.tensorboard()))
    fail(ExitCode::usage, "--output={} is within the run; name another folder", folder.string());
  const std::string holder = run_lock_holder(paths.root);
  if (!holder.empty() && is_same_file(folder, paths.tensorboard()))
    fail(ExitCode::usage,
         "{} is in use by {}: if its deck has [metrics] tensorboard, it writes events itself; for others, "
         "name "
         "a folder with --output",
         paths.root.string(), holder);
  IoThread io;
  for (const std::filesystem::path& file : write_events(io, paths, folder)) fmt::print("{}\n", file.string());
  return 0;
}

int run(const CommandLine& line) {
  const RunPaths paths{line.argument(0, "a run directory")};
  check_run(paths);
  if (line.flag("tensorboard")) return report_events(line, paths);
  const std::filesystem::path output =
      follow_links(line.has("output") ? expand_path(line.text("output")) : paths.report().string());
  if (output.empty()) fail(ExitCode::usage, "--output is empty; name a file");
  std::error_code error;
  const std::filesystem::path inside = place_of(output).lexically_relative(place_of(paths.root));
  const bool is_below = !inside.empty() && *inside.begin() != ".." && inside.has_parent_path();
  const bool is_reserved = output.filename() == "lock" || output.extension() == ".tmp";
  const std::string_view own = own_kind(output);
  const bool is_report = is_same_file(output, paths.report());
  if (!is_report && (is_below || is_reserved || own == "run's file" || own == "checkpoint's file"))
    fail(ExitCode::usage, "--output={} is a file of the run; name another", output.string());
  const bool is_stream = std::filesystem::is_other(output, error);
  if (!is_stream) try_output(output);
  const auto written = [&] {
    return std::filesystem::is_regular_file(output, error) ? read_text_file(output) : "";
  };
  const std::string before = written();
  IoThread io;
  write_report(io, paths, output);
  if (!is_stream) fmt::print("{}{}\n", output.string(), before == written() ? ": unchanged" : "");
  return 0;
}

}  // namespace

const Command report_command{
    .name = "report",
    .arguments = "RUN",
    .summary = "write the report of a run, RUN/report.html, or its metrics for TensorBoard",
    .options = options,
    .run = run,
    .processes = Processes::only};

}  // namespace mylos
