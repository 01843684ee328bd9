// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <type_traits>

#include "backends/compute_cuda/column_sums.cuh"
#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr float layernorm_epsilon = 1e-5F;
constexpr int rows_of_block = 8;  // one warp each
constexpr int threads = rows_of_block * warp_size;
constexpr int backward_warps = 4;  // of a block of the backward pass, with more registers per thread
constexpr int backward_threads = backward_warps * warp_size;

std::int64_t columns_of(const TensorRef& x) {
  return x.shape[x.rank - 1];
}

/// A row that a warp holds in registers: each lane has `packs` packs, one warp's width apart.
template <class T, int packs>
struct Row {
  static constexpr int width = Pack<T>::size;
  Pack<T> values[packs]{};

  /// Calls f(index of a pack, its first column) for the packs of this lane that lie in the row.
  template <class Function>
  __device__ static void for_each(std::int64_t columns, const Function& f) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const std::int64_t column =
          (static_cast<std::int64_t>(p) * warp_size + threadIdx.x % warp_size) * width;
      if (column < columns) f(p, column);
    }
  }
  __device__ void load(const T* row, std::int64_t columns) {
    for_each(columns, [&](int p, std::int64_t column) { values[p] = load_pack(row + column); });
  }
  __device__ float at(int p, int v) const {
    return static_cast<float>(values[p].values[v]);
  }
  /// Hides from the compiler that the packs have been converted before, so that it does not keep both.
  __device__ void forget_conversions() {
#if defined(__CUDA_ARCH__)
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      auto* words = reinterpret_cast<unsigned*>(&values[p]);
      asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
    }
#endif
  }
};

/// The layernorm of x. With `residual`, the layernorm of x + residual, which is stored in `total`; `total`
/// may be x or residual. One warp per row.
template <class T, int packs>
__global__ void forward(const T* x, const T* residual, T* total, const T* gamma, const T* beta, T* y,
                        float* mean, float* rstd, std::int64_t rows, std::int64_t columns) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / warp_size;
  if (row >= rows) return;
  const std::int64_t begin = row * columns;
  using Own = Row<T, packs>;
  Own own;
  own.load(x + begin, columns);
  if (residual != nullptr) {
    Own added;
    added.load(residual + begin, columns);
    Own::for_each(columns, [&](int p, std::int64_t column) {
      for (int v = 0; v < Own::width; ++v)
        own.values[p].values[v] = static_cast<T>(own.at(p, v) + added.at(p, v));
      store_pack(total + begin + column, own.values[p]);
    });
  }
  const float scale = 1.0F / static_cast<float>(columns);
  float sum = 0.0F;
  Own::for_each(columns, [&](int p, std::int64_t) {
    for (int v = 0; v < Own::width; ++v) sum += own.at(p, v);
  });
  const float average = warp_sum(sum) * scale;
  float squares = 0.0F;
  Own::for_each(columns, [&](int p, std::int64_t) {
    for (int v = 0; v < Own::width; ++v) {
      const float centred = own.at(p, v) - average;
      squares = fmaf(centred, centred, squares);
    }
  });
  const float inverse = 1.0F / sqrtf(warp_sum(squares) * scale + layernorm_epsilon);
  Own::for_each(columns, [&](int p, std::int64_t column) {
    const Pack<T> g = load_pack(gamma + column);
    const Pack<T> b = load_pack(beta + column);
    Pack<T> result;
    for (int v = 0; v < Own::width; ++v) {
      const float normal = (own.at(p, v) - average) * inverse;
      result.values[v] =
          static_cast<T>(fmaf(normal, static_cast<float>(g.values[v]), static_cast<float>(b.values[v])));
    }
    store_pack(y + begin + column, result);
  });
  if (threadIdx.x % warp_size == 0) {
    mean[row] = average;
    rstd[row] = inverse;
  }
}

