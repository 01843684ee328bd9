// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/reduce_slices.hpp"

#include <algorithm>
#include <array>

#include "core/host_reduction.hpp"

namespace mylos {

namespace {

constexpr std::size_t block = 1024;  // elements: accumulators stay in the first-level cache

template <class T, ReduceOp op, class A>
void begin_block(const std::byte* first, const std::byte* second, A* __restrict__ sums, std::size_t count) {
  const T* __restrict__ a = reinterpret_cast<const T*>(first);
  const T* __restrict__ b = reinterpret_cast<const T*>(second);
  for (std::size_t i = 0; i < count; ++i) sums[i] = combined<op>(static_cast<A>(a[i]), static_cast<A>(b[i]));
}

template <class T, ReduceOp op, class A>
void continue_block(const std::byte* next, A* __restrict__ sums, std::size_t count) {
  const T* __restrict__ x = reinterpret_cast<const T*>(next);
  for (std::size_t i = 0; i < count; ++i) sums[i] = combined<op>(sums[i], static_cast<A>(x[i]));
}

template <class T, class A>
void round_block(const A* __restrict__ sums, T* __restrict__ rounded, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) rounded[i] = T(sums[i]);
}

template <class T, ReduceOp op>
void reduce_typed(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                  std::size_t count, Stores stores) {
  using A = Accumulator<T>;
  alignas(64) std::array<A, block> sums;
  alignas(64) std::array<T, block> rounded;
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t length = std::min(block, count - first);
    const std::size_t offset = first * sizeof(T);
    begin_block<T, op>(inputs[0] + offset, inputs[1] + offset, sums.data(), length);
    for (std::size_t j = 2; j < inputs.size(); ++j)
      continue_block<T, op>(inputs[j] + offset, sums.data(), length);
    const auto* result = reinterpret_cast<const std::byte*>(sums.data());
    if constexpr (!std::is_same_v<T, A>) {
      round_block(sums.data(), rounded.data(), length);
      result = reinterpret_cast<const std::byte*>(rounded.data());
    }
    for (std::byte* output : outputs) copy_bytes(output + offset, result, length * sizeof(T), stores);
  }
}

}  // namespace

void reduce_slices(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count, Stores stores) {
  require(inputs.size() >= 2, "a reduction has two inputs or more");
  dispatch_reduction(dtype, op, [&]<class T, ReduceOp reduction>() {
    reduce_typed<T, reduction>(inputs, outputs, count, stores);
  });
}

}  // namespace mylos
