// SPDX-License-Identifier: BSD-3-Clause
// Time of writing and reading a checkpoint of a GPT-2 with its optimizer's states, in turn with dd and cat on
// the same bytes and the same disk. Start it under mpiexec; the CSV file has one row per round.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include "app/deck/command_line.hpp"
#include "app/launch/launch.hpp"
#include "app/launch/mpi_runtime.hpp"
#include "app/launch/setup.hpp"
#include "core/base/clock.hpp"
#include "core/base/statistics.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/model/parameters.hpp"
#include "io/agree.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/file_util.hpp"
#include "tests/support/parts_of_range.hpp"

namespace mylos {
namespace {

namespace fs = std::filesystem;

CommandSyntax syntax() {
  const auto count = [](const char* name, const char* value, const char* doc) {
    return CommandOption{name, OptionKind::integer, doc, value};
  };
  return {
      .name = "checkpoint_benchmark",
      .help = "checkpoint_benchmark --help",
      .options = {count("layers", "12", "of the model"),
                  count("width", "768", "of the model"),
                  count("vocab", "50257", "of the model"),
                  count("rounds", "5", "of every measurement, in turn"),
                  {"cold", OptionKind::flag, "read from the disk: drops the caches of this node, as root"},
                  {"csv", OptionKind::text, "CSV file to write as well", ""},
                  {"help", OptionKind::flag, "this text"}}};
}

/// Runs a command on rank 0 while the other ranks wait without computing. Returns its seconds on rank 0 and 0
/// on the others.
double seconds_of(const MpiRuntime& mpi, const std::string& command) {
  double seconds = 0.0;
  run_collectively(MPI_COMM_WORLD, [&] {
    if (mpi.rank() != 0) return;
    const auto start = Clock::now();
    if (std::system(command.c_str()) != 0) fail(ExitCode::io, "failed: {}", command);
    seconds = seconds_since(start);
  });
  return seconds;
}

/// Fills `values` with noise of magnitude up to 2^-7.
void fill(std::vector<float>& values, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e37'79b9'7f4a'7c15ULL + 1;
  for (float& value : values) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    value = static_cast<float>(static_cast<std::int64_t>(state)) * 0x1p-70F;
  }
}

/// Gives every rank an even share of every tensor, as with data parallelism.
CheckpointContent make_content(const MpiRuntime& mpi, const ModelConfig& model,
                               std::vector<std::vector<float>>& memory) {
  CheckpointContent content;
  const ParameterTable table = parameters_of(model);
  for (const auto& [file, group] : {std::pair("weights.h5", ""), std::pair("optimizer.h5", "first_moment/"),
                                    std::pair("optimizer.h5", "second_moment/")}) {
    for (const Parameter& parameter : table.parameters()) {
      CheckpointTensor tensor{.file = file, .info = {group + parameter.name, parameter.shape}, .parts = {}};
      const std::int64_t size = tensor.info.size();
      const std::int64_t begin = size * mpi.rank() / mpi.size();
      const std::int64_t count = size * (mpi.rank() + 1) / mpi.size() - begin;
      std::vector<float>& values = memory.emplace_back(static_cast<std::size_t>(count));
      fill(values, memory.size());
      tensor.parts = parts_of_range(tensor.info, begin, count, values.data());
      content.tensors.push_back(std::move(tensor));
    }
  }
  content.state.json = "{}";
  return content;
}

/// Seconds of a round.
struct Round {
  double dd_write, layout_to_fsync, write, finish, dd_read, open, read;
};

class Benchmark {
 public:
  Benchmark(const MpiRuntime& mpi, const fs::path& directory, const ModelConfig& model, bool cold)
      : mpi_(mpi),
        directory_(directory / "checkpoint_benchmark"),
        copy_(fmt::format("/dev/shm/checkpoint_benchmark.{}", model.width)),
        cold_(cold),
        content_(make_content(mpi, model, memory_)),
        store_(io_, io_, directory_, {},
               [this](CheckpointPhase phase, std::int64_t) { times_[phase] = Clock::now(); }) {
    // The bytes of a real checkpoint, for dd.
    store_.write(content_);
    store_.finish();
    const std::string from = store_.path_of(0).string();
    seconds_of(mpi_, fmt::format("cat {}/weights.h5 {}/optimizer.h5 > {}", from, from, copy_));
    bytes_ = static_cast<double>(fs::file_size(copy_));
  }
  ~Benchmark() {
    if (mpi_.rank() != 0) return;
    std::error_code error;
    fs::remove_all(directory_, error);
    fs::remove(copy_, error);
  }
  Benchmark(const Benchmark&) = delete;
  Benchmark& operator=(const Benchmark&) = delete;

  double bytes() const { return bytes_; }

