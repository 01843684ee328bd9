// SPDX-License-Identifier: BSD-3-Clause
// Time, GFLOP/s and GB/s for every case of the operation table on every backend, and the share of the
// limiting ceiling for full-size cases on the host. MYLOS_BUILD names the build folder, MYLOS_THREADS sets
// the number of host threads; --benchmark_filter=/gpt2/ selects the full-size cases: the shapes of GPT-2
// 124M, whose operands are out of cache and whose ceilings are measured first. The operands of small cases
// stay in cache.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <regex>
#include <string>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "benchmarks/ceiling/caches.hpp"
#include "benchmarks/ceiling/gemm.hpp"
#include "benchmarks/ceiling/read_rate.hpp"
#include "benchmarks/ceiling/register_rate.hpp"
#include "benchmarks/ceiling/timing.hpp"
#include "benchmarks/ceiling/triad.hpp"
#include "core/base/clock.hpp"
#include "core/base/statistics.hpp"
#include "core/base/thread_limits.hpp"
#include "tests/ops/op_run.hpp"
#include "tests/support/compute_backends.hpp"

namespace {

using namespace mylos;

/// The host's ceilings in this run; a ceiling that was not measured is empty.
struct Ceilings {
  std::optional<double> triad;                  ///< GB/s
  std::optional<double> read;                   ///< GB/s
  std::map<DType, std::optional<double>> gemm;  ///< GFLOP/s by the type of the factors
};

DType factor_type(const OpCase& c) {
  const auto narrow = std::ranges::find_if(c.operands, [](const Operand& operand) {
    return operand.view.dtype == DType::bf16 || operand.view.dtype == DType::fp16;
  });
  return narrow != c.operands.end() ? narrow->view.dtype : DType::fp32;
}

/// Whether a case reads, and writes hardly anything.
bool only_reads(const OpCase& c) {
  double written = 0.0;
  for (const Operand& operand : c.operands) {
    if (operand.is_result()) written += static_cast<double>(operand.view.bytes());
  }
  return written < 0.02 * c.bytes;
}

/// Seconds that a full-size case takes at the ceiling that limits it (Williams, Waterman and Patterson,
/// "Roofline", 2009), or NaN if a ceiling is not known or the case is not full-size.
double least_seconds(const OpCase& c, const Ceilings& ceilings) {
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  if (!c.full_size) return unknown;
  const double rate = (only_reads(c) ? ceilings.read : ceilings.triad).value_or(unknown);
  const double memory = 1e-9 * c.bytes / rate;
  if (c.flops == 0.0) return memory;
  const auto gemm = ceilings.gemm.find(factor_type(c));
  if (gemm == ceilings.gemm.end() || !gemm->second) return unknown;
  return std::max(memory, 1e-9 * c.flops / *gemm->second);
}

void measure(benchmark::State& state, const OpCase& c, ComputeBackend& backend, const Ceilings& ceilings) {
  const Contents initial = initial_contents(c);
  std::vector<OpRun> runs;
  const std::size_t copies = c.full_size ? out_of_cache_copies(c.bytes) : 1;
  for (std::size_t i = 0; i < copies; ++i) {
    OpRun& run = runs.emplace_back(c, backend, initial);
    run.run();  // the first call may pack weights or allocate scratch
    run.synchronize();
  }
  // A device takes a queue of calls: waiting for each would measure the wait.
  const std::size_t calls = backend.host_accessible() ? 1 : 20;
  std::vector<double> seconds;
  std::size_t next = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) runs[next++ % runs.size()].run();
    runs.front().synchronize();
    seconds.push_back(seconds_since(start) / static_cast<double>(calls));
  }
  const double call = median(std::move(seconds));
  state.counters["median_s"] = call;
  state.counters["GFLOP/s"] = 1e-9 * c.flops / call;
  state.counters["GB/s"] = 1e-9 * c.bytes / call;
  // Ceilings are measured on the host only; the share is NaN without them. Every case has this counter,
  // because the CSV reporter requires the same counters of all.
  state.counters["share"] = least_seconds(c, backend.host_accessible() ? ceilings : Ceilings{}) / call;
}

/// Whether --benchmark_filter selects the benchmark of this name.
bool is_selected(const std::string& name) {
  std::string filter = benchmark::GetBenchmarkFilter();
  if (filter.empty() || filter == "all") return true;
  const bool negated = filter.front() == '-';
  if (negated) filter.erase(0, 1);
  return std::regex_search(name, std::regex(filter, std::regex::extended)) != negated;
}

/// Measures the ceilings that `c` needs and that have not been measured yet, and adds them to the report.
void measure_missing(Ceilings& ceilings, const OpCase& c) {
  if (!ceilings.triad) {
    ceilings.triad = measure_triad();
    benchmark::AddCustomContext("triad_ceiling", fmt::format("{:.2f} GB/s", *ceilings.triad));
  }
  if (only_reads(c) && !ceilings.read) {
    ceilings.read = measure_read_rate();
    benchmark::AddCustomContext("read_ceiling", fmt::format("{:.2f} GB/s", *ceilings.read));
  }
  const DType type = factor_type(c);
  if (c.flops == 0.0 || ceilings.gemm.contains(type)) return;
  const std::optional<double> gemm = measure_gemm_ceiling(
      {FullSize::rows, FullSize::width, 4 * FullSize::width, FullSize::layers, FullSize::padded_vocab, type});
  ceilings.gemm.emplace(type, gemm);
  benchmark::AddCustomContext(fmt::format("gemm_ceiling_{}", name_of(type)),
                              gemm ? fmt::format("{:.1f} GFLOP/s", *gemm) : "not measured");
  const std::optional<RegisterRate> registers = measure_register_rate(type);
  benchmark::AddCustomContext(
      fmt::format("register_ceiling_{}", name_of(type)),
      registers ? fmt::format("{:.1f} GFLOP/s, {}", registers->gflops, registers->instruction)
                : "not measured");
}

}  // namespace

int main(int argc, char** argv) {
  const bool lists = std::any_of(argv, argv + argc, [](const std::string& argument) {
    return argument.starts_with("--benchmark_list_tests");
  });
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const char* threads = std::getenv("MYLOS_THREADS");
  ComputeBackends backends(threads != nullptr ? std::atoi(threads) : default_threads());
  Ceilings ceilings;
  for (const std::string& backend_name : compute_backend_names()) {
    ComputeBackend& backend = backends.at(backend_name);
    benchmark::AddCustomContext(backend_name, backend.description());
    for (const OpCase& c : op_cases()) {
      const std::string name = fmt::format("{}/{}", backend_name, c.name());
      benchmark::RegisterBenchmark(
          name.c_str(),
          [&c, &backend, &ceilings](benchmark::State& state) { measure(state, c, backend, ceilings); })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
      if (c.full_size && backend.host_accessible() && !lists && is_selected(name + "/real_time"))
        measure_missing(ceilings, c);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
