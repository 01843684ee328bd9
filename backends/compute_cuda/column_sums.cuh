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

inline constexpr int sum_lanes = 32;  // threads side by side
inline constexpr int sum_rows = 8;    // and one below the other
inline constexpr int part_rows = 32;  // likewise, when parts are added up

/// N sums of each of `width` neighbouring columns.
template <int N, int width>
struct Sums {
  float values[N][width];
};

template <int N, class G>
struct SumTargets {
  G* values[N];
};

/// Loads `width` neighbouring elements: one, or a pack.
template <int width, class T>
__device__ void load_floats(const T* from, float* to) {
  if constexpr (width == 1) {
    *to = static_cast<float>(*from);
  } else {
    static_assert(width == Pack<T>::size);
    const Pack<T> values = load_pack(from);
    for (int v = 0; v < width; ++v) to[v] = static_cast<float>(values.values[v]);
  }
}

/// partial (parts, N, columns): a block adds up the terms of its columns, `width` per thread, and of its part
/// of the rows. term(row, column, sums) adds the terms of columns column .. column + width - 1.
template <int N, int width, class Term>
__global__ void sum_parts(Term term, std::int64_t rows, std::int64_t columns, float* partial) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * sum_lanes + threadIdx.x) * width;
  const std::int64_t first = rows * blockIdx.y / gridDim.y;
  const std::int64_t end = rows * (blockIdx.y + 1) / gridDim.y;
  Sums<N, width> sum{};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = first + threadIdx.y; row < end; row += sum_rows) term(row, column, sum);
  }
  __shared__ Sums<N, width> sums[sum_rows][sum_lanes];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int s = 0; s < N; ++s) {
    for (int v = 0; v < width; ++v) {
      float total = sum.values[s][v];
      for (int r = 1; r < sum_rows; ++r) total += sums[r][threadIdx.x].values[s][v];
      partial[(static_cast<std::int64_t>(blockIdx.y) * N + s) * columns + column + v] = total;
    }
  }
}

/// Sum blockIdx.y of the columns of a block: each row of threads adds up every part_rows-th part.
template <int N, class G>
__global__ void add_parts(const float* partial, int parts, std::int64_t columns, SumTargets<N, G> out,
                          bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * sum_lanes + threadIdx.x;
  const auto s = static_cast<int>(blockIdx.y);
  float own = 0.0F;
  if (column < columns) {
#pragma unroll 4
    for (auto part = static_cast<int>(threadIdx.y); part < parts; part += part_rows) {
      own += partial[(static_cast<std::int64_t>(part) * N + s) * columns + column];
    }
  }
  __shared__ float sums[part_rows][sum_lanes];
  sums[threadIdx.y][threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  G* const target = out.values[s] + column;
  float total = accumulate ? static_cast<float>(*target) : 0.0F;
  for (int r = 0; r < part_rows; ++r) total += sums[r][threadIdx.x];
  *target = static_cast<G>(total);
}

/// out[s] = (accumulate ? out[s] : 0) + the sum of the parts of partial (parts, N, columns).
template <int N, class G>
void sum_of_parts(cudaStream_t stream, const float* partial, int parts, std::int64_t columns,
                  const SumTargets<N, G>& out, bool accumulate) {
  launch(add_parts<N, G>, dim3(blocks_for(columns, sum_lanes), N), dim3(sum_lanes, part_rows), stream,
         partial, parts, columns, out, accumulate);
}

/// out[s][c] = (accumulate ? out[s][c] : 0) + the sum over rows of the terms of column c, added in fp32.
/// `width` is the number of columns that a thread takes; they can be loaded together.
template <int N, int width, class G, class Term>
void column_sums(cudaStream_t stream, const Term& term, std::int64_t rows, std::int64_t columns,
                 const SumTargets<N, G>& out, bool accumulate, const Workspace& workspace) {
  if (columns == 0) return;
  constexpr std::int64_t least_rows = 4 * sum_rows;  // per part
  constexpr std::int64_t most_blocks = 1024;         // enough to fill a GPU
  const std::int64_t room = static_cast<std::int64_t>(Workspace::bytes / sizeof(float)) / (N * columns);
  require(room > 0, "a workspace for one row of sums");
  const unsigned blocks = blocks_for(columns, sum_lanes * width);
  const std::int64_t most = std::max<std::int64_t>(1, std::min<std::int64_t>(room, most_blocks / blocks));
  const auto parts = static_cast<int>(std::clamp<std::int64_t>(rows / least_rows, 1, most));
  auto* partial = static_cast<float*>(workspace.data());
  const dim3 threads(sum_lanes, sum_rows);
  launch(sum_parts<N, width, Term>, dim3(blocks, static_cast<unsigned>(parts)), threads, stream, term, rows,
         columns, partial);
  sum_of_parts(stream, partial, parts, columns, out, accumulate);
}

}  // namespace mylos::compute_cuda
