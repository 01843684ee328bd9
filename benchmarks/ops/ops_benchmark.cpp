// SPDX-License-Identifier: BSD-3-Clause
// Time, GFLOP/s and GB/s of every case of the operation table on every backend.
// MYLOS_BUILD names the build folder, MYLOS_THREADS sets the number of host threads;
// --benchmark_filter=/gpt2/ takes the shapes of GPT-2 124M.
#include <cstdlib>
#include <string>
#include <thread>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "tests/ops/op_run.hpp"
#include "tests/support/compute_backends.hpp"

namespace {

void measure(benchmark::State& state, const mylos::OpCase& c, mylos::ComputeBackend& backend) {
  const mylos::Contents initial = initial_contents(c);
  mylos::OpRun run(c, backend, initial);
  run.run();  // the first call may pack weights or allocate scratch
  run.synchronize();
  for (auto _ : state) {
    run.run();
    run.synchronize();
  }
  const auto rate = [](double per_call) {
    return benchmark::Counter(per_call * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GFLOP/s"] = rate(c.flops);
  state.counters["GB/s"] = rate(c.bytes);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const char* threads = std::getenv("MYLOS_THREADS");
  mylos::ComputeBackends backends(threads != nullptr ? std::atoi(threads)
                                                     : static_cast<int>(std::thread::hardware_concurrency()));
  for (const std::string& name : mylos::compute_backend_names()) {
    mylos::ComputeBackend& backend = backends.at(name);
    benchmark::AddCustomContext(name, backend.description());
    for (const mylos::OpCase& c : mylos::op_cases()) {
      benchmark::RegisterBenchmark(fmt::format("{}/{}", name, c.name()).c_str(),
                                   [&c, &backend](benchmark::State& state) { measure(state, c, backend); })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
