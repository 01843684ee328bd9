// SPDX-License-Identifier: BSD-3-Clause
// The operations of optimizers that update whole matrices, in fp64: the reference that the backends are
// compared with.
#pragma once

#include <vector>

#include "tests/ops/oracle.hpp"

namespace mylos::oracle {

/// Returns the products (B, m, n).
Array matrix_product(const Array& x, bool x_transposed, const Array& y, bool y_transposed);

/// Returns a x + b y.
Array scaled_sum(double a, const Array& x, double b, const Array& y);

void normalise_matrices(double least, Array& x);

/// Reads the decay of `args`; returns the direction.
Array nesterov_momentum(const NesterovMomentum& args, const StepScalars& scalars, const Array& gradient,
                        Array& momentum);

void copy_blocks(const std::vector<CopiedBlock>& blocks, const Array& from, const Array& other, Array& to);

/// Reads the three coefficients of `args`.
void muon(const MuonStep& args, const StepScalars& scalars, const std::vector<Segment>& segments,
          const Array& gradient, Array& master);

}  // namespace mylos::oracle
