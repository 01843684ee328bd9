// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/column_sums.cuh"
#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr float layernorm_epsilon = 1e-5F;
constexpr int rows_of_block = 8;  // one warp each
constexpr int threads = rows_of_block * warp_size;

std::int64_t columns_of(const TensorRef& x) {
  return x.shape[x.rank - 1];
}

/// The row of this warp; it may lie beyond the last row.
__device__ std::int64_t warp_row() {
  return static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / warp_size;
}

/// Calls f(first column) for the packs of this lane.
template <class T, class Function>
__device__ void for_packs(std::int64_t columns, const Function& f) {
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x % warp_size) * Pack<T>::size; i < columns;
       i += static_cast<std::int64_t>(warp_size) * Pack<T>::size) {
    f(i);
  }
}

/// The layernorm of x. With `residual`, the layernorm of x + residual, which is stored in `total`; `total`
/// may be x or residual.
template <class T>
__global__ void forward(const T* x, const T* residual, T* total, const T* gamma, const T* beta, T* y,
                        float* mean, float* rstd, std::int64_t rows, std::int64_t columns) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const T* in = x + row * columns;
  T* out = y + row * columns;
  if (residual != nullptr) {
    // Each lane reads what it has written itself, so no barrier is needed.
    T* sums = total + row * columns;
    for_packs<T>(columns, [&](std::int64_t i) {
      Pack<T> values = load_pack(in + i);
      const Pack<T> added = load_pack(residual + row * columns + i);
      for (int v = 0; v < Pack<T>::size; ++v) {
        values.values[v] =
            static_cast<T>(static_cast<float>(values.values[v]) + static_cast<float>(added.values[v]));
      }
      store_pack(sums + i, values);
    });
    in = sums;
  }
  const float scale = 1.0F / static_cast<float>(columns);
  float sum = 0.0F;
  for_packs<T>(columns, [&](std::int64_t i) {
    const Pack<T> values = load_pack(in + i);
    for (const T& value : values.values) sum += static_cast<float>(value);
  });
  const float average = warp_sum(sum) * scale;
  float squares = 0.0F;
  for_packs<T>(columns, [&](std::int64_t i) {
    const Pack<T> values = load_pack(in + i);
    for (const T& value : values.values) {
      const float centred = static_cast<float>(value) - average;
      squares = fmaf(centred, centred, squares);
    }
  });
  const float inverse = 1.0F / sqrtf(warp_sum(squares) * scale + layernorm_epsilon);
  for_packs<T>(columns, [&](std::int64_t i) {
    const Pack<T> values = load_pack(in + i);
    const Pack<T> g = load_pack(gamma + i);
    const Pack<T> b = load_pack(beta + i);
    Pack<T> result;
    for (int v = 0; v < Pack<T>::size; ++v) {
      const float normal = (static_cast<float>(values.values[v]) - average) * inverse;
      result.values[v] =
          static_cast<T>(fmaf(normal, static_cast<float>(g.values[v]), static_cast<float>(b.values[v])));
    }
    store_pack(out + i, result);
  });
  if (threadIdx.x % warp_size == 0) {
    mean[row] = average;
    rstd[row] = inverse;
  }
}

template <class T>
__global__ void backward_input(const T* dy, const T* x, const T* gamma, const float* mean, const float* rstd,
                               const T* residual, T* dx, std::int64_t rows, std::int64_t columns) {
  const std::int64_t row = warp_row();
  if (row >= rows) return;
  const std::int64_t begin = row * columns;
  const float average = mean[row];
  const float inverse = rstd[row];
  float sum = 0.0F;
  float sum_normal = 0.0F;
  for_packs<T>(columns, [&](std::int64_t i) {
    const Pack<T> gradient = load_pack(dy + begin + i);
    const Pack<T> values = load_pack(x + begin + i);
    const Pack<T> weight = load_pack(gamma + i);
    for (int v = 0; v < Pack<T>::size; ++v) {
      const float g = static_cast<float>(gradient.values[v]) * static_cast<float>(weight.values[v]);
      sum += g;
      sum_normal = fmaf(g, (static_cast<float>(values.values[v]) - average) * inverse, sum_normal);
    }
  });
  const float scale = 1.0F / static_cast<float>(columns);
  const float mean_g = warp_sum(sum) * scale;
  const float mean_g_normal = warp_sum(sum_normal) * scale;
  // dx may be the memory of dy or of residual: each pack is read before it is written, by the same lane.
  for_packs<T>(columns, [&](std::int64_t i) {
    const Pack<T> gradient = load_pack(dy + begin + i);
    const Pack<T> values = load_pack(x + begin + i);
    const Pack<T> weight = load_pack(gamma + i);
    const Pack<T> added = residual != nullptr ? load_pack(residual + begin + i) : Pack<T>{};
    Pack<T> result;
    for (int v = 0; v < Pack<T>::size; ++v) {
      const float g = static_cast<float>(gradient.values[v]) * static_cast<float>(weight.values[v]);
      const float normal = (static_cast<float>(values.values[v]) - average) * inverse;
      result.values[v] = static_cast<T>(static_cast<float>(added.values[v]) +
                                        inverse * (g - mean_g - normal * mean_g_normal));
    }
    store_pack(dx + begin + i, result);
  });
}

