// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/ceiling/read_rate.hpp"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>

#include "benchmarks/ceiling/caches.hpp"
#include "benchmarks/ceiling/timing.hpp"
#include "core/base/error.hpp"

namespace mylos {

namespace {

/// The sum of all values, so that all are read.
float sum_of(const float* a, std::int64_t count) {
  float total = 0.0F;
#pragma omp parallel for simd schedule(static) reduction(+ : total)
  for (std::int64_t i = 0; i < count; ++i) total += a[i];
  return total;
}

}  // namespace

double measure_read_rate() {
  const std::size_t size = out_of_cache_bytes() / sizeof(float);
  const auto count = static_cast<std::int64_t>(size);
  // In huge pages, as a backend's memory, where the system has them.
  constexpr std::size_t huge_page = 2U << 20U;
  const std::size_t bytes = (size * sizeof(float) + huge_page - 1) / huge_page * huge_page;
  const std::unique_ptr<float, decltype(&std::free)> memory(
      static_cast<float*>(std::aligned_alloc(huge_page, bytes)), &std::free);
  if (memory == nullptr) fail(ExitCode::internal, "out of memory: {} bytes", bytes);
  madvise(memory.get(), bytes, MADV_HUGEPAGE);
  float* const a = memory.get();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) a[i] = 0.0F;  // first touched by the thread that reads it
  constexpr double budget = 0.5;
  constexpr int passes = 7;
  volatile float total = 0.0F;
  const double seconds = median_seconds(budget, passes, [&](int) { total = sum_of(a, count); });
  return 1e-9 * static_cast<double>(size * sizeof(float)) / seconds;
}

}  // namespace mylos
