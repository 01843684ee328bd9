// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr int threads = 256;
constexpr int most_blocks = 1024;
constexpr std::int64_t least_elements = std::int64_t{threads} * 16;  // per block

/// partial[block] = sum of term(x[i]) over the block's elements. A pack is summed in fp32; the sums of packs
/// are added in double.
template <class T, class Term>
__global__ void sum_blocks(const T* x, std::int64_t n, bool in_packs, Term term, double* partial) {
  constexpr int size = Pack<T>::size;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * threads;
  const std::int64_t packs = in_packs ? n / size : 0;
  double total = 0.0;
  for (std::int64_t i = thread; i < packs; i += stride) {
    const Pack<T> values = load_pack(x + i * size);
    float sum = 0.0F;
    for (const T& value : values.values) sum += term(static_cast<float>(value));
    total += static_cast<double>(sum);
  }
  for (std::int64_t i = packs * size + thread; i < n; i += stride) {
    total += static_cast<double>(term(static_cast<float>(x[i])));
  }
  total = block_sum<threads>(total);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void sum_partials(const double* partial, int blocks, float factor, float* out, bool accumulate) {
  double total = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += threads) total += partial[i];
  total = block_sum<threads>(total);
  if (threadIdx.x == 0) {
    out[0] = static_cast<float>(factor * total + (accumulate ? static_cast<double>(out[0]) : 0.0));
  }
}

struct Identity {
  __device__ float operator()(float x) const { return x; }
};
struct Square {
  __device__ float operator()(float x) const { return x * x; }
};

template <class T, class Term>
void reduce(cudaStream_t stream, const TensorRef& x, float factor, const TensorRef& out, bool accumulate,
            const Workspace& workspace, Term term) {
  require(x.contiguous() && out.size() == 1, "a contiguous tensor and one sum");
  static_assert(most_blocks * sizeof(double) <= Workspace::bytes);
  const std::int64_t n = x.size();
  const unsigned wanted = n > 0 ? blocks_for(n, least_elements) : 1;
  const unsigned blocks = wanted < most_blocks ? wanted : most_blocks;
  auto* partial = static_cast<double*>(workspace.data());
  launch(sum_blocks<T, Term>, blocks, threads, stream, x.as<T>(), n, has_packs({x.data}), term, partial);
  launch(sum_partials, 1, threads, stream, partial, static_cast<int>(blocks), factor, out.as<float>(),
         accumulate);
}

}  // namespace

void KernelOperations::run(const Sum& op) {
  reduce<float>(queue(), op.x, 1.0F, op.out, op.accumulate, workspace_, Identity());
}

void KernelOperations::run(const SumOfSquares& op) {
  dispatch_float(op.x.dtype, [&](auto type) {
    reduce<decltype(type)>(queue(), op.x, op.factor, op.out, op.accumulate, workspace_, Square());
  });
}

}  // namespace mylos::compute_cuda
