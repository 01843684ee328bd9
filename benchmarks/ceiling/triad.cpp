// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/ceiling/triad.hpp"

#include <array>
#include <cstdint>
#include <memory>

#include "benchmarks/ceiling/caches.hpp"
#include "benchmarks/ceiling/streaming_store.hpp"
#include "benchmarks/ceiling/timing.hpp"

namespace mylos {

namespace {

struct alignas(64) Line {
  std::array<float, line_floats> values;
};

void triad(Line* a, const Line* b, const Line* c, float s, std::int64_t lines) {
#pragma omp parallel
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t i = 0; i < lines; ++i) {
      Line sum;
      for (std::size_t j = 0; j < line_floats; ++j) sum.values[j] = b[i].values[j] + s * c[i].values[j];
      stream_line(sum.values.data(), a[i].values.data());
    }
    finish_streaming();
  }
}

}  // namespace

double measure_triad() {
  const std::size_t lines = out_of_cache_bytes() / sizeof(Line);
  const auto count = static_cast<std::int64_t>(lines);
  const auto a = std::make_unique_for_overwrite<Line[]>(lines);
  const auto b = std::make_unique_for_overwrite<Line[]>(lines);
  const auto c = std::make_unique_for_overwrite<Line[]>(lines);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {  // the thread that computes a page also touches it first
    a[i].values.fill(0.0F);
    b[i].values.fill(1.0F);
    c[i].values.fill(2.0F);
  }
  constexpr double budget = 0.5;
  constexpr int passes = 7;
  const double seconds =
      median_seconds(budget, passes, [&](int) { triad(a.get(), b.get(), c.get(), 3.0F, count); });
  return 1e-9 * 3.0 * static_cast<double>(lines * sizeof(Line)) / seconds;
}

}  // namespace mylos
