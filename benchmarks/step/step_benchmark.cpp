// SPDX-License-Identifier: BSD-3-Clause
// Rates, time by phase and operation, and memory of training steps on random tokens: of a deck, of the DDP
// study's variants (--exchange), or of ddp and the ZeRO stages (--sharding).
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "app/deck/command_line.hpp"
#include "app/launch/launch.hpp"
#include "app/launch/setup.hpp"
#include "app/train/opened_model.hpp"
#include "benchmarks/step/operations_report.hpp"
#include "benchmarks/step/step_ceiling.hpp"
#include "benchmarks/step/step_report.hpp"
#include "core/base/kinds.hpp"
#include "io/file_util.hpp"

namespace {

using namespace mylos;

CommandSyntax syntax() {
  const Repetitions defaults;
  const auto count = [](const char* name, int value, const char* doc) {
    return CommandOption{name, OptionKind::integer, doc, std::to_string(value)};
  };
  const auto flag = [](const char* name, const char* doc) {
    return CommandOption{name, OptionKind::flag, doc};
  };
  const auto text = [](const char* name, const char* doc) {
    return CommandOption{name, OptionKind::text, doc, ""};
  };
  return {.name = "step_benchmark",
          .help = "step_benchmark --help",
          .options = {count("rounds", defaults.rounds, "visits to each configuration, in turn"),
                      count("steps", defaults.steps, "measured steps per visit"),
                      count("warm-up", defaults.warm_up, "steps before the measured ones"),
                      count("traced", defaults.traced,
                            "steps after the measured ones, for the table of time by operation; 0 for none"),
                      flag("exchange", "the ways of averaging gradients of the DDP study, with its figures"),
                      flag("sharding", "ddp, zero1, zero2, zero3, and ddp again as the control"),
                      flag("ceiling",
                           "also measure the ceilings of the deck's matrix products: GEMM and multiply-adds "
                           "on registers"),
                      text("csv", "CSV file to write as well"),
                      text("operations-csv", "CSV file for the time by operation"),
                      text("plugin-path", "folders to search for plugins first, by ':'"),
                      flag("help", "this text")},
          .takes_overrides = true};
}

std::string help_text() {
  return "mpiexec -n RANKS step_benchmark DECK [--section.key=value ...]: training steps "
         "on random tokens; no data files are read\n\n" +
         options_text("Options", syntax().options);
}

int at_least(const CommandLine& line, const char* option, int least) {
  const std::int64_t value = line.integer(option);
  if (value < least || !std::in_range<int>(value))
    fail(ExitCode::usage, "--{}={} is out of range; use at least {}", option, value, least);
  return static_cast<int>(value);
}

/// The deck's configuration with each exchange, then with ddp again. `config` has an exchange that shards, so
/// that the process grid has the group that sharding needs.
std::vector<Configuration> sharded_configurations(const RunConfig& config) {
  std::vector<Configuration> configurations;
  for (const char* name : {"ddp", "zero1", "zero2", "zero3", "ddp"}) {
    const bool is_control = std::string_view(name) == "ddp" && !configurations.empty();
    configurations.push_back({is_control ? "ddp (control)" : name, config});
    configurations.back().config.parallel.exchange = &find_kind(exchanges(), name);
  }
  return configurations;
}

/// The deck's configuration with each variant of the DDP study.
std::vector<Configuration> studied_configurations(const RunConfig& config) {
  if (config.parallel.data < 2) fail(ExitCode::usage, "--exchange needs at least 2 ranks");
  std::vector<Configuration> configurations;
  for (const DdpStudyRow& row : ddp_study) {
    Configuration& own = configurations.emplace_back(Configuration{std::string(row.name), config});
    own.config.parallel.exchange = &find_kind(exchanges(), "ddp");
    own.config.parallel.values.set("parallel.ddp_mode", std::string(row.mode));
    own.config.parallel.values.set("parallel.bucket_mb", row.bucket_mb);
  }
  return configurations;
}

/// Opens `file`, unless its name is empty.
void open_output(std::ofstream& stream, const std::string& file) {
  if (file.empty()) return;
  stream.open(file);
  if (!stream) fail(ExitCode::io, "{} cannot be written", file);
}

/// Adds the keys that a deck must have and a benchmark does not use.
DeckOverrides with_unused_keys(DeckOverrides overrides) {
  for (const char* key : {"data.train", "run.dir"}) {
    const auto names_it = [&](const auto& given) { return given.first == key; };
    if (std::ranges::none_of(overrides, names_it)) overrides.emplace_back(key, "none");
  }
  return overrides;
}

int run(const Launch& launch, int argc, char** argv) {
  const MpiRuntime& mpi = launch.mpi();
  // 1. The command line and the deck: all ranks learn of an error together.
  CommandLine line;
  Repetitions repetitions;
  std::string deck_name;
  std::string deck_text;
  Setup setup;
  std::vector<Configuration> configurations;
  std::ofstream csv;
  std::ofstream operations;
  const auto read_command_line = [&] {
    line = parse_words(syntax(), {argv + 1, argv + argc});
    if (line.flag("help")) return;
    repetitions = {.rounds = at_least(line, "rounds", 1),
                   .steps = at_least(line, "steps", 1),
                   .warm_up = at_least(line, "warm-up", 0),
                   .traced = at_least(line, "traced", line.text("operations-csv").empty() ? 0 : 1)};
    deck_name = line.argument(0, "a deck");
    if (mpi.rank() == 0) deck_text = read_deck(deck_name);
  };
  const auto read_everything = [&] {
    DeckOverrides overrides = with_unused_keys(line.overrides);
    if (line.flag("sharding")) overrides.emplace_back("parallel.exchange", "zero3");
    setup = make_setup(deck_text, deck_name, overrides, line.text("plugin-path"), mpi.job(), shape_at);
    setup.choose(mpi.size(), mpi.thread_limits());
    configurations = {{"deck", setup.config}};
    if (line.flag("exchange")) configurations = studied_configurations(setup.config);
    if (line.flag("sharding")) configurations = sharded_configurations(setup.config);
    if (mpi.rank() != 0) return;
    open_output(csv, line.text("csv"));
    open_output(operations, line.text("operations-csv"));
  };
  launch.agree(read_command_line);
  if (line.flag("help")) {
    if (mpi.rank() == 0) fmt::print("{}", help_text());
    return 0;
  }
  deck_text = mpi.broadcast(deck_text);
  launch.agree(read_everything);
  launch.adopt(setup);

  return launch.run([&] {
    // 2. Backends: from here an error of one rank ends the job.
    Session session(setup.plugins, setup.config, setup.values, mpi.recorder());
    const double peak = setup.config.peak_tflops > 0.0
                            ? setup.config.peak_tflops
                            : measure_gemm_tflops(session, setup.config.train.dtype);

    // 3. Measure.
    const ModelConfig& model = setup.config.model;
    if (line.flag("ceiling") && (model.experts.count > 0 || model.depths.capacity > 0.0))
      fail(ExitCode::usage, "--ceiling: the ceiling is that of the products of dense blocks");
    const StepCeiling ceiling = line.flag("ceiling") ? measure_step_ceiling(setup.config) : StepCeiling{};
    const std::vector<Measurement> measurements = measure(session, configurations, repetitions);

    // 4. Report.
    if (mpi.rank() == 0) {
      std::vector<ReportRow> rows;
      for (std::size_t i = 0; i < configurations.size(); ++i) {
        rows.push_back({configurations[i], measurements[i], line.flag("exchange") ? &ddp_study[i] : nullptr});
      }
      const ReportContext context{mpi.size(), session.compute().description(), peak, ceiling};
      fmt::print("{}", step_tables(rows, context));
      if (line.flag("ceiling")) fmt::print("\n{}", ceiling_table(rows, context));
      if (line.flag("exchange")) fmt::print("\n{}", exchange_table(rows));
      if (repetitions.traced > 0) {
        for (const ReportRow& row : rows) fmt::print("\n{}", operations_table(row));
      }
      if (csv.is_open()) csv << step_csv(rows, context) << std::flush;
      if (operations.is_open()) operations << operations_csv(rows) << std::flush;
      if (!csv || !operations) fail(ExitCode::io, "the CSV files cannot be written");
    }
    session.world().barrier();
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return with_launch(MpiRuntime::default_start_timeout,
                       [&](const Launch& launch) { return run(launch, argc, argv); });
  } catch (const std::exception& error) {
    fmt::print(stderr, "step_benchmark: {}\n", error.what());
    const auto* known = dynamic_cast<const mylos::Error*>(&error);
    return static_cast<int>(known != nullptr ? known->code() : mylos::ExitCode::internal);
  }
}
