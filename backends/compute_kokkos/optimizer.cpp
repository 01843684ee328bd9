// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"
#include "backends/compute_kokkos/random_words.hpp"

namespace mylos::compute_kokkos {

namespace {

/// Elements per block. A block constructs its Rule once.
constexpr std::int64_t step_block = on_host ? 16384 : 16;

/// AdamW's update rule. One object is constructed per block of elements.
template <class G>
struct AdamWRule {
  const G* gradient;
  float *first_moment, *second_moment;
  Vec beta1, one_minus_beta1, beta2, one_minus_beta2;
  Vec clip;           // factor of the gradient
  Vec inverse_bias1;  // 1 / (1 - beta1^t)
  Vec inverse_bias2;  // 1 / (1 - beta2^t)
  Vec epsilon;
  Vec learning_rate;

  KOKKOS_FUNCTION explicit AdamWRule(const AdamWStep& args)
      : gradient(static_cast<const G*>(args.gradient.data)),
        first_moment(static_cast<float*>(args.first_moment.data)),
        second_moment(static_cast<float*>(args.second_moment.data)),
        beta1(args.beta1),
        one_minus_beta1(1.0F - args.beta1),
        beta2(args.beta2),
        one_minus_beta2(1.0F - args.beta2),
        clip(args.scalars->clip_factor),
        inverse_bias1(inverse_bias(args.beta1, args.scalars->step)),
        inverse_bias2(inverse_bias(args.beta2, args.scalars->step)),
        epsilon(args.epsilon),
        learning_rate(args.scalars->learning_rate) {}

  static KOKKOS_FUNCTION float inverse_bias(float beta, std::int64_t step) {
    return static_cast<float>(
        -1.0 / Kokkos::expm1(static_cast<double>(step) * Kokkos::log(static_cast<double>(beta))));
  }

  /// Updates the moments; returns the new values of the weights `p`.
  KOKKOS_FORCEINLINE_FUNCTION Vec operator()(Lanes at, Vec decay, Vec p) const {
    const Vec g = at.load(gradient) * clip;
    const Vec m = multiply_add(beta1, at.load(first_moment), one_minus_beta1 * g);
    const Vec v = multiply_add(beta2, at.load(second_moment), one_minus_beta2 * g * g);
    at.store(first_moment, m);
    at.store(second_moment, v);
    const Vec direction = m * inverse_bias1 / (Kokkos::sqrt(v * inverse_bias2) + epsilon);
    return p - learning_rate * multiply_add(decay, p, direction);
  }
};

/// The update rule of gradient descent with momentum.
template <class G>
struct SgdRule {
  const G* gradient;
  float* momentum;
  Vec momentum_decay;
  Vec clip;
  Vec learning_rate;

  KOKKOS_FUNCTION explicit SgdRule(const SgdStep& args)
      : gradient(static_cast<const G*>(args.gradient.data)),
        momentum(static_cast<float*>(args.momentum.data)),
        momentum_decay(args.momentum_decay),
        clip(args.scalars->clip_factor),
        learning_rate(args.scalars->learning_rate) {}

  KOKKOS_FORCEINLINE_FUNCTION Vec operator()(Lanes at, Vec decay, Vec p) const {
    const Vec g = multiply_add(decay, p, at.load(gradient) * clip);
    const Vec m = multiply_add(momentum_decay, at.load(momentum), g);
    at.store(momentum, m);
    return p - learning_rate * m;
  }
};

/// Muon's update rule.
template <class G>
struct MuonRule {
  const G* direction;
  Vec scale;
  Vec learning_rate;

  KOKKOS_FUNCTION explicit MuonRule(const MuonStep& args)
      : direction(static_cast<const G*>(args.gradient.data)),
        scale(args.scale),
        learning_rate(args.rate_factor * args.scalars->learning_rate) {}

  KOKKOS_FORCEINLINE_FUNCTION Vec operator()(Lanes at, Vec decay, Vec p) const {
    return p - learning_rate * multiply_add(decay, p, scale * at.load(direction));
  }
};

/// The step on elements that have an fp32 master.
template <class W>
struct MasterUpdate {
  const float* source;  // the master or, of fp32, the version of the weights that the step reads
  float* master;
  W* weights;

