// SPDX-License-Identifier: BSD-3-Clause
#include <cub/device/device_radix_sort.cuh>

#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr int threads = 256;

__global__ void count_up(std::int32_t* places, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < n) places[i] = static_cast<std::int32_t>(i);
}

/// `sorted` holds the sorted tokens, and `places` their rows in dout, ascending among equal tokens. The block
/// of a token's first occurrence adds up the rows of all its occurrences, in fp32. dwte has `num_tokens`
/// rows, the first one for `first_token`.
template <class T, class G>
__global__ void add_token_rows(const std::int32_t* sorted, const std::int32_t* places, std::int64_t n,
                               const T* dout, std::int64_t columns, std::int64_t first_token,
                               std::int64_t num_tokens, G* dwte, bool accumulate) {
  const std::int64_t first = blockIdx.x;
  const std::int32_t token = sorted[first];
  if (first > 0 && sorted[first - 1] == token) return;
  const std::int64_t place = token - first_token;
  if (place < 0 || place >= num_tokens) return;
  G* row = dwte + place * columns;
  for (std::int64_t c = threadIdx.x; c < columns; c += threads) {
    float total = accumulate ? static_cast<float>(row[c]) : 0.0F;
    for (std::int64_t i = first; i < n && sorted[i] == token; ++i) {
      total += static_cast<float>(dout[places[i] * columns + c]);
    }
    row[c] = static_cast<G>(total);
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
  if (3 * words + scratch > Workspace::bytes) return false;

  if (!accumulate) {
    check(cudaMemsetAsync(dwte.data, 0, static_cast<std::size_t>(dwte.size()) * size_of(dwte.dtype), stream),
          "cudaMemsetAsync");
  }
  if (n == 0) return true;
  launch(count_up, blocks_for(n, threads), threads, stream, places, n);
  check(cub::DeviceRadixSort::SortPairs(memory + 3 * words, scratch, tokens.as<std::int32_t>(), sorted,
                                        places, sorted_places, count, 0, 32, stream),
        "cub::DeviceRadixSort");
  dispatch_float(dout.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(dwte.dtype, [&]<class G>(G) {
      launch(add_token_rows<T, G>, static_cast<unsigned>(n), threads, stream, sorted, sorted_places, n,
             dout.as<T>(), columns, first_token, dwte.shape[0], dwte.as<G>(), accumulate);
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
