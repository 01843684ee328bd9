// SPDX-License-Identifier: BSD-3-Clause
// Which tokens of a sequence a routed block takes, and what a predictor of that choice learns from.
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

/// Each token counts the tokens of its sequence that come before it in the order of scores; then a thread per
/// sequence gives the places.
void top_tokens_kernel(const TopTokens& op) {
  const std::int64_t batch = op.scores.shape[0];
  const std::int64_t tokens = op.scores.shape[1];
  const std::int64_t taken = op.pairs.size() / batch;
  const auto* scores = op.scores.as<float>();
  auto* places = op.places.as<std::int32_t>();
  auto* pairs = op.pairs.as<std::int32_t>();
  auto* offsets = op.offsets.as<std::int32_t>();
  Kokkos::parallel_for(
      "mylos::top_tokens::ranks"_label, Range(queue(), 0, batch * tokens), KOKKOS_LAMBDA(std::int64_t row) {
        const float* own = scores + row / tokens * tokens;
        const std::int64_t token = row % tokens;
        const float score = own[token];
        std::int32_t before = 0;
        for (std::int64_t t = 0; t < token; ++t) before += own[t] >= score ? 1 : 0;
        for (std::int64_t t = token + 1; t < tokens; ++t) before += own[t] > score ? 1 : 0;
        places[row] = before < taken ? 0 : -1;
      });
  Kokkos::parallel_for(
      "mylos::top_tokens::places"_label, Range(queue(), 0, batch), KOKKOS_LAMBDA(std::int64_t sequence) {
        std::int64_t place = sequence * taken;
        for (std::int64_t row = sequence * tokens; row < (sequence + 1) * tokens; ++row) {
          // With scores that are no numbers, too many tokens may come first, or too few.
          if (places[row] < 0 || place == (sequence + 1) * taken) {
            places[row] = -1;
            continue;
          }
          pairs[place] = static_cast<std::int32_t>(row);
          places[row] = static_cast<std::int32_t>(place++);
        }
        for (; place < (sequence + 1) * taken; ++place)
          pairs[place] = static_cast<std::int32_t>(sequence * tokens);
        if (sequence > 0) return;
        offsets[0] = 0;
        offsets[1] = static_cast<std::int32_t>(batch * taken);
      });
}

/// A thread per sequence.
template <class T>
void positive_tokens_kernel(const PositiveTokens& op) {
  const std::int64_t batch = op.scores.shape[0];
  const std::int64_t tokens = op.scores.shape[1];
  const auto* scores = op.scores.as<T>();
  const bool is_cached = static_cast<bool>(op.taken);
  const auto* rows = is_cached ? op.rows.as<std::int32_t>() : nullptr;
  const auto* positions = is_cached ? op.positions.as<std::int32_t>() : nullptr;
  auto* taken = is_cached ? op.taken.as<std::int32_t>() : nullptr;
  auto* own_positions = is_cached ? op.own_positions.as<std::int32_t>() : nullptr;
  const std::int64_t stride = is_cached ? op.taken.shape[1] : 0;
  auto* places = op.places.as<std::int32_t>();
  auto* pairs = op.pairs.as<std::int32_t>();
  auto* offsets = op.offsets.as<std::int32_t>();
  Kokkos::parallel_for(
      "mylos::positive_tokens::places"_label, Range(queue(), 0, batch), KOKKOS_LAMBDA(std::int64_t sequence) {
        const std::int64_t first = sequence * tokens;
        std::int64_t place = first;
        std::int32_t* counts = nullptr;
        std::int64_t position = 0;
        std::int32_t before = 0;
        if (is_cached) {
          counts = taken + rows[sequence] * stride;
          position = positions[sequence];
          before = position > 0 ? counts[position] : 0;
          own_positions[sequence] = before;
        }
        for (std::int64_t row = first; row < first + tokens; ++row) {
          const bool is_taken = static_cast<float>(scores[row]) > 0.0F;
          places[row] = is_taken ? static_cast<std::int32_t>(place) : -1;
          if (is_taken) pairs[place++] = static_cast<std::int32_t>(row);
          if (is_cached && ++position < stride)
            counts[position] = before + static_cast<std::int32_t>(place - first);
        }
        for (; place < first + tokens; ++place) pairs[place] = static_cast<std::int32_t>(first);
        if (sequence > 0) return;
        offsets[0] = 0;
        offsets[1] = static_cast<std::int32_t>(batch * tokens);
      });
}