/// The gradient of the input and, if `partial` is not null, the gradients of the weights: partial (gridDim.x,
/// 2, columns), the sums over the rows of a block. Each warp takes a row at a time. dx may be the memory of
/// dy or of residual: a lane reads its packs before it writes them.
template <class T, int packs>
__global__ void __launch_bounds__(backward_threads)
    backward(const T* dy, const T* x, const T* gamma, const float* mean, const float* rstd, const T* residual,
             T* dx, std::int64_t rows, std::int64_t columns, float* partial) {
  using Own = Row<T, packs>;
  constexpr int width = Own::width;
  const float scale = 1.0F / static_cast<float>(columns);
  const auto warp = static_cast<int>(threadIdx.x / warp_size);
  float sums[2][packs][width] = {};
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * backward_warps + warp; row < rows;
       row += static_cast<std::int64_t>(gridDim.x) * backward_warps) {
    const std::int64_t begin = row * columns;
    Own gradient;
    Own value;
    Own added;
    gradient.load(dy + begin, columns);
    value.load(x + begin, columns);
    if (residual != nullptr) added.load(residual + begin, columns);
    const float average = mean[row];
    const float inverse = rstd[row];
    float sum = 0.0F;
    float sum_normal = 0.0F;
    Own::for_each(columns, [&](int p, std::int64_t column) {
      const Pack<T> weight = load_pack(gamma + column);
      for (int v = 0; v < width; ++v) {
        const float normal = (value.at(p, v) - average) * inverse;
        const float g = gradient.at(p, v) * static_cast<float>(weight.values[v]);
        sum += g;
        sum_normal = fmaf(g, normal, sum_normal);
        sums[0][p][v] = fmaf(gradient.at(p, v), normal, sums[0][p][v]);
        sums[1][p][v] += gradient.at(p, v);
      }
    });
    const float mean_g = warp_sum(sum) * scale;
    const float mean_g_normal = warp_sum(sum_normal) * scale;
    gradient.forget_conversions();
    value.forget_conversions();
    Own::for_each(columns, [&](int p, std::int64_t column) {
      const Pack<T> weight = load_pack(gamma + column);
      Pack<T> result;
      for (int v = 0; v < width; ++v) {
        const float normal = (value.at(p, v) - average) * inverse;
        const float g = gradient.at(p, v) * static_cast<float>(weight.values[v]);
        result.values[v] = static_cast<T>(added.at(p, v) + inverse * (g - mean_g - normal * mean_g_normal));
      }
      store_pack(dx + begin + column, result);
    });
  }
  if (partial == nullptr) return;
  // The warps add their sums in turn, so always in the same order.
  __shared__ float totals[2][packs * width * warp_size];
  for (int turn = 0; turn < backward_warps; ++turn) {
    if (warp == turn) {
      Own::for_each(columns, [&](int p, std::int64_t column) {
        for (int s = 0; s < 2; ++s) {
          for (int v = 0; v < width; ++v) {
            float& total = totals[s][column + v];
            total = turn == 0 ? sums[s][p][v] : total + sums[s][p][v];
          }
        }
      });
    }
    __syncthreads();
  }
  for (std::int64_t i = threadIdx.x; i < 2 * columns; i += backward_threads) {
    partial[static_cast<std::int64_t>(blockIdx.x) * 2 * columns + i] = totals[i / columns][i % columns];
  }
}

/// Calls f(packs), the packs of a lane for rows of this many columns; returns false if they are too many for
/// registers or no whole packs.
template <class T, class Function, int packs = 1>
bool with_packs(std::int64_t columns, const Function& f) {
  constexpr int most_packs = 16;  // 4096 columns, 2048 in fp32; from 7 on, some of a backward pass spills
  if (columns % Pack<T>::size != 0) return false;
  if constexpr (packs > most_packs) {
    return false;
  } else {
    if (columns > std::int64_t{packs} * warp_size * Pack<T>::size) {
      return with_packs<T, Function, packs + (packs < 8 ? 1 : 2)>(columns, f);
    }
    f(std::integral_constant<int, packs>());
    return true;
  }
}

template <class T, int width>
struct WeightTerm {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  std::int64_t columns;

  __device__ void operator()(std::int64_t row, std::int64_t column, Sums<2, width>& sums) const {
    float gradient[width];
    float value[width];
    load_floats<width>(dy + row * columns + column, gradient);
    load_floats<width>(x + row * columns + column, value);
    const float average = mean[row];
    const float inverse = rstd[row];
    for (int v = 0; v < width; ++v) {
      sums.values[0][v] = fmaf(gradient[v], (value[v] - average) * inverse, sums.values[0][v]);
      sums.values[1][v] += gradient[v];
    }
  }
};

template <class T, int width>
struct BiasTerm {
  const T* dy;
  std::int64_t columns;

  __device__ void operator()(std::int64_t row, std::int64_t column, Sums<1, width>& sums) const {
    float gradient[width];
    load_floats<width>(dy + row * columns + column, gradient);
    for (int v = 0; v < width; ++v) sums.values[0][v] += gradient[v];
  }
};

