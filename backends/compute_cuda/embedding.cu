// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr int threads = 256;
constexpr int chunk = 64;   // places of a block in the token gradient
constexpr int at_once = 4;  // rows that a thread loads together

__global__ void count_up(std::int32_t* places, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < n) places[i] = static_cast<std::int32_t>(i);
}

// The token gradient: `sorted` holds the sorted tokens, and `places` their rows in dout, ascending among
// equal tokens. A run is a range of equal tokens. Frequent tokens have long runs, so blocks take `chunk`
// places each: sum_runs adds up the rows of each run within a block, and join_runs the parts of runs that
// cross blocks. All sums are in fp32 and in order. dwte has `num_tokens` rows, the first one for
// `first_token`.

/// What a block leaves in `partial` (blocks, 2, columns): the parts of a run that began before it, and of one
/// that continues after it.
enum RunPart : std::int64_t { part_of_earlier_run, part_of_own_run };

template <class G>
struct TokenRows {
  G* dwte;
  std::int64_t first_token;
  std::int64_t num_tokens;
  std::int64_t columns;
  bool accumulate;

  /// The row of a token, or null.
  __device__ G* of(std::int32_t token) const {
    const std::int64_t place = token - first_token;
    return place < 0 || place >= num_tokens ? nullptr : dwte + place * columns;
  }
  __device__ void store(G* row, std::int64_t column, float sum) const {
    row[column] = static_cast<G>(accumulate ? static_cast<float>(row[column]) + sum : sum);
  }
};

/// Whether the token at `place` of `sorted` is also the one before.
__device__ bool continues(const std::int32_t* sorted, std::int64_t place, std::int64_t n) {
  return place > 0 && place < n && sorted[place - 1] == sorted[place];
}

template <class T, class G>
__global__ void sum_runs(const std::int32_t* sorted, const std::int32_t* places, std::int64_t n,
                         const T* dout, TokenRows<G> rows, float* partial) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * chunk;
  const auto count = static_cast<int>(first + chunk < n ? chunk : n - first);
  __shared__ std::int32_t token[chunk];
  __shared__ std::int32_t place[chunk];
  for (auto i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    token[i] = sorted[first + i];
    place[i] = places[first + i];
  }
  __syncthreads();
  const bool is_continued = continues(sorted, first, n);
  const bool goes_on = continues(sorted, first + count, n);
  float* const own = partial + static_cast<std::int64_t>(blockIdx.x) * 2 * rows.columns;
  for (std::int64_t c = threadIdx.x; c < rows.columns; c += threads) {
    float total = 0.0F;
    int begin = 0;  // of the run
    for (int i = 0; i < count; i += at_once) {
      float values[at_once];  // loaded together, so that their latencies overlap
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        values[k] = i + k < count ? static_cast<float>(dout[place[i + k] * rows.columns + c]) : 0.0F;
      }
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const int last = i + k;
        if (last >= count) break;
        total += values[k];
        if (last + 1 < count && token[last + 1] == token[last]) continue;
        G* const row = rows.of(token[last]);
        if (begin == 0 && is_continued) {
          own[part_of_earlier_run * rows.columns + c] = total;
        } else if (last + 1 == count && goes_on) {
          own[part_of_own_run * rows.columns + c] = total;
        } else if (row != nullptr) {
          rows.store(row, c, total);
        }
        total = 0.0F;
        begin = last + 1;
      }
    }
  }
}

/// The block in which a run begins that continues in later blocks adds up its parts.
template <class G>
__global__ void join_runs(const std::int32_t* sorted, std::int64_t n, TokenRows<G> rows,
                          const float* partial) {
  const auto block = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t end = (block + 1) * chunk;  // of this block's places
  if (!continues(sorted, end, n)) return;
  const std::int32_t token = sorted[end];
  const bool began_earlier = sorted[block * chunk] == token && continues(sorted, block * chunk, n);
  G* const row = rows.of(token);
  if (began_earlier || row == nullptr) return;
  // The run ends before the first place with a larger token; its last part is in the block before that.
  std::int64_t low = end;
  for (std::int64_t high = n; low < high;) {
    const std::int64_t middle = (low + high) / 2;
    if (sorted[middle] == token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const std::int64_t last = (low - 1) / chunk;
  for (std::int64_t c = threadIdx.x; c < rows.columns; c += threads) {
    float total = partial[(block * 2 + part_of_own_run) * rows.columns + c];
#pragma unroll 8
    for (std::int64_t b = block + 1; b <= last; ++b) {
      total += partial[(b * 2 + part_of_earlier_run) * rows.columns + c];
    }
    rows.store(row, c, total);
  }
}

/// One block per row of dwpe.
template <class T, class G>
__global__ void add_position_rows(const T* dout, std::int64_t samples, std::int64_t length,
                                  std::int64_t columns, std::int64_t position, G* dwpe, bool accumulate) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) - position;
  const bool seen = t >= 0 && t < length;
  if (accumulate && !seen) return;
  G* row = dwpe + static_cast<std::int64_t>(blockIdx.x) * columns;
  for (std::int64_t c = threadIdx.x; c < columns; c += threads) {
    float total = accumulate ? static_cast<float>(row[c]) : 0.0F;
    for (std::int64_t b = 0; seen && b < samples; ++b) {
      total += static_cast<float>(dout[(b * length + t) * columns + c]);
    }
    row[c] = static_cast<G>(total);
  }
}

