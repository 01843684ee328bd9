// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/dropout.hpp"
#include "backends/compute_kokkos/gelu.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

template <class T>
void gelu_forward_kernel(Vector<const T> x, Vector<T> y) {
  for_lanes(
      "mylos::gelu_forward::elements"_label, y.extent(0),
      KOKKOS_LAMBDA(Lanes at) { at.store(y.data(), gelu(at.load(x.data()))); });
}

template <class T>
void gelu_backward_kernel(Vector<const T> x, Vector<const T> dy, Vector<T> dx) {
  for_lanes(
      "mylos::gelu_backward::elements"_label, dx.extent(0),
      KOKKOS_LAMBDA(Lanes at) { at.store(dx.data(), at.load(dy.data()) * gelu_slope(at.load(x.data()))); });
}

template <class T>
void add_kernel(Vector<const T> x, const T* residual, Vector<T> y) {
  for_lanes(
      "mylos::dropout_add::sum"_label, y.extent(0), KOKKOS_LAMBDA(Lanes at) {
        const Vec value = at.load(x.data());
        at.store(y.data(), residual != nullptr ? value + at.load(residual) : value);
      });
}

/// x, y (B, T * C).
template <class T>
void dropout_add_kernel(const Dropout& dropout, Matrix<const T> x, const T* residual, Matrix<T> y) {
  const auto samples = static_cast<std::int64_t>(x.extent(0));
  const auto n = static_cast<std::int64_t>(x.extent(1));
  const std::int64_t length = dropout.index.width < n ? dropout.index.width : n;  // of a row
  const std::int64_t rows = length > 0 ? n / length : 0;
  const std::int64_t blocks = (length + dropout_block - 1) / dropout_block;
  Kokkos::parallel_for(
      "mylos::dropout_add::elements"_label, Range(queue(), 0, samples * rows * blocks),
      KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t sample = i / (rows * blocks);
        const std::int64_t column = i % blocks * dropout_block;
        const std::int64_t element = i / blocks % rows * length + column;
        const std::int64_t left_in_row = length - column;
        float factors[dropout_block] = {};
        keep_factors(dropout, dropout.scalars->step, dropout.first_sample + sample, dropout.index(element),
                     static_cast<int>(left_in_row < dropout_block ? left_in_row : dropout_block), factors);
        for (int v = 0; v < 4 && v * width < left_in_row; ++v) {
          const std::int64_t left = left_in_row - v * width;
          const Lanes at{sample * n + element + v * width, static_cast<int>(left < width ? left : width)};
          const Vec kept = at.load(x.data()) * load(factors + v * width);
          at.store(y.data(), residual != nullptr ? kept + at.load(residual) : kept);
        }
      });
}

}  // namespace

void KokkosOperations::run(const GeluForward& op) {
  require(op.x.size() == op.y.size(), "gelu keeps the size");
  dispatch_float(op.x.dtype,
                 [&]<class T>(T) { gelu_forward_kernel<T>(vector<const T>(op.x), vector<T>(op.y)); });
}

void KokkosOperations::run(const GeluBackward& op) {
  require(op.x.size() == op.dy.size() && op.x.size() == op.dx.size(), "gelu keeps the size");
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    gelu_backward_kernel<T>(vector<const T>(op.x), vector<const T>(op.dy), vector<T>(op.dx));
  });
}

void KokkosOperations::run(const DropoutAdd& op) {
  require(op.x.size() == op.y.size() && (!op.residual || op.residual.size() == op.y.size()),
          "dropout keeps the size");
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    const T* sum = op.residual ? vector<const T>(op.residual).data() : nullptr;
    if (op.dropout.probability > 0.0F) {
      const std::int64_t samples = op.x.shape[0];
      const std::int64_t n = samples > 0 ? op.x.size() / samples : 0;
      require(op.dropout.index.begin == 0 && (op.dropout.index.width >= n || n % op.dropout.index.width == 0),
              "dropout of whole rows");
      dropout_add_kernel<T>(op.dropout, matrix<const T>(op.x.reshaped({samples, n})), sum,
                            matrix<T>(op.y.reshaped({samples, n})));
    } else {
      add_kernel<T>(vector<const T>(op.x), sum, vector<T>(op.y));
    }
  });
}

}  // namespace mylos::compute_kokkos