template <class T>
struct WeightTerm {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  std::int64_t columns;

  __device__ Sums<2> operator()(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * columns + column;
    const auto gradient = static_cast<float>(dy[i]);
    return {gradient * (static_cast<float>(x[i]) - mean[row]) * rstd[row], gradient};
  }
};

template <class T>
struct BiasTerm {
  const T* dy;
  std::int64_t columns;

  __device__ Sums<1> operator()(std::int64_t row, std::int64_t column) const {
    return {static_cast<float>(dy[row * columns + column])};
  }
};

/// The layernorm of x, or of total = x + residual if there is a residual. total may be the memory of x or of
/// residual.
bool layernorm_forward(cudaStream_t stream, TensorRef x, TensorRef residual, TensorRef total, TensorRef gamma,
                       TensorRef beta, TensorRef y, TensorRef mean, TensorRef rstd) {
  return dispatch_float(x.dtype, [&]<class T>(T) {
    const std::int64_t columns = columns_of(x);
    if (x.size() == 0 || columns % Pack<T>::size != 0 ||
        !has_packs({x.data, residual.data, total.data, gamma.data, beta.data, y.data})) {
      return false;
    }
    const std::int64_t rows = x.size() / columns;
    launch(forward<T>, blocks_for(rows, rows_of_block), threads, stream, x.as<T>(),
           residual ? residual.as<T>() : nullptr, total ? total.as<T>() : nullptr, gamma.as<T>(),
           beta.as<T>(), y.as<T>(), mean.as<float>(), rstd.as<float>(), rows, columns);
    return true;
  });
}

}  // namespace

bool KernelOperations::run(const LayernormForward& op) {
  return layernorm_forward(queue(), op.x, {}, {}, op.gamma, op.beta, op.y, op.mean, op.rstd);
}

bool KernelOperations::run(const DropoutAddLayernorm& op) {
  return op.dropout.probability == 0.0F && op.residual &&
         layernorm_forward(queue(), op.x, op.residual, op.sum, op.gamma, op.beta, op.y, op.mean, op.rstd);
}

bool KernelOperations::run(const LayernormBackwardInput& op) {
  return dispatch_float(op.x.dtype, [&]<class T>(T) {
    const std::int64_t columns = columns_of(op.x);
    if (op.x.size() == 0 || columns % Pack<T>::size != 0 ||
        !has_packs({op.x.data, op.dy.data, op.gamma.data, op.residual.data, op.dx.data})) {
      return false;
    }
    const std::int64_t rows = op.x.size() / columns;
    launch(backward_input<T>, blocks_for(rows, rows_of_block), threads, queue(), op.dy.as<T>(), op.x.as<T>(),
           op.gamma.as<T>(), op.mean.as<float>(), op.rstd.as<float>(),
           op.residual ? op.residual.as<T>() : nullptr, op.dx.as<T>(), rows, columns);
    return true;
  });
}

void KernelOperations::run(const LayernormBackwardWeight& op) {
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dgamma.dtype, [&]<class G>(G) {
      const std::int64_t columns = columns_of(op.x);
      column_sums<2, G>(
          queue(),
          WeightTerm<T>{op.dy.as<T>(), op.x.as<T>(), op.mean.as<float>(), op.rstd.as<float>(), columns},
          op.mean.size(), columns, SumTargets<2, G>{op.dgamma.as<G>(), op.dbeta.as<G>()}, op.accumulate,
          workspace_);
    });
  });
}

void bias_gradient(cudaStream_t stream, TensorRef dy, TensorRef dbias, bool accumulate,
                   const Workspace& workspace) {
  dispatch_float(dy.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(dbias.dtype, [&]<class G>(G) {
      const std::int64_t columns = dbias.size();
      column_sums<1, G>(stream, BiasTerm<T>{dy.as<T>(), columns}, columns > 0 ? dy.size() / columns : 0,
                        columns, SumTargets<1, G>{dbias.as<G>()}, accumulate, workspace);
    });
  });
}

}  // namespace mylos::compute_cuda
