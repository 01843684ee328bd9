// SPDX-License-Identifier: BSD-3-Clause
// Stores of whole cache lines, which bypass the caches if the build targets AVX.
#pragma once

#include <cstddef>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace mylos {

inline constexpr std::size_t line_floats = 16;

/// Writes one cache line; `to` is aligned to a line.
inline void stream_line(const float* line, float* to) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, _mm512_loadu_ps(line));
#elif defined(__AVX__)
  _mm256_stream_ps(to, _mm256_loadu_ps(line));
  _mm256_stream_ps(to + 8, _mm256_loadu_ps(line + 8));
#else
  std::memcpy(to, line, line_floats * sizeof(float));
#endif
}

/// Orders these stores before all later stores of this thread.
inline void finish_streaming() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace mylos
