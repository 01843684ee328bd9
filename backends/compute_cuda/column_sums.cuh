// SPDX-License-Identifier: BSD-3-Clause
// Sums over rows for every column, in two passes and always in the same order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/workspace.hpp"
#include "core/base/error.hpp"

namespace mylos::compute_cuda {

inline constexpr int sum_block_columns = 32;
inline constexpr int sum_block_rows = 8;

template <int N>
struct Sums {
  float values[N];
};

template <int N, class G>
struct SumTargets {
  G* values[N];
};

/// partial (parts, N, columns): a block adds up term(row, column) for its columns and its part of the rows.
template <int N, class Term>
__global__ void sum_parts(Term term, std::int64_t rows, std::int64_t columns, float* partial) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * sum_block_columns + threadIdx.x;
  const std::int64_t first = rows * blockIdx.y / gridDim.y;
  const std::int64_t end = rows * (blockIdx.y + 1) / gridDim.y;
  Sums<N> sum{};
  if (column < columns) {
    for (std::int64_t row = first + threadIdx.y; row < end; row += sum_block_rows) {
      const Sums<N> added = term(row, column);
      for (int s = 0; s < N; ++s) sum.values[s] += added.values[s];
    }
  }
  __shared__ Sums<N> sums[sum_block_rows][sum_block_columns];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int s = 0; s < N; ++s) {
    float total = sum.values[s];
    for (int r = 1; r < sum_block_rows; ++r) total += sums[r][threadIdx.x].values[s];
    partial[(static_cast<std::int64_t>(blockIdx.y) * N + s) * columns + column] = total;
  }
}

template <int N, class G>
__global__ void add_parts(const float* partial, int parts, std::int64_t columns, SumTargets<N, G> out,
                          bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  for (int s = 0; s < N; ++s) {
    G* const target = out.values[s] + column;
    float total = accumulate ? static_cast<float>(*target) : 0.0F;
    for (int part = 0; part < parts; ++part) {
      total += partial[(static_cast<std::int64_t>(part) * N + s) * columns + column];
    }
    *target = static_cast<G>(total);
  }
}

/// out[s][c] = (accumulate ? out[s][c] : 0) + the sum over rows of term(row, c).values[s], added in fp32.
template <int N, class G, class Term>
void column_sums(cudaStream_t stream, const Term& term, std::int64_t rows, std::int64_t columns,
                 const SumTargets<N, G>& out, bool accumulate, const Workspace& workspace) {
  if (columns == 0) return;
  constexpr std::int64_t least_rows = 64;  // per part
  constexpr std::int64_t most_parts = 128;
  constexpr int threads = 256;
  const std::int64_t room = static_cast<std::int64_t>(Workspace::bytes / sizeof(float)) / (N * columns);
  require(room > 0, "a workspace for one row of sums");
  const auto parts =
      static_cast<int>(std::clamp<std::int64_t>(rows / least_rows, 1, std::min(most_parts, room)));
  auto* partial = static_cast<float*>(workspace.data());
  const dim3 grid(blocks_for(columns, sum_block_columns), static_cast<unsigned>(parts));
  launch(sum_parts<N, Term>, grid, dim3(sum_block_columns, sum_block_rows), stream, term, rows, columns,
         partial);
  launch(add_parts<N, G>, blocks_for(columns, threads), threads, stream, partial, parts, columns, out,
         accumulate);
}

}  // namespace mylos::compute_cuda
