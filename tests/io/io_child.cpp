// SPDX-License-Identifier: BSD-3-Clause
// A separate process for the io tests: it may crash, hang, be killed or run out of disk space. It does not
// use MPI.
//
//   io_child load CHECKPOINT       reads all tensors; prints their sum
//   io_child write DIR STEP BYTES  writes a checkpoint while no file may grow beyond BYTES
//   io_child append METRICS        appends rows, with a new column every 200 rows, until it is killed
//   io_child lock RUN              takes the lock, creates RUN/locked and waits
#include <csignal>
#include <cstdio>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "core/base/error.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/file_util.hpp"
#include "io/metrics/metrics.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/support/parts_of_range.hpp"

namespace mylos::test {

namespace {

void load(const std::string& checkpoint) {
  IoThread io;
  CheckpointReader reader(io, checkpoint);
  double sum = 0.0;
  for (const char* file : {"weights.h5", "optimizer.h5"}) {
    for (const TensorInfo& tensor : reader.tensors(file)) {
      // A hostile file may claim a huge tensor, but the reader has checked that the tensors fit in the file.
      std::vector<float> data(static_cast<std::size_t>(tensor.size()));
      reader.read({file, tensor, parts_of_range(tensor, 0, tensor.size(), data.data())});
      for (const float value : data) sum += value;
    }
  }
  std::printf("%.17g\n", sum);
}

void write(const std::string& directory, std::int64_t step, rlim_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  IoThread io;
  write_whole(io, directory, step);
}

void append(const std::string& file) {
  constexpr std::int64_t rows_per_column = 200;
  IoThread io;
  MetricsWriter writer(io, file, {});
  const MetricsTable before = read_metrics(io, file, "steps");
  auto step = before.contains("step") ? static_cast<std::int64_t>(before.at("step").size()) : 0;
  for (; true; ++step) {
    const auto value = static_cast<double>(step);
    const std::string newest = fmt::format("from_{}", step / rows_per_column * rows_per_column);
    writer.append("steps", {{"step", value}, {"loss", value * 0.5}, {newest, -value}});
    if (step % rows_per_column == 0) writer.flush();  // rows that wait take memory
  }
}

void lock(const std::string& run) {
  const RunLock held(run, "run.dir");
  spill(run + "/locked", "");
  ::pause();
}

}  // namespace

}  // namespace mylos::test

int main(int argc, char** argv) {
  using namespace mylos;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  constexpr unsigned hang_limit = 240;
  ::alarm(hang_limit);
  try {
    if (arguments.at(0) == "load") test::load(arguments.at(1));
    if (arguments.at(0) == "write")
      test::write(arguments.at(1), std::stoll(arguments.at(2)), std::stoull(arguments.at(3)));
    if (arguments.at(0) == "append") test::append(arguments.at(1));
    if (arguments.at(0) == "lock") test::lock(arguments.at(1));
    return 0;
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
