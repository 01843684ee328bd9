// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

/// The softmax statistics of a row or of a part of a row.
struct RowSoftmax {
  float largest = -INFINITY;
  float sum = 0.0F;             // of exp(logit - largest)
  float of_target = -INFINITY;  // the target's logit
  bool is_hit = false;          // the target is the first of the largest logits
};

/// The statistics of a row's logits x[0, n). They include the target's logit if 0 <= target < n.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION RowSoftmax softmax_of(const Member& member, std::int64_t n, const T* x,
                                                  std::int64_t target) {
  RowSoftmax row;
  if (n == 0) return row;
  row.largest = row_max(member, n, x);
  const Vec bound(row.largest);
  row.sum = row_sums<1>(member, n, [&](Lanes at) { return Vecs<1>{exponential(at.load(x) - bound)}; })[0];
  if (target < 0 || target >= n) return row;
  row.of_target = static_cast<float>(x[target]);
  row.is_hit = row.of_target == row.largest;
  for (std::int64_t j = 0; row.is_hit && j < target; ++j)
    row.is_hit = static_cast<float>(x[j]) != row.largest;
  return row;
}

/// Combines the statistics of a row's parts; `statistics` is (parts, 4, rows).
KOKKOS_FORCEINLINE_FUNCTION RowSoftmax softmax_of(const float* statistics, std::int64_t parts,
                                                  std::int64_t rows, std::int64_t row) {
  const auto at = [&](std::int64_t part, int which) {
    return statistics[(part * SoftmaxStatistics::count + which) * rows + row];
  };
  RowSoftmax all;
  for (std::int64_t p = 0; p < parts; ++p) {
    if (at(p, 0) > all.largest) {
      all.largest = at(p, 0);
      all.is_hit = at(p, 3) != 0.0F;
    }
    if (at(p, 2) > all.of_target) all.of_target = at(p, 2);
  }
  for (std::int64_t p = 0; p < parts; ++p) {
    if (at(p, 1) != 0.0F) all.sum += at(p, 1) * Kokkos::exp(at(p, 0) - all.largest);
  }
  return all;
}

template <class T>
void statistics_kernel(Matrix<const T> logits, Vector<const std::int32_t> targets, std::int64_t vocab,
                       std::int64_t first_token, Matrix<float> statistics) {
  Kokkos::parallel_for(
      "mylos::softmax_statistics::rows"_label, TeamPolicy(queue(), logits.extent(0), row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t row = member.league_rank();
        const std::int64_t target = targets(row) < 0 ? -1 : targets(row) - first_token;
        const RowSoftmax part = softmax_of(member, vocab, &logits(row, 0), target);
        Kokkos::single(Kokkos::PerTeam(member), [&]() {
          statistics(0, row) = part.largest;
          statistics(1, row) = part.sum;
          statistics(2, row) = part.of_target;
          statistics(3, row) = part.is_hit ? 1.0F : 0.0F;
        });
      });
}

/// `statistics`: (parts, 4, rows), or null if the logits are whole rows.
template <class T>
void row_kernel(Matrix<T> logits, Vector<const std::int32_t> targets, const float* statistics,
                std::int64_t parts, std::int64_t vocab, std::int64_t first_token, float gradient_scale,
                const StepScalars* scalars, Vector<float> losses, std::int32_t* correct) {
  const auto columns = static_cast<std::int64_t>(logits.extent(1));
  const auto rows = static_cast<std::int64_t>(logits.extent(0));
  Kokkos::parallel_for(
      "mylos::cross_entropy::rows"_label, TeamPolicy(queue(), logits.extent(0), row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t row = member.league_rank();
        const std::int32_t target = targets(row);
        T* x = &logits(row, 0);
        const bool counts = target >= 0;
        RowSoftmax softmax;
        float loss = 0.0F;
        float inverse_sum = 0.0F;
        if (counts) {
          softmax = statistics != nullptr ? softmax_of(statistics, parts, rows, row)
                                          : softmax_of(member, vocab, x, target);
          loss = Kokkos::log(softmax.sum) + (softmax.largest - softmax.of_target);
          inverse_sum = 1.0F / softmax.sum;
        }
        const Vec largest(softmax.largest);
        member.team_barrier();
        if (scalars != nullptr) {
          const Vec scale(gradient_scale * scalars->loss_scale * inverse_sum);
          for_row(member, columns, [&](Lanes at) {
            if (!counts || at.first >= vocab) return at.store(x, Vec(0.0F));
            const Vec gradient = exponential(at.load(x) - largest) * scale;
            const std::int64_t left = vocab - at.first;
            at.store(x, left < width ? Lanes{0, static_cast<int>(left)}.only(gradient, 0.0F) : gradient);
          });
          member.team_barrier();
        }
        Kokkos::single(Kokkos::PerTeam(member), [&]() {
          losses(row) = loss;
          if (correct != nullptr) correct[row] = softmax.is_hit ? 1 : 0;
          const std::int64_t column = target - first_token;
          if (scalars != nullptr && counts && column >= 0 && column < vocab) {
            x[column] = static_cast<T>(gradient_scale * scalars->loss_scale * Kokkos::expm1(-loss));
          }
        });
      });
}

}  // namespace

void KokkosOperations::run(const SoftmaxStatistics& op) {
  const std::int64_t rows = rows_of(op.logits);
  require(op.targets.size() == rows && op.statistics.size() == SoftmaxStatistics::count * rows,
          "one target and four numbers for each row");
  require(op.vocab >= 0 && op.vocab <= op.logits.shape[op.logits.rank - 1],
          "the vocabulary inside the columns");
  dispatch_float(op.logits.dtype, [&]<class T>(T) {
    statistics_kernel<T>(matrix<const T>(op.logits), vector<const std::int32_t>(op.targets), op.vocab,
                         op.first_token,
                         matrix<float>(op.statistics.reshaped({SoftmaxStatistics::count, rows})));
  });
}

void KokkosOperations::run(const CrossEntropy& op) {
  const std::int64_t rows = rows_of(op.logits);
  require(op.targets.size() == rows && op.losses.size() == rows && (!op.correct || op.correct.size() == rows),
          "one target and loss for each row");
  const bool is_part = static_cast<bool>(op.statistics);
  require(op.vocab >= (is_part ? 0 : 1) && op.vocab <= op.logits.shape[op.logits.rank - 1],
          "the vocabulary inside the columns");
  require(!is_part || op.statistics.size() % (SoftmaxStatistics::count * rows) == 0,
          "four numbers for each row of each part");
  dispatch_float(op.logits.dtype, [&]<class T>(T) {
    row_kernel<T>(matrix<T>(op.logits), vector<const std::int32_t>(op.targets),
                  is_part ? op.statistics.as<float>() : nullptr,
                  is_part ? op.statistics.size() / (SoftmaxStatistics::count * rows) : 1, op.vocab,
                  op.first_token, op.gradient_scale, op.scalars, vector<float>(op.losses),
                  op.correct ? op.correct.as<std::int32_t>() : nullptr);
  });
}

}  // namespace mylos::compute_kokkos
