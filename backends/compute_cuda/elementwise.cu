// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr int threads = 256;

/// out[i] = function(a[i], b[i]) for whole packs; b may be null and is then not read.
template <class T, class Function>
__global__ void map_packs(const T* a, const T* b, T* out, std::int64_t packs, Function function) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const std::int64_t first = i * Pack<T>::size;
  const Pack<T> left = load_pack(a + first);
  const Pack<T> right = b != nullptr ? load_pack(b + first) : Pack<T>{};
  Pack<T> result;
  for (int v = 0; v < Pack<T>::size; ++v) {
    result.values[v] =
        static_cast<T>(function(static_cast<float>(left.values[v]), static_cast<float>(right.values[v])));
  }
  store_pack(out + first, result);
}

template <class Function>
bool map(cudaStream_t stream, const TensorRef& a, const TensorRef& b, const TensorRef& out,
         Function function) {
  require(a.size() == out.size() && (!b || b.size() == out.size()), "tensors of one size");
  return dispatch_float(out.dtype, [&]<class T>(T) {
    const std::int64_t n = out.size();
    if (n % Pack<T>::size != 0 || !has_packs({a.data, b.data, out.data})) return false;
    const std::int64_t packs = n / Pack<T>::size;
    if (packs > 0) {
      launch(map_packs<T, Function>, blocks_for(packs, threads), threads, stream, a.as<T>(),
             b ? b.as<T>() : nullptr, out.as<T>(), packs, function);
    }
    return true;
  });
}

constexpr float sqrt_2_over_pi = 0.79788456F;
constexpr float cubic = 0.044715F;

/// gelu(x) = x gate(x), as in compute_kokkos.
__device__ float gelu_gate(float x) {
  return 1.0F / (1.0F + __expf(-2.0F * sqrt_2_over_pi * x * fmaf(cubic * x, x, 1.0F)));
}

struct Gelu {
  __device__ float operator()(float x, float) const { return x * gelu_gate(x); }
};

struct GeluDerivative {
  __device__ float operator()(float x, float dy) const {
    // Beyond the bound, the derivative is 0 or 1, and powers of x could overflow. NaN stays NaN.
    constexpr float bound = 30.0F;
    const float value = x > bound ? bound : (x < -bound ? -bound : x);
    const float gate = gelu_gate(value);
    const float slope = 2.0F * sqrt_2_over_pi * fmaf(3.0F * cubic * value, value, 1.0F);
    return dy * fmaf(value * slope, gate * (1.0F - gate), gate);
  }
};

struct Add {
  __device__ float operator()(float x, float residual) const { return x + residual; }
};

}  // namespace

bool KernelOperations::run(const GeluForward& op) {
  return map(queue(), op.x, {}, op.y, Gelu());
}

bool KernelOperations::run(const GeluBackward& op) {
  return map(queue(), op.x, op.dy, op.dx, GeluDerivative());
}

bool KernelOperations::run(const DropoutAdd& op) {
  return op.dropout.probability == 0.0F && map(queue(), op.x, op.residual, op.y, Add());
}

}  // namespace mylos::compute_cuda
