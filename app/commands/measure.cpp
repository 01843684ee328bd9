// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>

#include "app/commands/commands.hpp"
#include "app/commands/measure_machine.hpp"
#include "app/deck/machine_file.hpp"
#include "app/launch/launch.hpp"
#include "app/launch/session.hpp"
#include "app/text/planned_setup.hpp"
#include "app/train/opened_model.hpp"
#include "core/base/clock.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/say.hpp"
#include "core/base/statistics.hpp"
#include "core/base/version.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {
      {.name = "from",
       .kind = OptionKind::text,
       .doc =
           "take the operations from the traced step of this run ([profile] step) instead of measuring them",
       .may_differ = true},
      {"no-grid", OptionKind::flag, "measure the shapes of the decks only, not the grid of other ones"},
      {.name = "steps",
       .kind = OptionKind::integer,
       .doc = "traced steps per deck",
       .default_value = "5",
       .least = 1},
      {.name = "bytes",
       .kind = OptionKind::integer,
       .doc = "largest payload of a collective",
       .default_value = "268435456",
       .least = 1024},
  };
}

/// A model of one block, for the grid of shapes. `parts` are its sizes.
struct GridPoint {
  std::int64_t width = 0;
  std::int64_t batch = 0;
  std::int64_t positions = 0;
  std::int64_t vocab = 0;
};
constexpr GridPoint grid[] = {
    {128, 2, 64, 1024},   {128, 8, 128, 1024},  {256, 1, 128, 8192},  {256, 4, 256, 8192},
    {512, 1, 256, 8192},  {512, 4, 256, 8192},  {768, 1, 256, 50304}, {768, 2, 512, 8192},
    {1024, 1, 256, 8192}, {1024, 2, 512, 8192}, {1600, 1, 256, 8192},
};

std::string deck_of(const GridPoint& point, const std::string& dtype, int ranks) {
  return fmt::format(
      "[model]\nlayers = 1\nheads = {}\nwidth = {}\ncontext = {}\nvocab = {}\n"
      "[train]\nsteps = 1\nglobal_batch = {}\nmicro_batch = {}\nseq_len = {}\ndtype = {}\n"
      "[data]\ntrain = none\n[run]\ndir = none\n",
      point.width / 64, point.width, point.positions, point.vocab, point.batch * ranks, point.batch,
      point.positions, dtype);
}

/// The setup of a deck whose steps have one micro-batch.
Setup setup_of(const MpiRuntime& mpi, const CommandLine& line, const std::string& text,
               const std::string& name, const DeckOverrides& overrides) {
  const auto make = [&](const DeckOverrides& own) {
    return make_setup(text, name, own, line.text("plugin-path"), mpi.job(), shape_at);
  };
  Setup setup = make(overrides);
  const TrainConfig& train = setup.config.train;
  if (train.accumulation > 1 && setup.config.parallel.pipeline == 1) {
    DeckOverrides own = overrides;
    own.emplace_back("train.global_batch", std::to_string(train.global_batch / train.accumulation));
    own.emplace_back("train.micro_batch", std::to_string(train.micro_batch));
    setup = make(own);
  }
  setup.choose(mpi.size(), mpi.thread_limits());
  return setup;
}

/// Throws ExitCode::usage if there is something else than a machine file at `file`; ExitCode::io if it cannot
/// be written.
void check_machine_file(const std::string& file) {
  std::error_code unknown;
  const bool is_empty =
      std::filesystem::is_regular_file(file, unknown) && std::filesystem::file_size(file, unknown) == 0;
  if (std::filesystem::exists(file, unknown) && !is_empty) {
    try {
      read_machine(file);
    } catch (const Error&) {
      fail(ExitCode::usage, "{} exists and is no machine file; name another", file);
    }
  }
  try_output(file);
}

std::string conditions_text(const MpiRuntime& mpi, const Setup& setup, const std::string& compute,
                            double seconds) {
  const std::time_t now = std::time(nullptr);
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return fmt::format(
      "# Measured by mylos {} {} in {:.0f} s, at {}: {} rank{} on {} node{}, {} thread{} each, all at once; "
      "comm {},\n"
      "# compute {}: {}. Times are medians over steps and ranks, in microseconds.\n",
      version(), git_hash(), seconds, date.data(), mpi.size(), mpi.size() == 1 ? "" : "s", mpi.hosts().size(),
      mpi.hosts().size() == 1 ? "" : "s", setup.config.backend.threads,
      setup.config.backend.threads == 1 ? "" : "s", setup.config.backend.comm, setup.config.backend.compute,
      compute);
}

/// The bandwidth of the optimizer on the most elements, in bytes/s.
double bandwidth_of(const Machine& machine) {
  double most = 0.0;
  double bandwidth = 1e10;
  for (const auto& [key, curve] : machine.operations) {
    if (key.first != "adamw" || curve.points().empty() || curve.points().rbegin()->first < most) continue;
    most = curve.points().rbegin()->first;
    bandwidth = most / curve.points().rbegin()->second;
  }
  return bandwidth;
}

std::string file_text(const Machine& machine, const std::string& conditions) {
  std::string text = conditions;
  const double bandwidth = bandwidth_of(machine);
  text += fmt::format("\n[machine]\nname = \"{}\"\n\n[device]\n", machine.name);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    if (const double peak = machine.peak[static_cast<std::size_t>(dtype)]; peak > 0.0)
      text += fmt::format("peak_{} = {:.4g}  # TFLOP/s, the fastest product measured\n", name_of(dtype),
                          1e-12 * peak);
  }
  text += fmt::format("bandwidth = {:.4g}  # GB/s, of the optimizer\n", 1e-9 * bandwidth);
  if (machine.host > 0.0)
    text += fmt::format("host = {0:.3g}\ngraph_host = {0:.3g}\ngraphs = {1}\n", 1e6 * machine.host,
                        machine.has_graphs);
  text += fmt::format("\n[node]\nranks = {}\n", machine.ranks_per_node);
  text += fmt::format("\n[overlap]\ncomputation = {:.3g}\ncommunication = {:.3g}\n",
                      machine.overlap.computation, machine.overlap.communication);
  return text + machine_tables_text(machine);
}

