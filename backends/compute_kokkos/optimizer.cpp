// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"
#include "backends/compute_kokkos/random_words.hpp"

namespace mylos::compute_kokkos {

namespace {

constexpr std::int64_t adamw_block = on_host ? 16384 : 16;  // elements that share their bias corrections

/// The numbers of a step that are the same for all elements.
struct StepFactors {
  Vec beta1, one_minus_beta1, beta2, one_minus_beta2;
  Vec clip;           // of the gradient
  Vec inverse_bias1;  // 1 / (1 - beta1^t)
  Vec inverse_bias2;  // 1 / (1 - beta2^t)
  Vec epsilon;
  Vec learning_rate;

  KOKKOS_FUNCTION StepFactors(const AdamWStep& args, const StepScalars& scalars)
      : beta1(args.beta1),
        one_minus_beta1(1.0F - args.beta1),
        beta2(args.beta2),
        one_minus_beta2(1.0F - args.beta2),
        clip(scalars.clip_factor),
        inverse_bias1(inverse_bias(args.beta1, scalars.step)),
        inverse_bias2(inverse_bias(args.beta2, scalars.step)),
        epsilon(args.epsilon),
        learning_rate(scalars.learning_rate) {}

  static KOKKOS_FUNCTION float inverse_bias(float beta, std::int64_t step) {
    return static_cast<float>(
        -1.0 / Kokkos::expm1(static_cast<double>(step) * Kokkos::log(static_cast<double>(beta))));
  }
};

/// Updates the moments; returns what becomes of the weights `p`.
template <class G>
KOKKOS_FORCEINLINE_FUNCTION Vec updated(Lanes at, const StepFactors& step, Vec decay, const G* gradient,
                                        float* first_moment, float* second_moment, Vec p) {
  const Vec g = at.load(gradient) * step.clip;
  const Vec m = multiply_add(step.beta1, at.load(first_moment), step.one_minus_beta1 * g);
  const Vec v = multiply_add(step.beta2, at.load(second_moment), step.one_minus_beta2 * g * g);
  at.store(first_moment, m);
  at.store(second_moment, v);
  const Vec direction = m * step.inverse_bias1 / (Kokkos::sqrt(v * step.inverse_bias2) + step.epsilon);
  return p - step.learning_rate * multiply_add(decay, p, direction);
}

/// The step on elements that have an fp32 master.
template <class W, class G>
struct MasterUpdate {
  const G* gradient;
  float *first_moment, *second_moment, *master;
  W* weights;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t i, std::int64_t end, const StepFactors& step,
                                              Vec decay, const Segment& /*segment*/) const {
    for (; i + width <= end; i += width) update(Lanes{i, width}, step, decay);
    if (i < end) update(Lanes{i, static_cast<int>(end - i)}, step, decay);
  }
  KOKKOS_FORCEINLINE_FUNCTION void update(Lanes at, const StepFactors& step, Vec decay) const {
    const Vec p = updated(at, step, decay, gradient, first_moment, second_moment, at.load(master));
    at.store(master, p);
    if constexpr (!std::is_same_v<W, float>) at.store(weights, p);
  }
};

/// The step on elements without: `chances_at_once` at a time, which begin where a draw does.
template <class W, class G>
struct RoundedUpdate {
  const G* gradient;
  float *first_moment, *second_moment;
  W* weights;
  const StepScalars* scalars;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t i, std::int64_t end, const StepFactors& step,
                                              Vec decay, const Segment& segment) const {
    constexpr int chances_at_once = 2 * words_at_once;
    const StochasticRounding& rounding = segment.rounding;
    while (i < end) {
      const std::int64_t element = rounding.index(i - segment.begin);
      const std::int64_t run = rounding.index.run(i - segment.begin);
      const int skipped = static_cast<int>(element % chances_at_once);
      const std::int64_t left = run < end - i ? run : end - i;
      const int count = left < chances_at_once - skipped ? static_cast<int>(left) : chances_at_once - skipped;
      std::uint32_t words[words_at_once];
      random_words(rounding.key, static_cast<std::uint64_t>(element - skipped) / chances_of_counter, 0,
                   static_cast<std::uint32_t>(scalars->step), words);
      std::uint16_t chances[chances_at_once];
      for (int w = 0; w < words_at_once; ++w) {
        chances[2 * w] = static_cast<std::uint16_t>(words[w]);
        chances[2 * w + 1] = static_cast<std::uint16_t>(words[w] >> 16U);
      }
      float exact[chances_at_once];
      for (int k = 0; k < count; k += width) {
        const Lanes at{i + k, count - k < width ? count - k : width};
        store(exact + k, updated(at, step, decay, gradient, first_moment, second_moment, at.load(weights)));
      }
      for (int k = 0; k < count; ++k)
        weights[i + k] = round_stochastically<W>(exact[k], chances[skipped + k]);
      i += count;
    }
  }
};

/// Calls update(i, end, ..., segment) for elements [i, end) of one segment after another, in parallel.
template <class Update>
void adamw_kernel(const Execution& execution, const AdamWStep& args, Update update) {
  const std::int64_t n = args.weights.size();
  Kokkos::parallel_for(
      "mylos::adamw::elements"_label, Range(execution, 0, (n + adamw_block - 1) / adamw_block),
      KOKKOS_LAMBDA(std::int64_t block) {
        if (args.scalars->skip != 0) return;
        const StepFactors step(args, *args.scalars);
        std::int64_t i = block * adamw_block;
        const std::int64_t block_end = i + adamw_block < n ? i + adamw_block : n;
        for (int s = segment_of(args.segments, args.num_segments, i); i < block_end; ++s) {
          const Segment segment = args.segments[s];
          const std::int64_t end = segment.end < block_end ? segment.end : block_end;
          update(i, end, step, Vec(args.weight_decay * segment.decay), segment);
          i = end;
        }
      });
}

}  // namespace

void KokkosOperations::run(Stream stream, const AdamWStep& op) {
  const std::int64_t n = op.weights.size();
  require((!op.master || op.master.size() == n) && op.gradient.size() == n && op.first_moment.size() == n &&
              op.second_moment.size() == n,
          "AdamW's buffers have one size");
  require(op.num_segments > 0 || n == 0, "AdamW's segments cover the buffer");
  require(op.weights.dtype != DType::fp32 || op.weights.data == op.master.data,
          "fp32 weights are their own master");
  float* first_moment = vector<float>(op.first_moment).data();
  float* second_moment = vector<float>(op.second_moment).data();
  dispatch_float(op.weights.dtype, [&](auto weight) {
    using W = decltype(weight);
    W* weights = vector<W>(op.weights).data();
    dispatch_gradient<W>(op.gradient.dtype, [&](auto element) {
      using G = decltype(element);
      const G* gradient = vector<const G>(op.gradient).data();
      if constexpr (!std::is_same_v<W, float>) {
        if (!op.master) {
          return adamw_kernel(
              execution_of(stream), op,
              RoundedUpdate<W, G>{gradient, first_moment, second_moment, weights, op.scalars});
        }
      }
      adamw_kernel(execution_of(stream), op,
                   MasterUpdate<W, G>{gradient, first_moment, second_moment, vector<float>(op.master).data(),
                                      weights});
    });
  });
}

void KokkosOperations::run(Stream stream, const GuardStep& op) {
  Kokkos::parallel_for(
      "mylos::guard_step::update"_label, Range(execution_of(stream), 0, 1),
      KOKKOS_LAMBDA(std::int64_t) { guard_update(op.config, *op.input, *op.state, *op.scalars); });
}

}  // namespace mylos::compute_kokkos
