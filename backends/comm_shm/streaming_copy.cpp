// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/streaming_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace mylos::comm_shm {

namespace {

constexpr std::size_t line = 64;

#if defined(__AVX512F__)
void stream_line(std::byte* to, const std::byte* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
#elif defined(__AVX__)
void stream_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* target = reinterpret_cast<__m256i*>(to);
  const __m256i low = _mm256_loadu_si256(source);
  const __m256i high = _mm256_loadu_si256(source + 1);
  _mm256_stream_si256(target, low);
  _mm256_stream_si256(target + 1, high);
}
#elif defined(__SSE2__)
void stream_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
}
#else
void stream_line(std::byte* to, const std::byte* from) {
  std::memcpy(to, from, line);
}
#endif

/// Copies line by line instead of with one memcpy: on Zen 4, the `rep movsb` of the C library's memcpy is
/// slow if source and target have similar offsets in their pages, as buffers and slots do (glibc bug 30994).
template <class CopyLine>
void copy_lines(std::byte* to, const std::byte* from, std::size_t bytes, CopyLine copy_line) {
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(to) % line;
  const std::size_t head = std::min(bytes, past_line == 0 ? 0 : line - past_line);
  std::memcpy(to, from, head);
  std::size_t done = head;
  for (; done + line <= bytes; done += line) copy_line(to + done, from + done);
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores) {
  if (bytes == 0) return;
  if (stores == Stores::streaming) {
    copy_lines(to, from, bytes, stream_line);
  } else {
    copy_lines(to, from, bytes,
               [](std::byte* to_line, const std::byte* from_line) { std::memcpy(to_line, from_line, line); });
  }
}

void finish_stores(Stores stores) {
#if defined(__SSE2__)
  if (stores == Stores::streaming) _mm_sfence();
#else
  static_cast<void>(stores);
#endif
}

void copy_to_other_core(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t few = 2048;
  const Stores stores = bytes < few ? Stores::cached : Stores::streaming;
  copy_bytes(to, from, bytes, stores);
  finish_stores(stores);
}

}  // namespace mylos::comm_shm