int measure(const Launch& launch, const CommandLine& line) {
  const MpiRuntime& mpi = launch.mpi();
  const std::string file = expand_path(line.argument(0, "the file to write"));
  const std::vector<std::string> decks(line.arguments.begin() + 1, line.arguments.end());
  const auto begin = Clock::now();
  if (line.flag("no-grid") && decks.empty())
    fail(ExitCode::usage, "--no-grid leaves nothing to measure: name a deck");
  std::vector<Setup> setups;
  std::vector<std::string> texts;
  for (const std::string& deck : decks) texts.push_back(launch.share([&] { return read_deck(deck); }));
  MachineMeasurement measured;
  launch.agree([&] {
    if (mpi.rank() == 0) check_machine_file(file);
    std::vector<std::string> dtypes;
    for (std::size_t i = 0; i < decks.size(); ++i) {
      setups.push_back(setup_of(mpi, line, texts[i], decks[i], line.overrides));
      dtypes.emplace_back(name_of(setups.back().config.train.dtype));
    }
    if (dtypes.empty()) dtypes = {"fp32"};
    std::ranges::sort(dtypes);
    dtypes.erase(std::ranges::unique(dtypes).begin(), dtypes.end());
    for (const std::string& dtype : line.flag("no-grid") ? std::vector<std::string>() : dtypes) {
      for (const GridPoint& point : grid)
        setups.push_back(setup_of(mpi, line, deck_of(point, dtype, mpi.size()), "grid", {}));
    }
    if (line.has("from"))
      take_operations_from_run(line.text("from"), line.text("plugin-path"), measured.machine);
  });
  std::string identity;
  for (const Setup& setup : setups) identity += identity_of(setup, line);
  launch.check_same(identity);
  const auto steps = static_cast<int>(line.integer("steps"));
  return launch.run([&] {
    const bool has_operations = line.has("from");
    const auto say_once = [&](const std::string& text) {
      if (mpi.rank() == 0) say(stderr, "mylos: {}\n", text);
    };
    // A step takes three times the FLOPs of its forward pass; measured rates follow.
    double flops = 0.0;
    for (const Setup& setup : setups) {
      flops += plan_of(setup).flops_per_token *
               static_cast<double>(setup.config.train.micro_batch * setup.config.train.seq_len) *
               (steps + 2.0);
    }
    const Setup& first = setups.front();
    Session session(first.plugins, first.config, first.values, mpi.recorder());
    std::vector<DType> seen;
    for (const Setup& setup : setups) {
      const DType dtype = setup.config.train.dtype;
      if (std::ranges::find(seen, dtype) != seen.end()) continue;
      seen.push_back(dtype);
      measured.machine.peak[static_cast<std::size_t>(dtype)] = 1e12 * measure_gemm_tflops(session, dtype);
    }
    const double rate = measured.machine.peak[static_cast<std::size_t>(first.config.train.dtype)];
    const double collective_seconds =
        mpi.size() == 1 ? 0.0 : 20.0 * static_cast<double>(line.integer("bytes")) / 268435456.0;
    say_once(fmt::format("{} model{} on {} rank{}, collectives up to {} MiB: about {:.0f} s", setups.size(),
                         setups.size() == 1 ? "" : "s", mpi.size(), mpi.size() == 1 ? "" : "s",
                         line.integer("bytes") >> 20,
                         (has_operations ? 0.0 : 1.6 * flops / rate) + collective_seconds + 5.0));
    measure_host(session, measured);
    for (const Setup& setup : setups) {
      if (!has_operations) measure_operations(session, setup.config, steps, measured);
    }
    measure_communication(session, mpi.job().ranks_per_node, line.integer("bytes"), measured);
    take_medians_of_ranks(session, measured);
    if (mpi.rank() == 0) {
      measured.machine.ranks_per_node = static_cast<int>(mpi.job().ranks_per_node);
      measured.machine.name = fmt::format("{}, {}", mpi.hosts().front(), session.compute().description());
      std::string text = conditions_text(mpi, first, session.compute().description(), seconds_since(begin));
      if (!measured.spreads.empty()) {
        text += fmt::format(
            "# Half of the samples of an operation lie within {:.1f} % of its median (median of all "
            "operations), "
            "at most {:.1f} % (nine of ten).\n",
            100.0 * median(measured.spreads), 100.0 * quantile(measured.spreads, 0.9));
      }
      for (const std::string& own : measured.differing) {
        say(stderr, "warning: two halves of a measurement differ, the machine may be busy: {}\n", own);
        text += fmt::format("# warning: two halves differ: {}\n", own);
      }
      write_output(file, file_text(measured.machine, text));
      fmt::print("wrote {} after {:.0f} s\n", file, seconds_since(begin));
    }
    session.world().barrier();
    return 0;
  });
}

int run(const CommandLine& line) {
  return with_launch(start_timeout(line, ""), [&](const Launch& launch) { return measure(launch, line); });
}

}  // namespace

const Command measure_command{.name = "measure",
                              .arguments = "FILE [DECK...]",
                              .summary = "measure this machine and write a machine file for mylos plan",
                              .options = options,
                              .run = run,
                              .max_arguments = 64,
                              .takes_overrides = true};

}  // namespace mylos
