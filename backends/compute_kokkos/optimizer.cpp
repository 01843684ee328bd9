// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/optimizer_ops.hpp"

namespace mylos {

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

  KOKKOS_FUNCTION StepFactors(const AdamWArgs& args, const StepScalars& scalars)
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

template <class W, class G>
KOKKOS_FORCEINLINE_FUNCTION void update(Lanes at, const StepFactors& step, Vec decay, const G* gradient,
                                        float* master, float* first_moment, float* second_moment,
                                        W* weights) {
  const Vec g = at.load(gradient) * step.clip;
  const Vec m = multiply_add(step.beta1, at.load(first_moment), step.one_minus_beta1 * g);
  const Vec v = multiply_add(step.beta2, at.load(second_moment), step.one_minus_beta2 * g * g);
  at.store(first_moment, m);
  at.store(second_moment, v);
  const Vec p = at.load(master);
  const Vec direction = m * step.inverse_bias1 / (Kokkos::sqrt(v * step.inverse_bias2) + step.epsilon);
  const Vec updated = p - step.learning_rate * multiply_add(decay, p, direction);
  at.store(master, updated);
  if constexpr (!std::is_same_v<W, float>) at.store(weights, updated);
}

template <class W, class G>
void adamw_kernel(const Execution& execution, const AdamWArgs& args, Vector<const G> gradient,
                  Vector<W> weights, Vector<float> master, Vector<float> first_moment,
                  Vector<float> second_moment) {
  const auto n = static_cast<std::int64_t>(master.extent(0));
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
          const Vec decay(args.weight_decay * segment.decay);
          for (; i + width <= end; i += width) {
            update(Lanes{i, width}, step, decay, gradient.data(), master.data(), first_moment.data(),
                   second_moment.data(), weights.data());
          }
          if (i < end) {
            update(Lanes{i, static_cast<int>(end - i)}, step, decay, gradient.data(), master.data(),
                   first_moment.data(), second_moment.data(), weights.data());
            i = end;
          }
        }
      });
}

}  // namespace

void KokkosOptimizerOps::adamw(Stream stream, const AdamWArgs& args) {
  const std::int64_t n = args.master.size();
  require(args.weights.size() == n && args.gradient.size() == n && args.first_moment.size() == n &&
              args.second_moment.size() == n,
          "AdamW's buffers have one size");
  require(args.num_segments > 0 || n == 0, "AdamW's segments cover the buffer");
  require(args.weights.dtype != DType::fp32 || args.weights.data == args.master.data,
          "fp32 weights are their own master");
  dispatch_float(args.weights.dtype, [&](auto weight) {
    using W = decltype(weight);
    dispatch_gradient<W>(args.gradient.dtype, [&](auto gradient) {
      using G = decltype(gradient);
      adamw_kernel<W, G>(execution_of(stream), args, vector<const G>(args.gradient), vector<W>(args.weights),
                         vector<float>(args.master), vector<float>(args.first_moment),
                         vector<float>(args.second_moment));
    });
  });
}

void KokkosOptimizerOps::guard_step(Stream stream, const GuardConfig& config, const GuardInput* input,
                                    GuardState* state, StepScalars* scalars) {
  const GuardConfig guard = config;
  Kokkos::parallel_for(
      "mylos::guard_step::update"_label, Range(execution_of(stream), 0, 1),
      KOKKOS_LAMBDA(std::int64_t) { guard_update(guard, *input, *state, *scalars); });
}

}  // namespace mylos
