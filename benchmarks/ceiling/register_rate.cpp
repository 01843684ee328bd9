// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/ceiling/register_rate.hpp"

#include <algorithm>
#include <cstdint>
#include <omp.h>

#ifdef __FMA__
#include <immintrin.h>
#endif

#include "core/base/clock.hpp"
#include "core/base/instruction_set.hpp"

namespace mylos {

namespace {

#ifdef __FMA__

constexpr std::int64_t rounds = 1'000'000;

/// Adds to `chains` independent sums, enough to hide the latency of two units, and few enough for the
/// registers.
template <int chains, class Vector, class Step>
void add_up(Vector zero, const Step& step) {
  Vector sums[chains];
  for (Vector& sum : sums) sum = zero;
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (Vector& sum : sums) {
      sum = step(sum);
      asm volatile("" : "+x"(sum));  // so that the compiler neither removes nor combines steps
    }
  }
}

/// GFLOP/s of all threads in the fastest repetition. Each thread calls `work`, which performs `flops`
/// operations.
double rate_of(double flops, const std::function<void()>& meet, void (*work)()) {
  constexpr int repetitions = 9;
  double best = 0.0;
  for (int i = 0; i < repetitions; ++i) {
    meet();
    const auto begin = Clock::now();
#pragma omp parallel
    work();
    const double seconds = seconds_since(begin);
    best = std::max(best, 1e-9 * flops * omp_get_max_threads() / seconds);
  }
  return best;
}

void fma_256() {
  const __m256 factor = _mm256_set1_ps(0.5F);
  add_up<12>(_mm256_setzero_ps(), [=](__m256 sum) { return _mm256_fmadd_ps(factor, factor, sum); });
}

#ifdef __AVX512F__
void fma_512() {
  const __m512 factor = _mm512_set1_ps(0.5F);
  add_up<16>(_mm512_setzero_ps(), [=](__m512 sum) { return _mm512_fmadd_ps(factor, factor, sum); });
}
#endif

#ifdef __AVX512BF16__
void dot_bf16_512() {
  const __m512bh factors = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.5F));
  add_up<16>(_mm512_setzero_ps(), [=](__m512 sum) { return _mm512_dpbf16_ps(sum, factors, factors); });
}
#endif

#endif

}  // namespace

std::optional<RegisterRate> measure_register_rate([[maybe_unused]] DType dtype,
                                                  [[maybe_unused]] const std::function<void()>& meet) {
#ifdef __FMA__
#ifdef __AVX512BF16__
  if (dtype == DType::bf16 && instruction_set() >= InstructionSet::avx512_bf16)
    return RegisterRate{"vdpbf16ps", rate_of(16.0 * 32 * 2 * rounds, meet, dot_bf16_512)};
#endif
#ifdef __AVX512F__
  if (instruction_set() >= InstructionSet::avx512)
    return RegisterRate{"512-bit FMA", rate_of(16.0 * 16 * 2 * rounds, meet, fma_512)};
#endif
  return RegisterRate{"256-bit FMA", rate_of(12.0 * 8 * 2 * rounds, meet, fma_256)};
#else
  return std::nullopt;
#endif
}

}  // namespace mylos
