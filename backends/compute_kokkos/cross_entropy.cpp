// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

template <class T>
void row_kernel(const Execution& execution, Matrix<T> logits, Vector<const std::int32_t> targets,
                std::int64_t vocab, float gradient_scale, const StepScalars* scalars, Vector<float> losses,
                std::int32_t* correct) {
  const auto columns = static_cast<std::int64_t>(logits.extent(1));
  Kokkos::parallel_for(
      "mylos::cross_entropy::rows"_label, Team(execution, logits.extent(0), row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t row = member.league_rank();
        const std::int32_t target = targets(row);
        T* x = &logits(row, 0);
        const bool counts = target >= 0;
        float of_target = 0.0F;
        float loss = 0.0F;
        float inverse_sum = 0.0F;
        std::int32_t hit = 0;
        Vec largest(0.0F);
        if (counts) {
          of_target = static_cast<float>(x[target]);
          const float top = row_max(member, vocab, x);
          largest = Vec(top);
          const float sum = row_sums<1>(
              member, vocab, [&](Lanes at) { return Vecs<1>{exponential(at.load(x) - largest)}; })[0];
          loss = Kokkos::log(sum) + (top - of_target);
          inverse_sum = 1.0F / sum;
          hit = of_target == top ? 1 : 0;
          for (std::int64_t j = 0; hit != 0 && j < target; ++j) hit = static_cast<float>(x[j]) == top ? 0 : 1;
        }
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
          if (correct != nullptr) correct[row] = hit;
          if (scalars != nullptr && counts) {
            x[target] = static_cast<T>(gradient_scale * scalars->loss_scale * Kokkos::expm1(-loss));
          }
        });
      });
}

}  // namespace

void KokkosOperations::run(const CrossEntropy& op) {
  const std::int64_t rows = rows_of(op.logits);
  require(op.targets.size() == rows && op.losses.size() == rows && (!op.correct || op.correct.size() == rows),
          "one target and loss for each row");
  require(op.vocab > 0 && op.vocab <= op.logits.shape[op.logits.rank - 1],
          "the vocabulary inside the columns");
  dispatch_float(op.logits.dtype, [&](auto type) {
    using T = decltype(type);
    row_kernel<T>(queue(), matrix<T>(op.logits), vector<const std::int32_t>(op.targets), op.vocab,
                  op.gradient_scale, op.scalars, vector<float>(op.losses),
                  op.correct ? op.correct.as<std::int32_t>() : nullptr);
  });
}

}  // namespace mylos::compute_kokkos