  Round measure() {
    Round round{};
    const std::string target = (directory_ / "dd").string();
    round.dd_write =
        seconds_of(mpi_, fmt::format("dd if={} of={} bs=16M conv=fsync 2>/dev/null", copy_, target));
    seconds_of(mpi_, "rm " + target);
    ++content_.state.step;
    auto start = Clock::now();
    store_.write(content_);
    const auto written = Clock::now();
    round.write = in_seconds(written - start);
    round.layout_to_fsync = in_seconds(times_[CheckpointPhase::manifest] - times_[CheckpointPhase::create]);
    store_.finish();
    round.finish = seconds_since(written);

    const fs::path path = store_.path_of(content_.state.step);
    const std::string cat = fmt::format("cat {}/*.h5 > /dev/null", path.string());
    if (!cold_) seconds_of(mpi_, cat);  // fills the page cache, which direct writes bypass
    drop_caches();
    round.dd_read = seconds_of(mpi_, cat);
    drop_caches();
    start = Clock::now();
    const CheckpointReader reader(io_, path);
    round.open = seconds_since(start);
    start = Clock::now();
    run_collectively(MPI_COMM_WORLD, [&] {
      for (const CheckpointTensor& tensor : content_.tensors) reader.read(tensor);
    });
    round.read = seconds_since(start);
    return round;
  }

 private:
  void drop_caches() {
    if (cold_) seconds_of(mpi_, "sync && echo 3 > /proc/sys/vm/drop_caches");
  }

  const MpiRuntime& mpi_;
  fs::path directory_;
  std::string copy_;
  bool cold_;
  double bytes_ = 0.0;
  IoThread io_;
  std::vector<std::vector<float>> memory_;
  CheckpointContent content_;
  std::map<CheckpointPhase, Clock::time_point> times_;
  CheckpointStore store_;
};

int run(const Launch& launch, int argc, char** argv) {
  const MpiRuntime& mpi = launch.mpi();
  CommandLine line;
  ModelConfig model;
  const auto read_command_line = [&] {
    line = parse_words(syntax(), {argv + 1, argv + argc});
    if (line.flag("help")) return;
    model.layers = line.integer("layers");
    model.heads = 1;  // no tensor's shape depends on it
    model.width = line.integer("width");
    model.vocab = line.integer("vocab");
    line.argument(0, "a directory on the disk to measure");
    if (line.integer("rounds") < 1) fail(ExitCode::usage, "--rounds must be at least 1");
  };
  launch.agree(read_command_line);
  if (line.flag("help")) {
    if (mpi.rank() == 0)
      fmt::print("mpiexec -n RANKS checkpoint_benchmark DIR: checkpoints compared with dd and cat\n\n{}",
                 options_text("Options", syntax().options));
    return 0;
  }
  return launch.run([&] {
    Benchmark benchmark(mpi, line.argument(0, ""), model, line.flag("cold"));
    std::vector<Round> rounds;
    for (std::int64_t i = 0; i < line.integer("rounds"); ++i) rounds.push_back(benchmark.measure());
    if (mpi.rank() != 0) return 0;
    const auto row = [&](const char* what, double Round::*seconds, double Round::*peer) {
      std::vector<double> all;
      std::vector<double> ratios;
      for (const Round& round : rounds) {
        all.push_back(round.*seconds);
        ratios.push_back(round.*peer / (round.*seconds));
      }
      fmt::print("{:<28} {:>9.3f} {:>9.0f} {:>11.2f}\n", what, median(all),
                 benchmark.bytes() * 1e-6 / median(all), median(ratios));
    };
    fmt::print("{} ranks, {:.1f} MB, medians of {} rounds\n{:<28} {:>9} {:>9} {:>11}\n", mpi.size(),
               benchmark.bytes() * 1e-6, rounds.size(), "", "s", "MB/s", "x of peer");
    row("dd, with fsync", &Round::dd_write, &Round::dd_write);
    row("write, layout to fsync", &Round::layout_to_fsync, &Round::dd_write);
    row("write, to the rename", &Round::write, &Round::dd_write);
    row("read back, in background", &Round::finish, &Round::dd_write);
    row("cat", &Round::dd_read, &Round::dd_read);
    row("verify", &Round::open, &Round::dd_read);
    row("read", &Round::read, &Round::dd_read);
    if (line.text("csv").empty()) return 0;
    std::ofstream csv(line.text("csv"));
    csv << "ranks,bytes,dd_write,layout_to_fsync,write,finish,cat,verify,read\n";
    for (const Round& r : rounds) {
      csv << fmt::format("{},{:.0f},{},{},{},{},{},{},{}\n", mpi.size(), benchmark.bytes(), r.dd_write,
                         r.layout_to_fsync, r.write, r.finish, r.dd_read, r.open, r.read);
    }
    if (!csv.flush()) fail(ExitCode::io, "{} cannot be written", line.text("csv"));
    return 0;
  });
}

}  // namespace
}  // namespace mylos

int main(int argc, char** argv) {
  try {
    return mylos::with_launch(mylos::MpiRuntime::default_start_timeout,
                              [&](const mylos::Launch& launch) { return mylos::run(launch, argc, argv); });
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_benchmark: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::internal);
  }
}