/// Calls f(width): the columns that a thread can take, a pack if rows and the addresses are whole packs.
template <class T, class Function>
void with_width(std::int64_t columns, std::initializer_list<const void*> pointers, const Function& f) {
  if (columns % Pack<T>::size == 0 && has_packs(pointers)) {
    f(std::integral_constant<int, Pack<T>::size>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

/// The layernorm of x, or of total = x + residual if there is a residual. total may be the memory of x or of
/// residual.
bool layernorm_forward(cudaStream_t stream, TensorRef x, TensorRef residual, TensorRef total, TensorRef gamma,
                       TensorRef beta, TensorRef y, TensorRef mean, TensorRef rstd) {
  return dispatch_float(x.dtype, [&]<class T>(T) {
    const std::int64_t columns = columns_of(x);
    if (x.size() == 0 || !has_packs({x.data, residual.data, total.data, gamma.data, beta.data, y.data})) {
      return false;
    }
    const std::int64_t rows = x.size() / columns;
    return with_packs<T>(columns, [&]<class Packs>(Packs packs) {
      launch(forward<T, packs()>, blocks_for(rows, rows_of_block), threads, stream, x.as<T>(),
             residual ? residual.as<T>() : nullptr, total ? total.as<T>() : nullptr, gamma.as<T>(),
             beta.as<T>(), y.as<T>(), mean.as<float>(), rstd.as<float>(), rows, columns);
    });
  });
}

/// The gradient of the input. With `partial`, `blocks` blocks also leave the parts of the weights' gradients
/// there.
bool layernorm_backward(cudaStream_t stream, TensorRef dy, TensorRef x, TensorRef gamma, TensorRef mean,
                        TensorRef rstd, TensorRef residual, TensorRef dx, int blocks, float* partial) {
  return dispatch_float(x.dtype, [&]<class T>(T) {
    const std::int64_t columns = columns_of(x);
    if (x.size() == 0 || !has_packs({x.data, dy.data, gamma.data, residual.data, dx.data})) return false;
    return with_packs<T>(columns, [&]<class Packs>(Packs packs) {
      launch(backward<T, packs()>, static_cast<unsigned>(blocks), backward_threads, stream, dy.as<T>(),
             x.as<T>(), gamma.as<T>(), mean.as<float>(), rstd.as<float>(),
             residual ? residual.as<T>() : nullptr, dx.as<T>(), x.size() / columns, columns, partial);
    });
  });
}

int blocks_of_rows(std::int64_t rows) {
  constexpr std::int64_t most = 528;  // four per multiprocessor of a Hopper
  return static_cast<int>(std::min<std::int64_t>(blocks_for(rows, backward_warps), most));
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
  return layernorm_backward(queue(), op.dy, op.x, op.gamma, op.mean, op.rstd, op.residual, op.dx,
                            blocks_of_rows(op.mean.size()), nullptr);
}

bool KernelOperations::run(const LayernormBackward& op) {
  const std::int64_t columns = columns_of(op.x);
  const int blocks = blocks_of_rows(op.mean.size());
  auto* partial = static_cast<float*>(workspace_.data());
  if (static_cast<std::size_t>(blocks * 2 * columns) * sizeof(float) > Workspace::bytes ||
      !layernorm_backward(queue(), op.dy, op.x, op.gamma, op.mean, op.rstd, op.residual, op.dx, blocks,
                          partial)) {
    return false;
  }
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dgamma.dtype, [&]<class G>(G) {
      sum_of_parts(queue(), partial, blocks, columns, SumTargets<2, G>{op.dgamma.as<G>(), op.dbeta.as<G>()},
                   op.accumulate);
    });
  });
  return true;
}

void KernelOperations::run(const LayernormBackwardWeight& op) {
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dgamma.dtype, [&]<class G>(G) {
      const std::int64_t columns = columns_of(op.x);
      with_width<T>(columns, {op.dy.data, op.x.data}, [&]<class Width>(Width width) {
        const WeightTerm<T, Width::value> term{op.dy.as<T>(), op.x.as<T>(), op.mean.as<float>(),
                                               op.rstd.as<float>(), columns};
        column_sums<2, width(), G>(queue(), term, op.mean.size(), columns,
                                   SumTargets<2, G>{op.dgamma.as<G>(), op.dbeta.as<G>()}, op.accumulate,
                                   workspace_);
      });
    });
  });
}

void bias_gradient(cudaStream_t stream, TensorRef dy, TensorRef dbias, bool accumulate,
                   const Workspace& workspace) {
  dispatch_float(dy.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(dbias.dtype, [&]<class G>(G) {
      const std::int64_t columns = dbias.size();
      with_width<T>(columns, {dy.data}, [&]<class Width>(Width width) {
        column_sums<1, width(), G>(stream, BiasTerm<T, Width::value>{dy.as<T>(), columns},
                                   columns > 0 ? dy.size() / columns : 0, columns,
                                   SumTargets<1, G>{dbias.as<G>()}, accumulate, workspace);
      });
    });
  });
}

}  // namespace mylos::compute_cuda
