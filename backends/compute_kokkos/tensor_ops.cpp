// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

constexpr std::int64_t sum_block = on_host ? 4096 : 64;  // elements added in fp32, by lane

template <class T>
void fill_kernel(Vector<T> y, float value) {
  for_lanes(
      "mylos::fill::elements"_label, y.extent(0),
      KOKKOS_LAMBDA(Lanes at) { at.store(y.data(), Vec(value)); });
}

template <class X, class Y>
void cast_kernel(Vector<const X> x, Vector<Y> y) {
  for_lanes(
      "mylos::cast::elements"_label, y.extent(0),
      KOKKOS_LAMBDA(Lanes at) { at.store(y.data(), at.load(x.data())); });
}

/// Always on the host: logarithm and cosine differ between devices, but the weights that a seed produces must
/// not.
void fill_normal_kernel(float* y, std::int64_t n, PhiloxKey key, const GlobalIndex& index, float stddev) {
  using HostRange = Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace, Kokkos::IndexType<std::int64_t>>;
  if (n == 0) return;
  const std::int64_t skipped = index.begin % index.width;  // of the first row
  const std::int64_t width = index.width < skipped + n ? index.width : skipped + n;
  const std::int64_t rows = (skipped + n + width - 1) / width;
  const std::int64_t pairs = width / 2 + 1;  // per row, at most
  Kokkos::parallel_for("mylos::fill_normal::pairs"_label, HostRange(0, rows * pairs), [=](std::int64_t item) {
    const std::int64_t begin = item / pairs * width - skipped;
    const std::int64_t row = begin > 0 ? begin : 0;
    const std::int64_t end = begin + width < n ? begin + width : n;
    const std::int64_t first = index(row);
    const std::int64_t pair = first / 2 + item % pairs;
    const auto counter = static_cast<std::uint64_t>(pair);
    const PhiloxBlock block =
        philox(key, static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32U), 0, 0);
    const std::array<float, 2> normal = normal_pair(block.x[0], block.x[1]);
    for (int half = 0; half < 2; ++half) {
      const std::int64_t i = row + 2 * pair + half - first;
      if (i >= row && i < end) y[i] = stddev * normal[half];
    }
  });
}

struct Identity {
  KOKKOS_FORCEINLINE_FUNCTION Vec operator()(Vec x) const { return x; }
};
struct Square {
  KOKKOS_FORCEINLINE_FUNCTION Vec operator()(Vec x) const { return x * x; }
};

/// Sums in a fixed order, whatever the number of threads: blocks in fp32 by lane, then up to max_partials
/// spans of blocks in double, then the spans. A parallel_reduce would allocate at each call.
template <class T, class Term>
void sum_kernel(const std::string& label, Vector<const T> x, Term term,
                const Kokkos::View<double*, Memory>& partials, float factor, float* out, bool accumulate) {
  const auto n = static_cast<std::int64_t>(x.extent(0));
  const std::int64_t blocks = (n + sum_block - 1) / sum_block;
  const auto room = static_cast<std::int64_t>(partials.extent(0));
  const std::int64_t spans = blocks < room ? blocks : room;
  Kokkos::parallel_for(
      label, Range(queue(), 0, spans), KOKKOS_LAMBDA(std::int64_t span) {
        double partial = 0.0;
        for (std::int64_t block = blocks * span / spans; block < blocks * (span + 1) / spans; ++block) {
          const std::int64_t end = (block + 1) * sum_block < n ? (block + 1) * sum_block : n;
          Vec sums[4] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
          std::int64_t i = block * sum_block;
          for (; i + 4 * width <= end; i += 4 * width) {
            for (int c = 0; c < 4; ++c) sums[c] = sums[c] + term(load(x.data() + i + c * width));
          }
          for (; i < end; i += width) {
            const Lanes at{i, static_cast<int>(end - i < width ? end - i : width)};
            sums[0] = sums[0] + term(at.load(x.data()));
          }
          partial += static_cast<double>(sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])));
        }
        partials(span) = partial;
      });
  Kokkos::parallel_for(
      "mylos::sum::finish"_label, Range(queue(), 0, 1), KOKKOS_LAMBDA(std::int64_t) {
        double total = accumulate ? static_cast<double>(out[0]) : 0.0;
        for (std::int64_t span = 0; span < spans; ++span) total += factor * partials(span);
        out[0] = static_cast<float>(total);
      });
}

}  // namespace

void KokkosOperations::run(const Fill& op) {
  dispatch_float(op.y.dtype, [&]<class T>(T) { fill_kernel<T>(vector<T>(op.y), op.value); });
}

void KokkosOperations::run(const Cast& op) {
  require(op.x.size() == op.y.size(), "cast keeps the size");
  dispatch_float(op.x.dtype, [&]<class X>(X) {
    dispatch_float(op.y.dtype,
                   [&]<class Y>(Y) { cast_kernel<X, Y>(vector<const X>(op.x), vector<Y>(op.y)); });
  });
}

void KokkosOperations::run(const FillNormal& op) {
  const Vector<float> view = vector<float>(op.y);
  const auto n = static_cast<std::int64_t>(view.extent(0));
  if constexpr (on_host) {
    fill_normal_kernel(view.data(), n, op.key, op.index, op.stddev);
  } else {
    const auto host = Kokkos::create_mirror(view);
    fill_normal_kernel(host.data(), n, op.key, op.index, op.stddev);
    Kokkos::deep_copy(queue(), view, host);
    queue().fence("mylos::fill_normal::copy"_label);
  }
}

void KokkosOperations::run(const Sum& op) {
  sum_kernel<float>("mylos::sum::blocks"_label, vector<const float>(op.x), Identity(), partials_, 1.0F,
                    op.out.as<float>(), op.accumulate);
}

void KokkosOperations::run(const SumOfSquares& op) {
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    sum_kernel<T>("mylos::sum_of_squares::blocks"_label, vector<const T>(op.x), Square(), partials_,
                  op.factor, op.out.as<float>(), op.accumulate);
  });
}

}  // namespace mylos::compute_kokkos
