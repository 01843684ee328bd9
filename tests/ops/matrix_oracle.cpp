// SPDX-License-Identifier: BSD-3-Clause
#include "tests/ops/matrix_oracle.hpp"

#include <algorithm>
#include <cmath>

namespace mylos::oracle {

Array matrix_product(const Array& x, bool x_transposed, const Array& y, bool y_transposed) {
  const std::int64_t batches = x.dim(0), rows = x.dim(x_transposed ? 2 : 1);
  const std::int64_t inner = x.dim(x_transposed ? 1 : 2), columns = y.dim(y_transposed ? 1 : 2);
  Array z({batches, rows, columns});
  for (std::int64_t b = 0; b < batches; ++b) {
    const auto x_of = [&](std::int64_t i, std::int64_t k) {
      return x[b * rows * inner + (x_transposed ? k * rows + i : i * inner + k)];
    };
    const auto y_of = [&](std::int64_t k, std::int64_t j) {
      return y[b * inner * columns + (y_transposed ? j * inner + k : k * columns + j)];
    };
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = 0; k < inner; ++k) {
        const double factor = x_of(i, k);
        for (std::int64_t j = 0; j < columns; ++j) z[(b * rows + i) * columns + j] += factor * y_of(k, j);
      }
    }
  }
  return z;
}

Array scaled_sum(double a, const Array& x, double b, const Array& y) {
  Array z(x.shape);
  for (std::int64_t i = 0; i < z.size(); ++i) z[i] = a * x[i] + b * y[i];
  return z;
}

void normalise_matrices(double least, Array& x) {
  const std::int64_t size = x.size() / x.dim(0);
  for (std::int64_t first = 0; first < x.size(); first += size) {
    double squares = 0.0;
    for (std::int64_t i = first; i < first + size; ++i) squares += x[i] * x[i];
    const double norm = std::max(std::sqrt(squares), least);
    for (std::int64_t i = first; i < first + size; ++i) x[i] /= norm;
  }
}

Array nesterov_momentum(const NesterovMomentum& args, const StepScalars& scalars, const Array& gradient,
                        Array& momentum) {
  Array direction(momentum.shape);
  if (scalars.skip != 0) return direction;
  for (std::int64_t i = 0; i < momentum.size(); ++i) {
    const double g = gradient[i] * scalars.clip_factor;
    momentum[i] = args.decay * momentum[i] + g;
    direction[i] = args.decay * momentum[i] + g;
  }
  return direction;
}

void copy_blocks(const std::vector<CopiedBlock>& blocks, const Array& from, const Array& other, Array& to) {
  for (const CopiedBlock& block : blocks) {
    const Array& source = block.is_from_other ? other : from;
    for (std::int64_t r = 0; r < block.rows; ++r) {
      for (std::int64_t c = 0; c < block.columns; ++c)
        to[block.to + r * block.to_pitch + c] = source[block.from + r * block.from_pitch + c];
    }
  }
}

void muon(const MuonStep& args, const StepScalars& scalars, const std::vector<Segment>& segments,
          const Array& gradient, Array& master) {
  if (scalars.skip != 0) return;
  const double rate = static_cast<double>(args.rate_factor) * scalars.learning_rate;
  for (const Segment& segment : segments) {
    const double decay = static_cast<double>(args.weight_decay) * segment.decay;
    for (std::int64_t i = segment.begin; i < segment.end; ++i)
      master[i] = (1.0 - rate * decay) * master[i] - rate * args.scale * gradient[i];
  }
}

}  // namespace mylos::oracle
