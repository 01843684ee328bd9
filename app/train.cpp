// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include <mpi.h>

#include "app/commands.hpp"
#include "app/plan.hpp"
#include "app/report.hpp"
#include "app/setup.hpp"
#include "app/trainer.hpp"

namespace mylos {

namespace {

int dry_run(const CommandLine& line, const std::string& deck) {
  const std::int64_t ranks = line.has("ranks") ? line.get<int>("ranks") : 0;
  DeckErrors errors;
  std::int64_t world = ranks;
  if (world <= 0) {
    // Without --ranks the deck's own layout counts, one rank where it leaves that open.
    world = 1;
    for (const auto& [key, value] : line.overrides) {
      if (key == "parallel.data") world = std::max(1, std::atoi(value.c_str()));
    }
    const Deck scanned = Deck::read(deck, errors);
    const DeckEntry* data = scanned.find("parallel.data");
    if (world == 1 && data != nullptr) world = std::max(1, std::atoi(data->value.c_str()));
  }
  const Setup setup =
      make_setup(read_text_file(deck), deck, line.overrides, line.get<std::string>("plugin-path"), world);
  fmt::print("{}", plan_text(setup.config, make_plan(setup.config)));
  return 0;
}

/// "newest" or "step_N"; throws ExitCode::usage otherwise.
std::optional<std::string> restart_wish(const CommandLine& line) {
  if (!line.has("restart")) return std::nullopt;
  const std::string wish = line.get<std::string>("restart");
  const bool named = wish.starts_with("step_") && wish.size() > 5 &&
                     wish.find_first_not_of("0123456789", 5) == std::string::npos;
  if (wish != "newest" && !named) fail(ExitCode::usage, "--restart={} must be step_N", wish);
  return wish;
}

/// The automatic choices of the run that is continued, where its layout is the same: for a bitwise restart.
void keep_choices(Setup& setup, const RunPaths& paths) {
  if (!std::filesystem::exists(paths.resolved_deck())) return;
  DeckErrors ignored;
  const Deck before = Deck::read(paths.resolved_deck(), ignored);
  const auto value = [&](const char* key) {
    const DeckEntry* entry = before.find(key);
    return entry != nullptr ? entry->value : std::string();
  };
  if (value("parallel.data") != std::to_string(setup.config.parallel.data)) return;
  BackendConfig& backend = setup.config.backend;
  if (backend.compute == "auto" && !value("backend.compute").empty())
    backend.compute = value("backend.compute");
  if (backend.comm == "auto" && !value("backend.comm").empty()) backend.comm = value("backend.comm");
  if (backend.threads == 0) backend.threads = std::atoll(value("backend.threads").c_str());
}

void print_header(Console& console, const Setup& setup, Session& session, double peak_tflops) {
  const RunConfig& c = setup.config;
  const RunPlan plan = make_plan(c);
  console.line(fmt::format("mylos: {} parameters, {} ranks x {} threads, {} ({}), {}", plan.parameters,
                           session.size(), c.backend.threads, c.backend.compute,
                           session.compute().description(), c.backend.comm));
  console.line(fmt::format(
      "       {} steps x {} tokens, {}, {:.3f} GB a rank planned; MFU refers to {:.3f} TFLOP/s a rank, {}",
      c.train.steps, plan.tokens_per_step, name_of(c.train.dtype),
      1e-9 * static_cast<double>(plan.memory_total()), peak_tflops,
      c.peak_tflops > 0.0 ? "from the deck" : "a measured matrix product"));
}

}  // namespace

int run_train(const CommandLine& line) {
  const std::string deck_name = line.argument(0, "a deck");
  if (line.get<bool>("dry-run")) return dry_run(line, deck_name);
  if (line.has("ranks"))
    fail(ExitCode::usage, "--ranks is for --dry-run; the launcher says how many ranks train");

  // 1. MPI, the deck, the run's directory: errors are found by all ranks together.
  const auto launched = std::chrono::steady_clock::now();
  const MpiRuntime mpi;
  Setup setup;
  std::optional<std::string> restart;
  ProgressStyle progress = ProgressStyle::automatic;
  std::optional<RunDirectory> directory;
  Fault fault;
  std::string deck_text;
  const auto read_everything = [&] {
    restart = restart_wish(line);
    progress = progress_style(line.get<std::string>("progress"));
    fault = Fault::from_environment(mpi.rank());
    setup =
        make_setup(deck_text, deck_name, line.overrides, line.get<std::string>("plugin-path"), mpi.size());
    DeckErrors errors;
    check_token_files(setup.deck, setup.config, errors);
    errors.throw_if_any();
    if (restart) keep_choices(setup, {setup.config.run_dir});
    setup.choose(mpi.size(), mpi.local_size());
  };
  if (const int code = run_agreed(mpi, [&] {
        if (mpi.rank() == 0) deck_text = read_text_file(deck_name);
      }))
    return code;
  deck_text = mpi.broadcast(deck_text);
  if (const int code = run_agreed(mpi, read_everything)) return code;
  const RunPaths paths{setup.config.run_dir};
  const auto take_directory = [&] {
    if (mpi.rank() == 0) directory.emplace(paths.root, restart.has_value());
  };
  if (const int code = run_agreed(mpi, take_directory)) return code;

  // 2. Backends, trainer, watchdog: from here on an error of one rank ends the job.
  const StopSignals signals;
  Console console(mpi.rank() == 0, progress);
  const std::string resolved_deck = setup.resolved_deck();
  std::unique_ptr<IoThread> io;
  std::unique_ptr<Session> session;
  std::unique_ptr<Trainer> trainer;
  const auto record = [&](ExitCode code, const std::string& message) {
    write_status(paths, "failed", code, trainer ? trainer->step() : 0, message);
  };
  try {
    io = std::make_unique<IoThread>();
    session = std::make_unique<Session>(setup.plugins, setup.config, setup.values);
    session->watch(setup.config, [&](const std::string& reason) {
      record(ExitCode::watchdog, reason);
      MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::watchdog));
    });
    const double peak = setup.config.peak_tflops > 0.0
                            ? setup.config.peak_tflops
                            : measure_gemm_tflops(*session, setup.config.train.dtype);
    if (mpi.rank() == 0) {
      write_text_file(paths.resolved_deck(), resolved_deck);
      write_status(paths, "running", ExitCode::done, 0, "");
    }
    print_header(console, setup, *session, peak);
    trainer = std::make_unique<Trainer>(TrainerContext{*session, *io, setup.config, resolved_deck, paths,
                                                       console, fault, signals, launched, peak});

    // 3. Train.
    trainer->start(restart);
    const TrainResult result = trainer->run();

    // 4. Say how it ended.
    if (mpi.rank() == 0) {
      write_status(paths, result.state, result.code, result.step, result.message);
      trainer.reset();
      IoThread& reader = *io;
      write_report(reader, paths, paths.report());
    }
    console.line(fmt::format("{} at step {}{}{}", result.state, result.step,
                             result.message.empty() ? "" : ": ", result.message));
    if (result.code != ExitCode::done && mpi.rank() == 0) {
      fmt::print(stderr, "mylos: {}\n", result.message);
    }
    session->world().barrier();
    return static_cast<int>(result.code);
  } catch (const std::exception& error) {
    end_job(mpi, error, record);
  }
}

}  // namespace mylos
