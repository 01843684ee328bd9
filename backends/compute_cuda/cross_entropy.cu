// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr int threads = 512;
constexpr int warps = threads / warp_size;

/// Statistics of some of a row's logits: the largest, the sum of exp(logit - largest), and the index of the
/// first largest logit.
struct Softmax {
  float largest;
  float sum;
  std::int32_t place;
};

__device__ Softmax merge(const Softmax& a, const Softmax& b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, 0.0F, min(a.place, b.place)};
  const bool from_a = a.largest > b.largest || (a.largest == b.largest && a.place < b.place);
  return {largest, a.sum * __expf(a.largest - largest) + b.sum * __expf(b.largest - largest),
          from_a ? a.place : b.place};
}

__device__ Softmax warp_merge(Softmax own) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    const Softmax other{__shfl_xor_sync(full_mask, own.largest, offset),
                        __shfl_xor_sync(full_mask, own.sum, offset),
                        __shfl_xor_sync(full_mask, own.place, offset)};
    // Both lanes merge the two in the same order.
    own = (threadIdx.x & static_cast<unsigned>(offset)) == 0 ? merge(own, other) : merge(other, own);
  }
  return own;
}

/// One block per row: one pass for maximum and sum (Milakov and Gimelshein, 2018), one for the gradient.
template <class T>
__global__ void row_kernel(T* logits, const std::int32_t* targets, std::int64_t columns, std::int64_t vocab,
                           float gradient_scale, const StepScalars* scalars, float* losses,
                           std::int32_t* correct) {
  constexpr int size = Pack<T>::size;
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  T* x = logits + row * columns;
  const bool counts = target >= 0;
  Softmax all{-INFINITY, 0.0F, 0};
  float of_target = 0.0F;
  if (counts) {
    of_target = static_cast<float>(x[target]);
    Softmax own{-INFINITY, 0.0F, INT32_MAX};
    for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * size; i < vocab;
         i += static_cast<std::int64_t>(threads) * size) {
      const Pack<T> values = load_pack(x + i);
      float largest = own.largest;
      for (int v = 0; v < size; ++v) {
        const float value = static_cast<float>(values.values[v]);
        if (i + v < vocab && value > largest) {
          largest = value;
          own.place = static_cast<std::int32_t>(i + v);
        }
      }
      own.sum *= own.largest == largest ? 1.0F : __expf(own.largest - largest);
      own.largest = largest;
      for (int v = 0; v < size; ++v) {
        const auto value = static_cast<float>(values.values[v]);
        if (i + v < vocab && value != -INFINITY) own.sum += __expf(value - largest);
      }
    }
    __shared__ Softmax parts[warps];
    own = warp_merge(own);
    if (threadIdx.x % warp_size == 0) parts[threadIdx.x / warp_size] = own;
    __syncthreads();
    all = parts[0];
    for (int w = 1; w < warps; ++w) all = merge(all, parts[w]);
  }
  const float loss = counts ? logf(all.sum) + (all.largest - of_target) : 0.0F;
  if (threadIdx.x == 0) {
    losses[row] = loss;
    if (correct != nullptr) correct[row] = counts && all.place == target ? 1 : 0;
  }
  if (scalars == nullptr) return;
  __syncthreads();  // every thread has read the target's logit before it is overwritten
  const float scale_of_onehot = gradient_scale * scalars->loss_scale;
  const float scale = counts ? scale_of_onehot / all.sum : 0.0F;
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * size; i < columns;
       i += static_cast<std::int64_t>(threads) * size) {
    const Pack<T> values = load_pack(x + i);
    Pack<T> gradient;
    for (int v = 0; v < size; ++v) {
      float g = 0.0F;
      if (counts && i + v < vocab) {
        g = i + v == target ? scale_of_onehot * expm1f(-loss)
                            : scale * __expf(static_cast<float>(values.values[v]) - all.largest);
      }
      gradient.values[v] = static_cast<T>(g);
    }
    store_pack(x + i, gradient);
  }
}

}  // namespace

bool KernelOperations::run(const CrossEntropy& op) {
  if (op.statistics) return false;
  const std::int64_t columns = op.logits.shape[op.logits.rank - 1];
  require(op.vocab > 0 && op.vocab <= columns, "the vocabulary inside the columns");
  return dispatch_float(op.logits.dtype, [&]<class T>(T) {
    if (columns % Pack<T>::size != 0 || !has_packs({op.logits.data})) return false;
    const auto rows = static_cast<unsigned>(op.targets.size());
    require(op.logits.size() == op.targets.size() * columns && op.losses.size() == op.targets.size(),
            "one target and loss for each row");
    if (rows == 0) return true;
    launch(row_kernel<T>, rows, threads, queue(), op.logits.as<T>(), op.targets.as<std::int32_t>(), columns,
           op.vocab, op.gradient_scale, op.scalars, op.losses.as<float>(),
           op.correct ? op.correct.as<std::int32_t>() : nullptr);
    return true;
  });
}

}  // namespace mylos::compute_cuda