/// `bytes` rounded up, so that the next array is aligned.
std::size_t padded(std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  return (bytes + alignment - 1) / alignment * alignment;
}

/// The token part, by a sort; false if the workspace is too small for it.
bool token_gradient(cudaStream_t stream, TensorRef tokens, TensorRef dout, std::int64_t first_token,
                    TensorRef dwte, bool accumulate, const Workspace& workspace) {
  const std::int64_t n = tokens.size();
  const std::int64_t columns = dwte.shape[dwte.rank - 1];
  const auto count = static_cast<int>(n);
  auto* memory = static_cast<std::byte*>(workspace.data());
  const std::size_t words = padded(static_cast<std::size_t>(n) * sizeof(std::int32_t));
  if (3 * words > Workspace::bytes) return false;
  auto* places = reinterpret_cast<std::int32_t*>(memory);
  auto* sorted = reinterpret_cast<std::int32_t*>(memory + words);
  auto* sorted_places = reinterpret_cast<std::int32_t*>(memory + 2 * words);
  std::size_t scratch = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, scratch, tokens.as<std::int32_t>(), sorted, places,
                                        sorted_places, count, 0, 32, stream),
        "cub::DeviceRadixSort");
  const unsigned blocks = blocks_for(n, chunk);
  const std::size_t parts = padded(static_cast<std::size_t>(blocks * 2 * columns) * sizeof(float));
  if (3 * words + std::max(scratch, parts) > Workspace::bytes) return false;

  if (!accumulate) {
    check(cudaMemsetAsync(dwte.data, 0, static_cast<std::size_t>(dwte.size()) * size_of(dwte.dtype), stream),
          "cudaMemsetAsync");
  }
  if (n == 0) return true;
  launch(count_up, blocks_for(n, threads), threads, stream, places, n);
  check(cub::DeviceRadixSort::SortPairs(memory + 3 * words, scratch, tokens.as<std::int32_t>(), sorted,
                                        places, sorted_places, count, 0, 32, stream),
        "cub::DeviceRadixSort");
  auto* partial = reinterpret_cast<float*>(memory + 3 * words);  // the sort no longer needs its scratch
  dispatch_float(dout.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(dwte.dtype, [&]<class G>(G) {
      const TokenRows<G> rows{dwte.as<G>(), first_token, dwte.shape[0], columns, accumulate};
      launch(sum_runs<T, G>, blocks, threads, stream, sorted, sorted_places, n, dout.as<T>(), rows, partial);
      launch(join_runs<G>, blocks, threads, stream, sorted, n, rows, partial);
    });
  });
  return true;
}

void position_gradient(cudaStream_t stream, TensorRef dout, std::int64_t position, TensorRef dwpe,
                       bool accumulate) {
  require(dout.rank == 3, "(B, T, C)");
  dispatch_float(dout.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(dwpe.dtype, [&]<class G>(G) {
      launch(add_position_rows<T, G>, static_cast<unsigned>(dwpe.shape[0]), threads, stream, dout.as<T>(),
             dout.shape[0], dout.shape[1], dout.shape[2], position, dwpe.as<G>(), accumulate);
    });
  });
}

}  // namespace

bool KernelOperations::run(const EmbeddingBackward& op) {
  require(op.position >= 0 && op.position + op.tokens.shape[1] <= op.dwpe.shape[0], "positions inside dwpe");
  if (!token_gradient(queue(), op.tokens, op.dout, op.first_token, op.dwte, op.accumulate_wte, workspace_)) {
    return false;
  }
  position_gradient(queue(), op.dout, op.position, op.dwpe, op.accumulate_wpe);
  return true;
}

}  // namespace mylos::compute_cuda
