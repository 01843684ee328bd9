// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "backends/compute_cuda/column_sums.hpp"
#include "backends/compute_cuda/cuda_handles.hpp"

namespace mylos {

namespace {

constexpr int columns_of_block = 32;
constexpr int rows_of_block = 8;
constexpr std::int64_t least_rows_of_part = 64;
constexpr std::int64_t most_parts = 128;

/// partial (parts, columns); a block sums its part of the rows for its columns.
template <class T>
__global__ void sum_parts(const T* x, std::int64_t rows, std::int64_t columns, float* partial) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * columns_of_block + threadIdx.x;
  const std::int64_t first = rows * blockIdx.y / gridDim.y;
  const std::int64_t end = rows * (blockIdx.y + 1) / gridDim.y;
  float sum = 0.0F;
  if (column < columns) {
    for (std::int64_t row = first + threadIdx.y; row < end; row += rows_of_block) {
      sum += static_cast<float>(x[row * columns + column]);
    }
  }
  __shared__ float sums[rows_of_block][columns_of_block];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int r = 1; r < rows_of_block; ++r) sum += sums[r][threadIdx.x];
    partial[blockIdx.y * columns + column] = sum;
  }
}

template <class G>
__global__ void add_parts(const float* partial, std::int64_t parts, std::int64_t columns, G* sums,
                          bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = accumulate ? static_cast<float>(sums[column]) : 0.0F;
  for (std::int64_t part = 0; part < parts; ++part) sum += partial[part * columns + column];
  sums[column] = static_cast<G>(sum);
}

unsigned blocks_for(std::int64_t n, std::int64_t block) {
  return static_cast<unsigned>((n + block - 1) / block);
}

}  // namespace

std::int64_t column_sum_parts(std::int64_t rows, std::int64_t columns, std::size_t workspace_bytes) {
  const auto room =
      static_cast<std::int64_t>(workspace_bytes / sizeof(float)) / std::max<std::int64_t>(columns, 1);
  require(room > 0, "a workspace for one row of sums");
  return std::clamp<std::int64_t>(rows / least_rows_of_part, 1, std::min(most_parts, room));
}

void column_sums(cudaStream_t stream, const TensorRef& x, const TensorRef& sums, bool accumulate,
                 std::int64_t parts, void* workspace) {
  const std::int64_t columns = sums.size();
  if (columns == 0) return;
  const std::int64_t rows = x.size() / columns;
  auto* partial = static_cast<float*>(workspace);
  dispatch_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    const dim3 grid(blocks_for(columns, columns_of_block), static_cast<unsigned>(parts));
    sum_parts<T>
        <<<grid, dim3(columns_of_block, rows_of_block), 0, stream>>>(x.as<T>(), rows, columns, partial);
  });
  dispatch_float(sums.dtype, [&](auto type) {
    using G = decltype(type);
    constexpr int threads = 256;
    add_parts<G><<<blocks_for(columns, threads), threads, 0, stream>>>(partial, parts, columns, sums.as<G>(),
                                                                       accumulate);
  });
  check(cudaGetLastError(), "mylos::column_sums");
}

}  // namespace mylos
