// SPDX-License-Identifier: BSD-3-Clause
#include "app/report.hpp"

#include <fstream>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "core/memory_ledger.hpp"
#include "core/version.hpp"
#include "io/html_report.hpp"

namespace mylos {

namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string last_of(const MetricsTable& table, const char* column, const char* format) {
  const auto found = table.find(column);
  if (found == table.end() || found->second.empty()) return "";
  return fmt::format(fmt::runtime(format), found->second.back());
}

}  // namespace

void write_report(IoThread& io, const RunPaths& paths, const std::filesystem::path& output) {
  if (!std::filesystem::exists(paths.metrics())) {
    fail(ExitCode::bad_data, "{} holds no run: {} is missing", paths.root.string(), paths.metrics().string());
  }
  ReportData data;
  data.title = paths.root.filename().empty() ? paths.root.parent_path().filename() : paths.root.filename();
  data.steps = read_metrics(io, paths.metrics(), "steps");
  data.evaluations = read_metrics(io, paths.metrics(), "eval");
  data.launches = read_metrics(io, paths.metrics(), "launches");
  if (std::filesystem::exists(paths.resolved_deck())) data.deck_text = read_text_file(paths.resolved_deck());

  std::string status = "running";
  if (std::filesystem::exists(paths.status())) {
    const auto json = nlohmann::json::parse(read_text_file(paths.status()), nullptr, false);
    if (json.is_object()) status = json.value("state", status);
  }
  data.facts = {{"status", status},
                {"run directory", paths.root.string()},
                {"host", host_name()},
                {"processor", processor_name()},
                {"cores online", std::to_string(sysconf(_SC_NPROCESSORS_ONLN))},
                {"ranks", last_of(data.launches, "ranks", "{:.0f}")},
                {"threads a rank", last_of(data.launches, "threads", "{:.0f}")},
                {"peak that MFU refers to", last_of(data.launches, "peak_tflops", "{:.3g} TFLOP/s a rank")},
                {"MFU counts", "6N + 12LCT FLOPs a token"},
                {"mylos", fmt::format("{} ({})", version(), git_hash())}};
  for (int i = 0; i < num_memory_categories; ++i) {
    const std::string name(name_of(static_cast<MemoryCategory>(i)));
    const auto column = data.steps.find("memory_" + name);
    if (column != data.steps.end() && !column->second.empty()) {
      data.memory_bytes.emplace_back(name, column->second.back());
    }
  }
  write_text_file(output, html_report(data));
}

int run_report(const CommandLine& line) {
  const RunPaths paths{line.argument(0, "a run directory")};
  const std::filesystem::path output =
      line.has("output") ? line.get<std::string>("output") : paths.report().string();
  IoThread io;
  write_report(io, paths, output);
  fmt::print("{}\n", output.string());
  return 0;
}

}  // namespace mylos
