// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr int threads = 256;
constexpr int group = 4;  // elements per thread: 16 bytes of fp32

template <class T>
struct alignas(group * sizeof(T)) Group {
  T values[group];
};

// Loops over a group have a constant number of turns, so that its elements stay in registers.

/// Loads `count` elements, in one access if they are a whole group; the rest is 0.
template <class T>
__device__ Group<T> load_group(const T* from, int count) {
  if (count == group) return *reinterpret_cast<const Group<T>*>(from);
  Group<T> values{};
#pragma unroll
  for (int i = 0; i < group; ++i) {
    if (i < count) values.values[i] = from[i];
  }
  return values;
}
template <class T>
__device__ void store_group(T* to, int count, const Group<T>& values) {
  if (count == group) {
    *reinterpret_cast<Group<T>*>(to) = values;
  } else {
#pragma unroll
    for (int i = 0; i < group; ++i) {
      if (i < count) to[i] = values.values[i];
    }
  }
}

/// Factors that all elements of a step share.
struct alignas(16) StepFactors {
  float clip;
  float learning_rate;
  float inverse_bias1;  // 1 / (1 - beta1^t)
  float inverse_bias2;  // 1 / (1 - beta2^t)
};

__device__ float inverse_bias(float beta, std::int64_t step) {
  return static_cast<float>(-1.0 / expm1(static_cast<double>(step) * log(static_cast<double>(beta))));
}

__global__ void prepare(AdamWStep args, StepFactors* factors) {
  *factors = {args.scalars->clip_factor, args.scalars->learning_rate,
              inverse_bias(args.beta1, args.scalars->step), inverse_bias(args.beta2, args.scalars->step)};
}

template <class W>
__device__ Group<W> rounded(const Group<float>& exact) {
  Group<W> w;
  for (int i = 0; i < group; ++i) w.values[i] = static_cast<W>(exact.values[i]);
  return w;
}

/// Rounds elements first .. first + count - 1, the first of which lies in segments[0]. If they are one half
/// of a counter's elements, one draw serves all of them.
template <class W>
__device__ Group<W> round_group_stochastically(const Group<float>& exact, const Segment* segments,
                                               std::int64_t step, std::int64_t first, int count) {
  static_assert(2 * group == chances_of_counter);
  const StochasticRounding& rounding = segments->rounding;
  const std::int64_t place = first - segments->begin;
  const auto element = static_cast<std::uint64_t>(rounding.index(place));
  Group<W> w;
  if (element % group == 0 && rounding.index.run(place) >= group && first + group <= segments->end) {
    const PhiloxBlock words = rounding_words(rounding.key, step, element / chances_of_counter);
    const bool is_second = element % chances_of_counter != 0;
    for (int i = 0; i < group; ++i) {
      const std::uint16_t chance = is_second ? chance_of(words, group + i) : chance_of(words, i);
      w.values[i] = round_stochastically<W>(exact.values[i], chance);
    }
    return w;
  }
#pragma unroll
  for (int i = 0; i < group; ++i) {
    if (i >= count) break;
    while (segments->end <= first + i) ++segments;
    const auto e = static_cast<std::uint64_t>(segments->rounding.index(first + i - segments->begin));
    const PhiloxBlock words = rounding_words(segments->rounding.key, step, e / chances_of_counter);
    w.values[i] =
        round_stochastically<W>(exact.values[i], chance_of(words, static_cast<int>(e % chances_of_counter)));
  }
  return w;
}

template <class W, class G>
__global__ void update(AdamWStep args, const StepFactors* factors, W* weights, const G* gradient,
                       float* master, float* first_moment, float* second_moment, std::int64_t n) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * group;
  if (first >= n) return;
  const int count = static_cast<int>(first + group <= n ? group : n - first);
  const bool has_previous = args.previous.data != nullptr;
  const W* source = has_previous ? static_cast<const W*>(args.previous.data) : weights;
  if (args.scalars->skip != 0) {
    if (has_previous) store_group(weights + first, count, load_group(source + first, count));
    return;
  }
  const StepFactors step = *factors;
  const Group<G> g = load_group(gradient + first, count);
  Group<float> m = load_group(first_moment + first, count);
  Group<float> v = load_group(second_moment + first, count);
  Group<float> p;
  if (master != nullptr && !std::is_same_v<W, float>) {
    p = load_group(master + first, count);
  } else {
    const Group<W> w = load_group(source + first, count);
    for (int i = 0; i < group; ++i) p.values[i] = static_cast<float>(w.values[i]);
  }
  const int first_segment = segment_of(args.segments, args.num_segments, first);
  int segment = first_segment;
#pragma unroll
  for (int i = 0; i < group; ++i) {
    if (i >= count) break;
    while (args.segments[segment].end <= first + i) ++segment;
    const float decay = args.weight_decay * args.segments[segment].decay;
    const float clipped = static_cast<float>(g.values[i]) * step.clip;
    m.values[i] = fmaf(args.beta1, m.values[i], (1.0F - args.beta1) * clipped);
    v.values[i] = fmaf(args.beta2, v.values[i], (1.0F - args.beta2) * clipped * clipped);
    const float direction =
        m.values[i] * step.inverse_bias1 / (sqrtf(v.values[i] * step.inverse_bias2) + args.epsilon);
    p.values[i] -= step.learning_rate * fmaf(decay, p.values[i], direction);
  }
  store_group(first_moment + first, count, m);
  store_group(second_moment + first, count, v);
  if (master != nullptr) store_group(master + first, count, p);
  if constexpr (!std::is_same_v<W, float>) {
    const Group<W> w = master != nullptr ? rounded<W>(p)
                                         : round_group_stochastically<W>(p, args.segments + first_segment,
                                                                         args.scalars->step, first, count);
    store_group(weights + first, count, w);
  }
}

}  // namespace

bool KernelOperations::run(const AdamWStep& args) {
  const std::int64_t n = args.weights.size();
  require((!args.master || args.master.size() == n) && args.gradient.size() == n &&
              args.first_moment.size() == n && args.second_moment.size() == n &&
              (!args.previous || args.previous.size() == n),
          "AdamW's buffers have one size");
  require(args.weights.dtype != DType::fp32 || args.weights.data == args.master.data,
          "fp32 weights are their own master");
  if (!has_packs({args.weights.data, args.gradient.data, args.master.data, args.first_moment.data,
                  args.second_moment.data, args.previous.data})) {
    return false;
  }
  if (n == 0) return true;
  require(args.num_segments > 0, "AdamW's segments cover the buffer");
  auto* factors = static_cast<StepFactors*>(workspace_.data());
  launch(prepare, 1, 1, queue(), args, factors);
  dispatch_float(args.weights.dtype, [&]<class W>(W) {
    dispatch_gradient<W>(args.gradient.dtype, [&]<class G>(G) {
      launch(update<W, G>, blocks_for(n, std::int64_t{threads} * group), threads, queue(), args, factors,
             args.weights.as<W>(), args.gradient.as<G>(), args.master ? args.master.as<float>() : nullptr,
             args.first_moment.as<float>(), args.second_moment.as<float>(), n);
    });
  });
  return true;
}

}  // namespace mylos::compute_cuda
