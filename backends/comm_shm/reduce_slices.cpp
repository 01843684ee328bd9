// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/reduce_slices.hpp"

#include <array>
#include <cstring>

#include "core/communication/host_reduction.hpp"

namespace mylos::comm_shm {

namespace {

/// Reduces `count` elements, at most a cache line, that begin at byte `offset` of all inputs. If `count` is
/// constant, this becomes a few vector operations.
template <class T, ReduceOp op>
[[gnu::always_inline]] inline void reduce_line(std::span<const std::byte* const> inputs,
                                               std::span<std::byte* const> outputs, std::size_t offset,
                                               std::size_t count) {
  using A = Accumulator<T>;
  constexpr std::size_t line = 64 / sizeof(T);
  const auto* first = reinterpret_cast<const T*>(inputs[0] + offset);
  alignas(64) std::array<A, line> sums;
  for (std::size_t i = 0; i < count; ++i) sums[i] = static_cast<A>(first[i]);
  for (std::size_t j = 1; j < inputs.size(); ++j) {
    // Without this copy, GCC 12 processes two inputs at a time, and bf16 element by element, at a third of
    // the speed.
    alignas(64) std::array<T, line> next;
    std::memcpy(next.data(), inputs[j] + offset, count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) sums[i] = combined<op>(sums[i], static_cast<A>(next[i]));
  }
  alignas(64) std::array<T, line> rounded;
  for (std::size_t i = 0; i < count; ++i) rounded[i] = T(sums[i]);
  for (std::byte* output : outputs) std::memcpy(output + offset, rounded.data(), count * sizeof(T));
}

template <class T, ReduceOp op>
void reduce_lines(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                  std::size_t count) {
  constexpr std::size_t line = 64 / sizeof(T);
  std::size_t done = 0;
  for (; done + line <= count; done += line) reduce_line<T, op>(inputs, outputs, done * sizeof(T), line);
  if (done < count) reduce_line<T, op>(inputs, outputs, done * sizeof(T), count - done);
}

}  // namespace

void reduce_slices(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count) {
  dispatch_reduction(
      dtype, op, [&]<class T, ReduceOp reduction>() { reduce_lines<T, reduction>(inputs, outputs, count); });
}

}  // namespace mylos::comm_shm
