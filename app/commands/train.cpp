// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>

#include <mpi.h>

#include "app/commands/commands.hpp"
#include "app/commands/report.hpp"
#include "app/inference/inference.hpp"
#include "app/launch/launch.hpp"
#include "app/launch/launcher.hpp"
#include "app/text/plan_files.hpp"
#include "app/text/plan_text.hpp"
#include "app/text/planned_setup.hpp"
#include "app/text/run_header.hpp"
#include "app/text/schedule_text.hpp"
#include "app/train/continued_run.hpp"
#include "app/train/run_inputs.hpp"
#include "app/train/trainer.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "io/agree.hpp"
#include "parallel/schedule/schedule_file.hpp"

namespace mylos {

namespace {

int dry_run(const CommandLine& line, const std::string& name) {
  const std::optional<std::string> restart = parse_restart(line);
  Setup setup = planned_setup(line, name, restart ? shape_to_continue : shape_at);
  if (line.has("pass-times")) set_pass_times(setup.config, line.text("pass-times"));
  std::filesystem::path list;
  if (line.has("write-schedule")) {
    check_is_one_step(setup.config);
    list = output_file(line, "write-schedule", inputs_of(setup, name));
  }
  std::vector<std::string> notes;
  note_past_end(setup, notes);
  for (const std::string& note : notes) say(stderr, "mylos: {}\n", note);
  const std::vector<RunPlan> plans = plans_of(setup);
  fmt::print("{}", plan_text(setup.config, largest_of(plans)));
  if (line.flag("layout")) fmt::print("\n{}", layout_text(setup.config));
  if (line.flag("schedule")) fmt::print("\n{}\n", simulation_text(setup.config, plans));
  if (!list.empty()) write_output(list, schedule_text(passes_of_step(setup.config)));
  fmt::print("{}", files_text(setup, restart));
  if (std::fflush(stdout) != 0) fail(ExitCode::io, "the plan cannot be printed");
  return 0;
}

/// Prints the run's directory, for scripts that look for its status. Needs nothing else of the deck.
int print_directory(const CommandLine& line, const std::string& deck_name, bool restart) {
  DeckErrors errors;
  Setup setup;
  setup.deck = Deck::parse(read_deck(deck_name), deck_name, errors);
  for (const auto& [key, value] : line.overrides) setup.deck.set(key, value, errors);
  errors.throw_if_any();
  const DeckEntry* entry = setup.deck.find("run.dir");
  if (entry == nullptr || entry->value.empty()) fail(ExitCode::usage, "{}: [run] dir is missing", deck_name);
  setup.config.run_dir = expand_path(entry->value);
  if (restart) find_from_folder(setup, deck_name);
  fmt::print("{}\n", setup.config.run_dir);
  if (std::fflush(stdout) != 0) fail(ExitCode::io, "the run's directory cannot be printed");
  return 0;
}

std::vector<CommandOption> options() {
  return {
      {"restart",
       OptionKind::text,
       "continue from the newest undamaged checkpoint, or from step N with --restart=step_N",
       {},
       "newest"},
      {"print-dir", OptionKind::flag, "print the run's directory and stop; needs no launcher"},
      {"dry-run", OptionKind::flag, "check the deck, print the plan and stop; needs no launcher"},
      {"ranks", OptionKind::integer,
       "with --dry-run: the number of ranks to plan for; " + default_ranks_text()},
      {"ranks-per-node", OptionKind::integer,
       "with --dry-run: the number of ranks per node; by default all ranks are on one node"},
      {"layout", OptionKind::flag, "with --dry-run: also print what each rank holds, one line per rank"},
      {"schedule", OptionKind::flag,
       "with --dry-run: also print a simulated step: figures of each stage, makespan, bubble and a diagram"},
      {"pass-times", OptionKind::text,
       "with --dry-run: F,I,W, the times of a chunk's passes (forward, input and weight gradients) instead "
       "of "
       "the model's"},
      {"write-schedule", OptionKind::text,
       "with --dry-run: write the passes of a step to this file, for parallel.schedule_file or PyTorch"},
      {.name = "progress",
       .kind = OptionKind::text,
       .doc = "how progress is shown on the console: auto, live, plain or none",
       .default_value = "auto",
       .choices = "auto|live|plain|none",
       .may_differ = true},
  };
}

/// Writes the report of a run that has ended, on rank 0; without one if that fails.
void report_run(IoThread& io, const RunPaths& paths, Console& console) {
  try {
    write_report(io, paths, paths.report());
  } catch (const std::exception& error) {
    std::error_code ignored;
    std::filesystem::remove(paths.report(), ignored);  // of an earlier launch
    console.warn(fmt::format("no report: {}", error_of(error).what()));
  }
}

int train(const Launch& launch, const CommandLine& line, const LaunchTime& launched) {
  // 1. Start the threads that write files. These and the one that reads samples start before OpenMP: if its
  // variables request binding, it binds this thread to a core, which threads started later would share.
  IoThread io;
  IoThread checkpoint_io;

  // 2. Read the deck and the data, and agree on backends.
  RunInputs inputs = read_inputs(launch, line);
  Setup& setup = inputs.setup;
  launch.adopt(setup);

  // 3. Open the model with whose weights the run begins, and take the run's directory.
  open_initial(launch, inputs, io);
  const StopSignals signals;
  const TakenDirectory taken = take_directory(launch, inputs, signals);
  const RunPaths paths = inputs.paths();
  Console console(launch.is_first(), progress_style(line.text("progress")));

  // From here on, an error on one rank ends the job.
  const auto step = std::make_shared<std::atomic<std::int64_t>>(0);
  const auto record = [paths, step](ExitCode code, const std::string& message) {
    write_status(paths, "failed", code, *step, message);
  };
  launch.mpi().watchdog().set_record(record);
  std::string resolved_deck;
  std::optional<SampleStream> samples;
  std::unique_ptr<Session> session;
  std::unique_ptr<Trainer> trainer;
  return launch.run(
      [&] {
        // 4. Begin to read samples; make the backends and the communicators.
        const TrainConfig& config = setup.config.train;
        samples.emplace(*std::move(inputs.train_data), config.micro_batch, config.sample_stride());
        session =
            std::make_unique<Session>(setup.plugins, setup.config, setup.values, launch.mpi().recorder());
        setup.config.comm.algorithm = session->algorithm();
        setup.values.set("comm.algorithm", session->algorithm());
        resolved_deck = setup.resolved_deck();
        const double peak = setup.config.peak_tflops > 0.0
                                ? setup.config.peak_tflops
                                : measure_gemm_tflops(*session, setup.config.train.dtype);
        print_header(console, launch.mpi(), setup, *session, peak);

        // 5. Make the trainer, with initial weights or those of a checkpoint.
        trainer = std::make_unique<Trainer>(TrainerContext{
            *session, io, checkpoint_io, setup.config, resolved_deck, setup.specs, paths, console,
            inputs.fault, signals, launched, peak, *samples, std::move(inputs.valid_data), inputs.tokenizer,
            inputs.data_seconds, *step, std::move(inputs.choices), std::move(inputs.initial)});
        trainer->start(inputs.restart);
        // No rank begins a step, and may fail in it, before the status says that the run goes on.
        run_collectively(MPI_COMM_WORLD, [&] {
          if (!launch.is_first()) return;
          if (!taken.removed.empty()) {
            console.warn(fmt::format("removed from {} what is of an earlier run: {}", paths.root.string(),
                                     join(taken.removed, ", ")));
          }
          write_text_file(paths.resolved_deck(), resolved_deck);
          write_status(paths, "running", std::nullopt, *step, "");
        });

        // 6. Train.
        const TrainResult result = trainer->run();

        // 7. Say how the run ended.
        launch.mpi().watchdog().set_record(nullptr);
        if (launch.is_first()) {
          write_status(paths, result.state, result.code, result.step, result.message);
          trainer.reset();
          report_run(io, paths, console);
        }
        console.line(fmt::format("{} at step {}{}{}", result.state, result.step,
                                 result.message.empty() ? "" : ": ", result.message));
        if (result.code != ExitCode::done && launch.is_first()) say(stderr, "mylos: {}\n", result.message);
        session->world().barrier();
        return static_cast<int>(result.code);
      },
      record);
}

int run(const CommandLine& line) {
  const std::string deck_name = line.argument(0, "a deck");
  const std::optional<std::string> restart = parse_restart(line);
  progress_style(line.text("progress"));
  if (line.flag("print-dir"))
    return launched_rank() > 0 ? 0 : print_directory(line, deck_name, restart.has_value());
  if (line.flag("dry-run")) return launched_rank() > 0 ? 0 : dry_run(line, deck_name);
  if (line.has("ranks") || line.has("ranks-per-node") || line.flag("layout"))
    fail(ExitCode::usage,
         "--ranks, --ranks-per-node and --layout are for --dry-run; for training, the launcher sets the "
         "number of ranks");
  if (line.flag("schedule") || line.has("pass-times") || line.has("write-schedule"))
    fail(ExitCode::usage, "--schedule, --pass-times and --write-schedule are for --dry-run");
  const LaunchTime launched;
  std::signal(SIGPIPE, SIG_IGN);  // the process that reads a long run's output may end first
  return with_launch(start_timeout(line, deck_name),
                     [&](const Launch& launch) { return train(launch, line, launched); });
}

}  // namespace

const Command train_command{.name = "train",
                            .arguments = "DECK|-",
                            .summary = "train from an input deck; --section.name=value overrides the deck",
                            .options = options,
                            .run = run,
                            .takes_overrides = true,
                            .may_lose_output = true};

}  // namespace mylos