template <class T>
void subtract_kernel(Vector<const T> a, Vector<const T> b, Vector<T> y) {
  for_lanes(
      "mylos::subtract::elements"_label, y.extent(0),
      KOKKOS_LAMBDA(Lanes at) { at.store(y.data(), at.load(a.data()) - at.load(b.data())); });
}

/// Spans of tokens are added up by a thread each, then the spans: one order for any number of threads.
template <class T>
void predictor_loss_kernel(const DepthPredictorLoss& op, const Kokkos::View<double*, Memory>& partials) {
  const std::int64_t rows = op.logits.size();
  const auto* logits = op.logits.as<T>();
  const auto* places = op.places.as<std::int32_t>();
  auto* dlogits = op.dlogits.as<T>();
  auto* sums = op.sums.as<float>();
  const StepScalars* scalars = op.scalars;
  const float scale = op.scale;
  const bool accumulate = op.accumulate;
  const auto room = static_cast<std::int64_t>(partials.extent(0)) / 3;
  const std::int64_t spans = rows < room ? rows : room;
  Kokkos::parallel_for(
      "mylos::depth_predictor_loss::rows"_label, Range(queue(), 0, spans), KOKKOS_LAMBDA(std::int64_t span) {
        double loss = 0.0;
        std::int64_t positive = 0;
        std::int64_t hits = 0;
        for (std::int64_t row = rows * span / spans; row < rows * (span + 1) / spans; ++row) {
          const auto q = static_cast<float>(logits[row]);
          const bool is_taken = places[row] >= 0;
          const float small = Kokkos::exp(q > 0.0F ? -q : q);  // of the two exponentials, the one below 1
          loss += (q > 0.0F ? q : 0.0F) - (is_taken ? q : 0.0F) + Kokkos::log1p(small);
          positive += q > 0.0F ? 1 : 0;
          hits += (q > 0.0F) == is_taken ? 1 : 0;
          const float probability = (q > 0.0F ? 1.0F : small) / (1.0F + small);
          dlogits[row] =
              static_cast<T>(scalars->loss_scale * scale * (probability - (is_taken ? 1.0F : 0.0F)));
        }
        partials(3 * span) = loss;
        partials(3 * span + 1) = static_cast<double>(positive);
        partials(3 * span + 2) = static_cast<double>(hits);
      });
  Kokkos::parallel_for(
      "mylos::depth_predictor_loss::spans"_label, Range(queue(), 0, 3), KOKKOS_LAMBDA(std::int64_t which) {
        double sum = accumulate ? sums[which] : 0.0;
        for (std::int64_t span = 0; span < spans; ++span) sum += partials(3 * span + which);
        sums[which] = static_cast<float>(sum);
      });
}

}  // namespace

void KokkosOperations::run(const TopTokens& op) {
  require(op.scores.rank == 3 && op.places.size() == op.scores.size(), "scores (B, T, 1)");
  top_tokens_kernel(op);
}

void KokkosOperations::run(const PositiveTokens& op) {
  require(op.scores.rank == 3 && op.pairs.size() == op.scores.size(), "a packed row per token");
  dispatch_float(op.scores.dtype, [&]<class T>(T) { positive_tokens_kernel<T>(op); });
}

void KokkosOperations::run(const Subtract& op) {
  require(op.a.size() == op.y.size() && op.b.size() == op.y.size(), "operands of one size");
  dispatch_float(op.y.dtype, [&]<class T>(T) {
    subtract_kernel<T>(vector<const T>(op.a), vector<const T>(op.b), vector<T>(op.y));
  });
}

void KokkosOperations::run(const DepthPredictorLoss& op) {
  require(op.scalars != nullptr && op.dlogits.size() == op.places.size(), "a gradient per token");
  dispatch_float(op.logits.dtype, [&]<class T>(T) { predictor_loss_kernel<T>(op, partials_); });
}

}  // namespace mylos::compute_kokkos
