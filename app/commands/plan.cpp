// SPDX-License-Identifier: BSD-3-Clause
#include <system_error>

#include "app/commands/commands.hpp"
#include "app/inference/inference.hpp"
#include "app/text/plan_files.hpp"
#include "app/text/plan_report.hpp"
#include "app/text/plan_run.hpp"
#include "app/text/plan_text.hpp"
#include "app/text/planned_setup.hpp"
#include "app/text/schedule_text.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/say.hpp"
#include "io/file_util.hpp"
#include "parallel/schedule/schedule_file.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {
      {"machine", OptionKind::text,
       "machine file to reckon times with; by default [machine] file of the deck"},
      {"ranks", OptionKind::integer, "number of ranks to plan for; " + default_ranks_text()},
      {"ranks-per-node", OptionKind::integer,
       "number of ranks per node; by default that of the machine file or, without one, all"},
      {"layout", OptionKind::flag, "also print what each rank holds, one line per rank"},
      {"schedule", OptionKind::flag,
       "also print a simulated step of the stages: figures of each, makespan, bubble and a diagram"},
      {"pass-times", OptionKind::text,
       "F,I,W, the times of a chunk's passes (forward, input and weight gradients) instead of the model's"},
      {"write-schedule", OptionKind::text,
       "write the passes of a step to this file, for parallel.schedule_file or PyTorch"},
      {"json", OptionKind::flag, "print the numbers as JSON"},
      {"csv", OptionKind::flag, "print the numbers as a table in CSV"},
      {"trace", OptionKind::text,
       "write the planned step to trace-0.json in this folder, as a traced run does"},
  };
}

int plan_deck(const CommandLine& line, const std::string& name) {
  Setup setup = setup_on_machine(line, name);
  if (line.has("pass-times")) set_pass_times(setup.config, line.text("pass-times"));
  std::filesystem::path list;
  if (line.has("write-schedule")) {
    check_is_one_step(setup.config);
    list = output_file(line, "write-schedule", inputs_of(setup, name));
  }
  std::filesystem::path traces;
  if (line.has("trace")) {
    traces = expand_path(line.text("trace"));
    if (traces.empty()) fail(ExitCode::usage, "--trace is empty; name a folder");
    std::error_code error;
    std::filesystem::create_directories(traces, error);
    try_output(traces / planned_trace);
  }
  const PlanReport report(setup, line.has("trace"));
  if (line.flag("json")) {
    fmt::print("{}\n", report.json().dump(2));
  } else if (line.flag("csv")) {
    fmt::print("{}", report.csv());
  } else {
    fmt::print("{}", report.text());
    if (line.flag("layout")) fmt::print("\n{}", layout_text(setup.config));
    if (line.flag("schedule")) fmt::print("\n{}\n", simulation_text(setup.config, plans_of(setup)));
    fmt::print("{}", files_text(setup, std::nullopt));
  }
  if (!list.empty()) write_output(list, schedule_text(passes_of_step(setup.config)));
  if (line.has("trace")) report.write_traces(traces);
  return 0;
}

int run(const CommandLine& line) {
  const std::string& name = line.argument(0, "a deck or a run");
  if (line.flag("json") && line.flag("csv")) fail(ExitCode::usage, "--json and --csv: choose one");
  CommandLine own = line;
  if (line.has("machine")) {
    if (line.text("machine").empty()) fail(ExitCode::usage, "--machine needs the name of a machine file");
    own.overrides.emplace_back("machine.file", line.text("machine"));
  }
  std::error_code unknown;
  if (std::filesystem::is_directory(name, unknown)) {
    for (const char* option : {"json", "csv", "layout", "schedule"}) {
      if (line.flag(option))
        fail(ExitCode::usage, "--{} is for the plan of a deck; plan {}", option, name + "/resolved.deck");
    }
    for (const char* option : {"pass-times", "write-schedule", "trace", "ranks"}) {
      if (line.has(option))
        fail(ExitCode::usage, "--{} is for the plan of a deck; plan {}", option, name + "/resolved.deck");
    }
    return plan_run(own, name);
  }
  return plan_deck(own, name);
}

}  // namespace

const Command plan_command{
    .name = "plan",
    .arguments = "DECK|RUN",
    .summary = "what a deck's run needs and takes on a machine, or how a run compares with its plan",
    .options = options,
    .run = run,
    .takes_overrides = true,
    .processes = Processes::first};

}  // namespace mylos