  template <class Rule>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t i, std::int64_t end, const Rule& rule, Vec decay,
                                              const Segment& /*segment*/) const {
    for (; i + width <= end; i += width) update(Lanes{i, width}, rule, decay);
    if (i < end) update(Lanes{i, static_cast<int>(end - i)}, rule, decay);
  }
  template <class Rule>
  KOKKOS_FORCEINLINE_FUNCTION void update(Lanes at, const Rule& rule, Vec decay) const {
    const Vec p = rule(at, decay, at.load(source));
    at.store(master, p);
    if constexpr (!std::is_same_v<W, float>) at.store(weights, p);
  }
};

/// The step on elements without a master: it rounds the new weights stochastically. It processes up to
/// `chances_at_once` elements at a time, aligned to the random draws.
template <class W>
struct RoundedUpdate {
  const W* source;
  W* weights;
  const StepScalars* scalars;

  template <class Rule>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t i, std::int64_t end, const Rule& rule, Vec decay,
                                              const Segment& segment) const {
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
        store(exact + k, rule(at, decay, at.load(source)));
      }
      for (int k = 0; k < count; ++k)
        weights[i + k] = round_stochastically<W>(exact[k], chances[skipped + k]);
      i += count;
    }
  }
};

/// In parallel over blocks, calls update(i, end, rule, decay, segment) for the elements [i, end) of one
/// segment after another. A step that is skipped copies `previous`, if there is such a version.
template <class Rule, class Op, class W, class Update>
void step_kernel(const std::string& label, const Op& args, const W* previous, W* weights, Update update) {
  const std::int64_t n = args.weights.size();
  Kokkos::parallel_for(
      label, Range(queue(), 0, (n + step_block - 1) / step_block), KOKKOS_LAMBDA(std::int64_t block) {
        std::int64_t i = block * step_block;
        const std::int64_t block_end = i + step_block < n ? i + step_block : n;
        if (args.scalars->skip != 0) {
          for (; previous != nullptr && i < block_end; ++i) weights[i] = previous[i];
          return;
        }
        const Rule rule(args);
        for (int s = segment_of(args.segments, args.num_segments, i); i < block_end; ++s) {
          const Segment segment = args.segments[s];
          const std::int64_t end = segment.end < block_end ? segment.end : block_end;
          update(i, end, rule, Vec(args.weight_decay * segment.decay), segment);
          i = end;
        }
      });
}

/// An optimizer's step by `Rule`, on masters or on weights that are rounded stochastically.
template <template <class> class Rule, class Op>
void step(const std::string& label, const Op& op) {
  const std::int64_t n = op.weights.size();
  Op::operands(op, [&](const char* /*name*/, const TensorRef& tensor, Access /*access*/) {
    require(!tensor || (tensor.size() == n && tensor.contiguous()), "an optimizer's buffers have one size");
  });
  require(op.num_segments > 0 || n == 0, "an optimizer's segments cover the buffer");
  require(op.weights.dtype != DType::fp32 || op.weights.data == op.master.data,
          "fp32 weights are their own master");
  dispatch_float(op.weights.dtype, [&]<class W>(W) {
    W* weights = vector<W>(op.weights).data();
    const W* previous = op.previous ? vector<W>(op.previous).data() : nullptr;
    const W* source = op.previous ? previous : weights;
    dispatch_gradient<W>(op.gradient.dtype, [&]<class G>(G) {
      const auto run = [&](const auto& update) {
        step_kernel<Rule<G>>(label, op, previous, weights, update);
      };
      if constexpr (!std::is_same_v<W, float>) {
        if (!op.master) return run(RoundedUpdate<W>{source, weights, op.scalars});
      }
      float* master = vector<float>(op.master).data();
      if constexpr (std::is_same_v<W, float>) {
        run(MasterUpdate<W>{source, master, weights});
      } else {
        run(MasterUpdate<W>{master, master, weights});
      }
    });
  });
}

}  // namespace

void KokkosOperations::run(const AdamWStep& op) {
  step<AdamWRule>("mylos::adamw::elements"_label, op);
}

void KokkosOperations::run(const SgdStep& op) {
  step<SgdRule>("mylos::sgd::elements"_label, op);
}

void KokkosOperations::run(const MuonStep& op) {
  step<MuonRule>("mylos::muon::elements"_label, op);
}

void KokkosOperations::run(const GuardStep& op) {
  const auto* input = static_cast<const GuardInput*>(op.input.data);
  auto* state = static_cast<GuardState*>(op.state.data);
  Kokkos::parallel_for(
      "mylos::guard_step::update"_label, Range(queue(), 0, 1),
      KOKKOS_LAMBDA(std::int64_t) { guard_update(op.config, *input, *state, *op.scalars); });
}

}  // namespace mylos::compute_kokkos
