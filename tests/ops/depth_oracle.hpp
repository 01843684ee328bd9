// SPDX-License-Identifier: BSD-3-Clause
// The operations of a mixture of depths in fp64: the reference that the backends are compared with.
#pragma once

#include <cstdint>

#include "tests/ops/oracle.hpp"

namespace mylos::oracle {

struct PackedTokens {
  Array places, pairs, offsets;
};

/// Takes `count` tokens of each sequence.
PackedTokens top_tokens(const Array& scores, std::int64_t count);
PackedTokens positive_tokens(const Array& scores);

/// Adds the tokens of `places` (B, T, 1) to `taken`; returns the own positions of the texts. Tokens beyond
/// the last position are left out.
Array count_taken(const Array& places, const Array& rows, const Array& positions, Array& taken);

/// Returns the gradient of gradient_scale times the cross-entropy, of the shape of `logits`.
Array depth_predictor_loss(const Array& logits, const Array& places, double gradient_scale, bool accumulate,
                           Array& sums);

}  // namespace mylos::oracle
