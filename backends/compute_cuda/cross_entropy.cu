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

// exp(x - largest) is computed as exp2f(fmaf(x, log2e, -shift_of(largest))). The rounding of the shift is the
// same for all elements of a row, so it cancels in the quotients and in the loss.
constexpr float log2e = 1.44269504F;
constexpr float ln2 = 0.69314718F;

/// A row of -infinity has no largest element. The product is rounded: __fmul_rn is never contracted with a
/// sum.
__device__ float shift_of(float largest) {
  return largest == -INFINITY ? 0.0F : __fmul_rn(largest, log2e);
}

/// The factor from sums of exp(x - from) to sums of exp(x - to).
__device__ float rescaling(float from, float to) {
  return from == -INFINITY ? 0.0F : exp2f(shift_of(from) - shift_of(to));
}

__device__ Softmax merge(const Softmax& a, const Softmax& b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, 0.0F, min(a.place, b.place)};
  const bool from_a = a.largest > b.largest || (a.largest == b.largest && a.place < b.place);
  return {largest, a.sum * rescaling(a.largest, largest) + b.sum * rescaling(b.largest, largest),
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

/// Adds `count` logits, of which the first has index `first`.
template <bool with_place, class T>
__device__ void add(Softmax& own, const Pack<T>& pack, std::int32_t first, int count) {
  float values[Pack<T>::size];
  float largest = own.largest;
#pragma unroll
  for (int v = 0; v < Pack<T>::size; ++v) {
    values[v] = v < count ? static_cast<float>(pack.values[v]) : -INFINITY;
    if constexpr (with_place) {
      if (values[v] > largest) own.place = first + v;
    }
    largest = values[v] > largest ? values[v] : largest;
  }
  if (largest > own.largest) {
    own.sum *= rescaling(own.largest, largest);
    own.largest = largest;
  }
  const float shift = shift_of(own.largest);
#pragma unroll
  for (int v = 0; v < Pack<T>::size; ++v) own.sum += exp2f(fmaf(values[v], log2e, -shift));
}

/// One block per row: one pass for maximum and sum (Milakov and Gimelshein, 2018), one for the gradient.
/// `with_place` is whether `correct` is wanted.
template <bool with_place, class T>
__global__ void row_kernel(T* logits, const std::int32_t* targets, std::int64_t columns, std::int64_t vocab,
                           float gradient_scale, const StepScalars* scalars, float* losses,
                           std::int32_t* correct) {
  constexpr int size = Pack<T>::size;
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  T* x = logits + row * columns;
  const bool counts = target >= 0;
  const auto packs = static_cast<std::int32_t>(columns / size);
  const auto whole = static_cast<std::int32_t>(vocab / size);  // packs of logits only
  const auto rest = static_cast<int>(vocab % size);            // logits in the pack after them
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  Softmax all{-INFINITY, 0.0F, 0};
  float of_target = 0.0F;
  if (counts) {
    of_target = static_cast<float>(x[target]);
    Softmax own{-INFINITY, 0.0F, INT32_MAX};
    for (std::int32_t i = thread; i < whole; i += threads) {
      add<with_place>(own, load_pack(x + i * size), i * size, size);
    }
    if (rest > 0 && thread == whole % threads) {
      add<with_place>(own, load_pack(x + whole * size), whole * size, rest);
    }
    __shared__ Softmax parts[warps];
    own = warp_merge(own);
    if (threadIdx.x % warp_size == 0) parts[threadIdx.x / warp_size] = own;
    __syncthreads();
    all = parts[0];
    for (int w = 1; w < warps; ++w) all = merge(all, parts[w]);
  }
  const float shift = shift_of(all.largest);
  const float loss = counts ? ln2 * (log2f(all.sum) - fmaf(of_target, log2e, -shift)) : 0.0F;
  if (thread == 0) {
    losses[row] = loss;
    if constexpr (with_place) correct[row] = counts && all.place == target ? 1 : 0;
  }
  if (scalars == nullptr) return;
  __syncthreads();  // every thread has read the target's logit before it is overwritten
  const float scale_of_onehot = gradient_scale * scalars->loss_scale;
  const float scale = counts ? scale_of_onehot / all.sum : 0.0F;
  // From the end, because that part of the row was read last and is still in the cache.
  for (std::int32_t i = (packs - 1 - thread) / threads * threads + thread; i >= 0 && thread < packs;
       i -= threads) {
    Pack<T> gradient{};
    if (counts && i <= whole) {
      const Pack<T> values = load_pack(x + i * size);
      const int count = i < whole ? size : rest;
#pragma unroll
      for (int v = 0; v < size; ++v) {
        const float g = scale * exp2f(fmaf(static_cast<float>(values.values[v]), log2e, -shift));
        gradient.values[v] = static_cast<T>(v < count ? g : 0.0F);
      }
    }
    store_pack(x + i * size, gradient);
  }
  if (!counts) return;
  __syncthreads();
  if (thread == 0) x[target] = static_cast<T>(scale_of_onehot * expm1f(-loss));
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
    launch(op.correct ? row_kernel<true, T> : row_kernel<false, T>, rows, threads, queue(), op.logits.as<T>(),
           op.targets.as<std::int32_t>(), columns, op.vocab, op.gradient_scale, op.scalars,
           op.losses.as<float>(), op.correct ? op.correct.as<std::int32_t>() : nullptr);
    return true;
  });
}

}  // namespace mylos::compute_cuda
