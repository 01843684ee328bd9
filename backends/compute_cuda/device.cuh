// SPDX-License-Identifier: BSD-3-Clause
// Helpers for the kernels: packs of 16 bytes, sums over warps and blocks, numbers of blocks.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backends/compute_cuda/cuda_check.hpp"
#include "core/base/dtype.hpp"

namespace mylos::compute_cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned full_mask = 0xffffffffU;

/// Queues kernel(arguments...).
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

/// The elements that a thread loads or stores in one access.
template <class T>
struct alignas(16) Pack {
  static constexpr int size = static_cast<int>(16 / sizeof(T));
  T values[size];
};

template <class T>
__device__ Pack<T> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
__device__ void store_pack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

/// Whether packs can be loaded at these addresses.
inline bool has_packs(std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return bits % 16 == 0;
}

inline unsigned blocks_for(std::int64_t n, std::int64_t block) {
  return static_cast<unsigned>((n + block - 1) / block);
}

/// Returns the sum to all lanes, always added in the same order.
template <class T>
__device__ T warp_sum(T value) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(full_mask, value, offset);
  }
  return value;
}

/// Returns the sum to all threads of a block of `threads` threads, always added in the same order. There is a
/// barrier before the write to shared memory and another after it.
template <int threads, class T>
__device__ T block_sum(T value) {
  constexpr int warps = threads / warp_size;
  __shared__ T sums[warps];
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % warp_size == 0) sums[threadIdx.x / warp_size] = value;
  __syncthreads();
  T total = sums[0];
  for (int w = 1; w < warps; ++w) total += sums[w];
  return total;
}

}  // namespace mylos::compute_cuda
