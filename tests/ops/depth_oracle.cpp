// SPDX-License-Identifier: BSD-3-Clause
#include "tests/ops/depth_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace mylos::oracle {

namespace {

/// Packs the tokens of the sequences of `scores` for which `is_taken`, `rows` packed rows for each sequence.
PackedTokens pack_tokens(const Array& scores, std::int64_t rows, const std::vector<bool>& is_taken) {
  const std::int64_t sequences = scores.dim(0), tokens = scores.dim(1);
  PackedTokens packed{Array({sequences, tokens, 1}), Array({1, sequences * rows}), Array({1, 2})};
  for (std::int64_t b = 0; b < sequences; ++b) {
    std::int64_t row = b * rows;
    std::fill_n(packed.pairs.values.begin() + row, rows, static_cast<double>(b * tokens));
    for (std::int64_t token = b * tokens; token < (b + 1) * tokens; ++token) {
      packed.places[token] = -1.0;
      if (!is_taken[static_cast<std::size_t>(token)]) continue;
      packed.places[token] = static_cast<double>(row);
      packed.pairs[row++] = static_cast<double>(token);
    }
  }
  packed.offsets[1] = static_cast<double>(sequences * rows);
  return packed;
}

}  // namespace

PackedTokens top_tokens(const Array& scores, std::int64_t count) {
  const std::int64_t tokens = scores.dim(1);
  std::vector<bool> is_taken;
  for (std::int64_t token = 0; token < scores.size(); ++token) {
    const std::int64_t first = token / tokens * tokens;
    std::int64_t preferred = 0;
    for (std::int64_t other = first; other < first + tokens; ++other) {
      if (scores[other] > scores[token] || (scores[other] == scores[token] && other < token)) ++preferred;
    }
    is_taken.push_back(preferred < count);
  }
  return pack_tokens(scores, count, is_taken);
}

PackedTokens positive_tokens(const Array& scores) {
  std::vector<bool> is_taken;
  for (const double score : scores.values) is_taken.push_back(score > 0.0);
  return pack_tokens(scores, scores.dim(1), is_taken);
}

Array count_taken(const Array& places, const Array& rows, const Array& positions, Array& taken) {
  const std::int64_t tokens = places.dim(1), last = taken.dim(1) - 1;
  Array own_positions({rows.size()});
  for (std::int64_t b = 0; b < rows.size(); ++b) {
    const auto first = static_cast<std::int64_t>(positions[b]);
    const std::int64_t row = static_cast<std::int64_t>(rows[b]) * (last + 1);
    double count = first == 0 ? 0.0 : taken[row + first];
    own_positions[b] = count;
    for (std::int64_t t = 0; t < tokens && first + t < last; ++t) {
      if (places[b * tokens + t] >= 0.0) count += 1.0;
      taken[row + first + t + 1] = count;
    }
  }
  return own_positions;
}

Array depth_predictor_loss(const Array& logits, const Array& places, double gradient_scale, bool accumulate,
                           Array& sums) {
  if (!accumulate) sums = Array({3});
  Array dlogits(logits.shape);
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    const double q = logits[i];
    const double taken = places[i] >= 0.0 ? 1.0 : 0.0;
    const double predicted = q > 0.0 ? 1.0 : 0.0;
    sums[0] += std::max(q, 0.0) - taken * q + std::log1p(std::exp(-std::abs(q)));
    sums[1] += predicted;
    sums[2] += predicted == taken ? 1.0 : 0.0;
    dlogits[i] = gradient_scale * (1.0 / (1.0 + std::exp(-q)) - taken);
  }
  return dlogits;
}

}  // namespace mylos::oracle
