// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

constexpr std::int64_t norm_block = on_host ? 4096 : 64;  // elements added in fp32, by lane

void scaled_sum_kernel(const ScaledSum& op) {
  const float* x = op.x.as<float>();
  const float* y = op.y.as<float>();
  auto* z = op.z.as<float>();
  for_lanes(
      "mylos::scaled_sum::elements"_label, op.z.size(),
      KOKKOS_LAMBDA(Lanes at) { at.store(z, multiply_add(Vec(op.a), at.load(x), Vec(op.b) * at.load(y))); });
}

/// Norms of `matrices` matrices from number `first` on, summed as in SumOfSquares, then the division.
void normalise_kernel(const NormaliseMatrices& op, std::int64_t first, std::int64_t matrices,
                      const Kokkos::View<double*, Memory>& partials) {
  const std::int64_t n = op.x.size() / op.x.shape[0];
  auto* x = op.x.as<float>() + first * n;
  const std::int64_t blocks = (n + norm_block - 1) / norm_block;
  const std::int64_t room = static_cast<std::int64_t>(partials.extent(0)) / matrices;
  const std::int64_t spans = blocks < room ? blocks : room;
  Kokkos::parallel_for(
      "mylos::normalise_matrices::spans"_label, Range(queue(), 0, matrices * spans),
      KOKKOS_LAMBDA(std::int64_t item) {
        const float* own = x + item / spans * n;
        const std::int64_t span = item % spans;
        double partial = 0.0;
        for (std::int64_t block = blocks * span / spans; block < blocks * (span + 1) / spans; ++block) {
          const std::int64_t end = (block + 1) * norm_block < n ? (block + 1) * norm_block : n;
          Vec sum(0.0F);
          for (std::int64_t i = block * norm_block; i < end; i += width) {
            const Lanes at{i, static_cast<int>(end - i < width ? end - i : width)};
            const Vec value = at.load(own);
            sum = multiply_add(value, value, sum);
          }
          partial += static_cast<double>(sum_of(sum));
        }
        partials(item) = partial;
      });
  Kokkos::parallel_for(
      "mylos::normalise_matrices::norms"_label, Range(queue(), 0, matrices),
      KOKKOS_LAMBDA(std::int64_t matrix) {
        double square = 0.0;
        for (std::int64_t span = 0; span < spans; ++span) square += partials(matrix * spans + span);
        const double norm = Kokkos::sqrt(square);
        const auto least = static_cast<double>(op.least);
        partials(matrix * spans) = 1.0 / (norm > least ? norm : least);
      });
  Kokkos::parallel_for(
      "mylos::normalise_matrices::elements"_label, Range(queue(), 0, matrices * blocks),
      KOKKOS_LAMBDA(std::int64_t item) {
        const std::int64_t matrix = item / blocks;
        float* own = x + matrix * n;
        const Vec factor(static_cast<float>(partials(matrix * spans)));
        const std::int64_t begin = item % blocks * norm_block;
        const std::int64_t end = begin + norm_block < n ? begin + norm_block : n;
        for (std::int64_t i = begin; i < end; i += width) {
          const Lanes at{i, static_cast<int>(end - i < width ? end - i : width)};
          at.store(own, at.load(own) * factor);
        }
      });
}

template <class G>
void nesterov_kernel(const NesterovMomentum& op) {
  const G* gradient = op.gradient.as<G>();
  auto* momentum = op.momentum.as<float>();
  auto* direction = op.direction.as<float>();
  for_lanes(
      "mylos::nesterov_momentum::elements"_label, op.direction.size(), KOKKOS_LAMBDA(Lanes at) {
        if (op.scalars->skip != 0) return at.store(direction, Vec(0.0F));
        const Vec decay(op.decay);
        const Vec g = at.load(gradient) * Vec(op.scalars->clip_factor);
        const Vec m = multiply_add(decay, at.load(momentum), g);
        at.store(momentum, m);
        at.store(direction, multiply_add(decay, m, g));
      });
}

/// The block that has row `row` of all.
KOKKOS_INLINE_FUNCTION int block_of(const CopiedBlock* blocks, int count, std::int64_t row) {
  int low = 0;
  for (int high = count - 1; low < high;) {
    const int middle = (low + high + 1) / 2;
    if (blocks[middle].first_row <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void copy_blocks_kernel(const CopyBlocks& op) {
  const float* from = op.from.as<float>();
  const float* other = op.other ? op.other.as<float>() : nullptr;
  auto* to = op.to.as<float>();
  if (op.num_rows == 0) return;
  // Long rows are divided, since there may be few.
  constexpr std::int64_t section = on_host ? 4096 : 256;
  const std::int64_t parts = op.to.size() / op.num_rows / section + 1;
  Kokkos::parallel_for(
      "mylos::copy_blocks::rows"_label, Range(queue(), 0, op.num_rows * parts),
      KOKKOS_LAMBDA(std::int64_t item) {
        const std::int64_t row = item / parts;
        const CopiedBlock& block = op.blocks[block_of(op.blocks, op.num_blocks, row)];
        const std::int64_t r = row - block.first_row;
        const float* source = (block.is_from_other ? other : from) + block.from + r * block.from_pitch;
        float* target = to + block.to + r * block.to_pitch;
        const std::int64_t begin = block.columns * (item % parts) / parts;
        const std::int64_t end = block.columns * (item % parts + 1) / parts;
        for (std::int64_t c = begin; c < end; c += width) {
          const Lanes at{c, static_cast<int>(end - c < width ? end - c : width)};
          at.store(target, at.load(source));
        }
      });
}

}  // namespace

void KokkosOperations::run(const ScaledSum& op) {
  require(op.x.size() == op.z.size() && op.y.size() == op.z.size() && op.x.dtype == DType::fp32 &&
              op.y.dtype == DType::fp32 && op.z.dtype == DType::fp32,
          "fp32 operands of one size");
  scaled_sum_kernel(op);
}

void KokkosOperations::run(const NormaliseMatrices& op) {
  require(op.x.rank >= 1 && op.x.dtype == DType::fp32 && op.x.contiguous(), "fp32 matrices");
  if (op.x.size() == 0) return;
  const auto most = static_cast<std::int64_t>(partials_.extent(0));
  for (std::int64_t first = 0; first < op.x.shape[0]; first += most)
    normalise_kernel(op, first, std::min(most, op.x.shape[0] - first), partials_);
}

void KokkosOperations::run(const NesterovMomentum& op) {
  require(op.gradient.size() == op.direction.size() && op.momentum.size() == op.direction.size() &&
              op.momentum.dtype == DType::fp32 && op.direction.dtype == DType::fp32,
          "a momentum and a direction per element, in fp32");
  dispatch_float(op.gradient.dtype, [&]<class G>(G) { nesterov_kernel<G>(op); });
}

void KokkosOperations::run(const CopyBlocks& op) {
  require(op.from.dtype == DType::fp32 && op.to.dtype == DType::fp32, "fp32 blocks");
  copy_blocks_kernel(op);
}

}  // namespace mylos::compute_kokkos
