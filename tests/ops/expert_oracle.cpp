// SPDX-License-Identifier: BSD-3-Clause
#include "tests/ops/expert_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace mylos::oracle {

namespace {

std::int64_t whole(double value) {
  return static_cast<std::int64_t>(value);
}

/// (B, T, C) as (B * T, C).
Array as_matrix(Array a) {
  a.shape = {a.dim(0) * a.dim(1), a.dim(2)};
  return a;
}

Array with_shape(Array a, std::vector<std::int64_t> shape) {
  a.shape = std::move(shape);
  return a;
}

/// `count` elements from `first`.
Array part_of(const Array& a, std::int64_t first, std::vector<std::int64_t> shape) {
  Array part(std::move(shape));
  std::copy_n(a.values.begin() + first, part.size(), part.values.begin());
  return part;
}

void put_part(const Array& part, std::int64_t first, Array& a) {
  std::ranges::copy(part.values, a.values.begin() + first);
}

/// The weights, or gradients of weights, of one expert.
Array of_expert(const Array& a, std::int64_t expert) {
  std::vector<std::int64_t> shape(a.shape.begin() + 1, a.shape.end());
  return part_of(a, expert * (a.size() / a.dim(0)), std::move(shape));
}

/// Calls visit(expert, first row counted over all parts, number of rows) for the rows of each expert of each
/// part.
template <class Visit>
void for_each_run(const Array& offsets, std::int64_t rows_of_part, const Visit& visit) {
  const std::int64_t experts = offsets.dim(1) - 1;
  for (std::int64_t part = 0; part < offsets.dim(0); ++part) {
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const std::int64_t first = whole(offsets[part * (experts + 1) + expert]);
      const std::int64_t end = whole(offsets[part * (experts + 1) + expert + 1]);
      visit(expert, part * rows_of_part + first, end - first);
    }
  }
}

double log_sum_exp(const Array& a, std::int64_t first, std::int64_t count) {
  const auto begin = a.values.begin() + first;
  const double largest = *std::max_element(begin, begin + count);
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(begin[i] - largest);
  return largest + std::log(sum);
}

/// The softmax of each row.
Array probabilities(const Array& scores) {
  const std::int64_t experts = scores.dim(2);
  Array p(scores.shape);
  for (std::int64_t i = 0; i < p.size(); ++i) {
    p[i] = std::exp(scores[i] - log_sum_exp(scores, i / experts * experts, experts));
  }
  return p;
}

/// Calls visit(element of (B, T, E), its z).
template <class Visit>
void for_each_noise(const Array& logits, const RouterNoise& noise, std::int64_t step, const Visit& visit) {
  const std::int64_t per_sample = logits.dim(1) * logits.dim(2);
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    visit(i, router_noise(noise, step, noise.first_sample + i / per_sample, i % per_sample));
  }
}

}  // namespace

Array router_forward(const Array& x, const Array& w) {
  return with_shape(linear_forward(as_matrix(x), w, {}), {x.dim(0), x.dim(1), w.dim(1)});
}

Array router_backward_input(const Array& dlogits, const Array& w, const Array& residual) {
  Array dx =
      with_shape(linear_backward_input(as_matrix(dlogits), w), {dlogits.dim(0), dlogits.dim(1), w.dim(0)});
  for (std::int64_t i = 0; residual && i < dx.size(); ++i) dx[i] += residual[i];
  return dx;
}

void router_backward_weight(const Array& x, const Array& dlogits, bool accumulate, Array& dw) {
  Array absent;
  linear_backward_weight(as_matrix(x), as_matrix(dlogits), accumulate, dw, absent);
}

double router_noise(const RouterNoise& noise, std::int64_t step, std::int64_t sample, std::int64_t e) {
  const auto pair = static_cast<std::uint64_t>(e) / 2;
  const PhiloxBlock block =
      philox(noise.key, static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32U),
             static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(step));
  return static_cast<double>(normal_pair(block.x[0], block.x[1])[static_cast<std::size_t>(e % 2)]);
}

Array router_scores(const Array& logits, const Array& noise_logits, const RouterNoise& noise,
                    std::int64_t step) {
  Array scores = logits;
  if (noise.kind == RouterNoise::Kind::none) return scores;
  for_each_noise(logits, noise, step, [&](std::int64_t i, double z) {
    const double factor = noise.kind == RouterNoise::Kind::normal ? 1.0 / static_cast<double>(logits.dim(2))
                                                                  : std::log1p(std::exp(noise_logits[i]));
    scores[i] += z * factor;
  });
  return scores;
}

Array largest_scores(const Array& scores, std::int64_t count) {
  const std::int64_t rows = scores.dim(0) * scores.dim(1), experts = scores.dim(2);
  Array choices({scores.dim(0), scores.dim(1), count});
  std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
  for (std::int64_t n = 0; n < rows; ++n) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
      return scores[n * experts + a] > scores[n * experts + b];
    });
    std::copy_n(order.begin(), count, choices.values.begin() + n * count);
  }
  return choices;
}

Array router_gates(const Array& scores, const Array& choices, RouterKind kind) {
  const std::int64_t experts = scores.dim(2), count = choices.dim(2);
  Array gates(choices.shape);
  for (std::int64_t n = 0; n < choices.size() / count; ++n) {
    Array chosen({count});
    for (std::int64_t j = 0; j < count; ++j) chosen[j] = scores[n * experts + whole(choices[n * count + j])];
    const double sum = kind == RouterKind::topk_softmax ? log_sum_exp(chosen, 0, count)
                                                        : log_sum_exp(scores, n * experts, experts);
    for (std::int64_t j = 0; j < count; ++j) gates[n * count + j] = std::exp(chosen[j] - sum);
  }
  return gates;
}

Array router_loads(const Array& choices, std::int64_t experts) {
  const std::int64_t per_sequence = choices.dim(1) * choices.dim(2);
  Array loads({choices.dim(0), experts});
  for (std::int64_t i = 0; i < choices.size(); ++i)
    loads[i / per_sequence * experts + whole(choices[i])] += 1.0;
  return loads;
}

void expert_places(const Array& choices, std::int64_t capacity, bool by_choice, Array& loads, Array& places,
                   Array& pairs, Array& offsets) {
  const std::int64_t sequences = choices.dim(0), tokens = choices.dim(1), count = choices.dim(2);
  const std::int64_t parts = pairs.dim(0), rows_of_part = pairs.dim(1), local = offsets.dim(1) - 1;
  loads = router_loads(choices, parts * local);
  places = Array(choices.shape);
  std::ranges::fill(places.values, -1.0);

  std::vector<bool> is_kept(static_cast<std::size_t>(choices.size()));
  for (std::int64_t b = 0; b < sequences; ++b) {
    std::vector<std::int64_t> kept(static_cast<std::size_t>(parts * local));
    for (std::int64_t i = 0; i < tokens * count; ++i) {
      const std::int64_t token = by_choice ? i % tokens : i / count;
      const std::int64_t choice = by_choice ? i / tokens : i % count;
      const std::int64_t pair = (b * tokens + token) * count + choice;
      std::int64_t& kept_by_expert = kept[static_cast<std::size_t>(choices[pair])];
      if (capacity > 0 && kept_by_expert == capacity) continue;
      ++kept_by_expert;
      is_kept[static_cast<std::size_t>(pair)] = true;
    }
  }
  for (std::int64_t part = 0; part < parts; ++part) {
    std::int64_t row = 0;
    for (std::int64_t expert = 0; expert < local; ++expert) {
      offsets[part * (local + 1) + expert] = static_cast<double>(row);
      // A token has an expert once at most, so the order of pairs is that of sequences and tokens.
      for (std::int64_t pair = 0; pair < choices.size(); ++pair) {
        if (whole(choices[pair]) != part * local + expert || !is_kept[static_cast<std::size_t>(pair)])
          continue;
        places[pair] = static_cast<double>(part * rows_of_part + row);
        pairs[part * rows_of_part + row++] = static_cast<double>(pair);
      }
    }
    offsets[part * (local + 1) + local] = static_cast<double>(row);
  }
}

void gather_rows(const Array& x, const Array& pairs, const Array& offsets, std::int64_t choices,
                 Array& rows) {
  const std::int64_t width = rows.dim(2);
  for_each_run(offsets, rows.dim(1), [&](std::int64_t, std::int64_t first, std::int64_t count) {
    for (std::int64_t r = first; r < first + count; ++r) {
      put_part(part_of(x, whole(pairs[r]) / choices * width, {width}), r * width, rows);
    }
  });
}

Array combine_rows(const Array& rows, const Array& places, const Array& gates, const Array& residual) {
  const std::int64_t count = places.dim(2), width = rows.dim(2);
  Array y({places.dim(0), places.dim(1), width});
  if (residual) y = residual;
  for (std::int64_t pair = 0; pair < places.size(); ++pair) {
    const std::int64_t row = whole(places[pair]);
    for (std::int64_t c = 0; row >= 0 && c < width; ++c) {
      y[pair / count * width + c] += (gates ? gates[pair] : 1.0) * rows[row * width + c];
    }
  }
  return y;
}

void combine_rows_backward(const Array& dy, const Array& rows, const Array& places, const Array& gates,
                           Array& drows, Array& dgates) {
  const std::int64_t count = places.dim(2), width = rows.dim(2);
  dgates = Array(places.shape);
  for (std::int64_t pair = 0; pair < places.size(); ++pair) {
    const std::int64_t row = whole(places[pair]);
    for (std::int64_t c = 0; row >= 0 && c < width; ++c) {
      const double gradient = dy[pair / count * width + c];
      dgates[pair] += rows[row * width + c] * gradient;
      drows[row * width + c] = gates[pair] * gradient;
    }
  }
}

void grouped_linear_forward(const Array& x, const Array& w, const Array& bias, const Array& offsets, Array& y,
                            Array& activated) {
  const std::int64_t inputs = w.dim(1), outputs = w.dim(2);
  for_each_run(offsets, x.dim(1), [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    const Array result = linear_forward(part_of(x, first * inputs, {count, inputs}), of_expert(w, expert),
                                        bias ? of_expert(bias, expert) : Array());
    put_part(result, first * outputs, y);
    if (activated) put_part(gelu_forward(result), first * outputs, activated);
  });
}

void grouped_linear_backward_input(const Array& dy, const Array& w, const Array& offsets, const Array& pre,
                                   Array& dx) {
  const std::int64_t inputs = w.dim(1), outputs = w.dim(2);
  for_each_run(offsets, dy.dim(1), [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    Array result =
        linear_backward_input(part_of(dy, first * outputs, {count, outputs}), of_expert(w, expert));
    if (pre) result = gelu_backward(part_of(pre, first * inputs, {count, inputs}), result);
    put_part(result, first * inputs, dx);
  });
}

void grouped_linear_backward_weight(const Array& x, const Array& dy, const Array& offsets, bool accumulate,
                                    Array& dw, Array& dbias) {
  const std::int64_t inputs = dw.dim(1), outputs = dw.dim(2);
  if (!accumulate) {
    std::ranges::fill(dw.values, 0.0);
    std::ranges::fill(dbias.values, 0.0);
  }
  for_each_run(offsets, x.dim(1), [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    Array dw_of_expert = of_expert(dw, expert);
    Array dbias_of_expert = dbias ? of_expert(dbias, expert) : Array();
    linear_backward_weight(part_of(x, first * inputs, {count, inputs}),
                           part_of(dy, first * outputs, {count, outputs}), true, dw_of_expert,
                           dbias_of_expert);
    put_part(dw_of_expert, expert * inputs * outputs, dw);
    if (dbias) put_part(dbias_of_expert, expert * outputs, dbias);
  });
}

void router_statistics(const Array& logits, const Array& scores, const Array& loads, std::int64_t choices,
                       std::int64_t capacity, bool accumulate, Array& sums) {
  const std::int64_t sequences = logits.dim(0), tokens = logits.dim(1), experts = logits.dim(2);
  if (!accumulate) sums = Array({3 + experts});
  const Array p = probabilities(scores ? scores : logits);
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t e = 0; e < experts; ++e) {
      const double load = loads[b * experts + e];
      const double share = load / static_cast<double>(choices * tokens);
      double mean = 0.0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        mean += p[(b * tokens + t) * experts + e] / static_cast<double>(tokens);
      }
      sums[0] += static_cast<double>(experts) * share * mean;
      if (capacity > 0) sums[2] += std::max(load - static_cast<double>(capacity), 0.0);
      sums[3 + e] += load;
    }
  }
  for (std::int64_t n = 0; n < sequences * tokens; ++n) {
    sums[1] += std::pow(log_sum_exp(logits, n * experts, experts), 2);
  }
}

void router_gradient(const RouterGradientInput& in, Array& dlogits, Array& dnoise_logits) {
  const std::int64_t tokens = in.logits.dim(1), experts = in.logits.dim(2), count = in.choices.dim(2);
  const Array p = probabilities(in.scores ? in.scores : in.logits);
  const Array p_logits = probabilities(in.logits);

  Array dscores(in.logits.shape);
  for (std::int64_t n = 0; n < in.logits.size() / experts; ++n) {
    double gates_times_gradients = 0.0;
    for (std::int64_t j = n * count; j < (n + 1) * count; ++j) {
      gates_times_gradients += in.gates[j] * in.dgates[j];
    }
    for (std::int64_t j = n * count; j < (n + 1) * count; ++j) {
      double& gradient = dscores[n * experts + whole(in.choices[j])];
      gradient += in.gates[j] * in.dgates[j];
      if (in.kind == RouterKind::topk_softmax) gradient -= in.gates[j] * gates_times_gradients;
    }
    // The mean over the tokens and the factor T of the gradient cancel.
    const auto balance = [&](std::int64_t e) {
      const double load = in.loads[n / tokens * experts + e];
      return in.balance_scale * static_cast<double>(experts) * load / static_cast<double>(count * tokens);
    };
    double p_times_balance = 0.0;
    for (std::int64_t e = 0; e < experts; ++e) p_times_balance += p[n * experts + e] * balance(e);
    for (std::int64_t e = 0; e < experts; ++e) {
      double& gradient = dscores[n * experts + e];
      gradient += p[n * experts + e] * (balance(e) - p_times_balance);
      if (in.kind == RouterKind::softmax_topk) gradient -= p[n * experts + e] * gates_times_gradients;
    }
  }

  dlogits = dscores;
  for (std::int64_t i = 0; i < dlogits.size(); ++i) {
    const double sum = log_sum_exp(in.logits, i / experts * experts, experts);
    dlogits[i] += in.z_scale * 2.0 * sum * p_logits[i];
  }
  if (in.noise.kind != RouterNoise::Kind::learned) return;
  dnoise_logits = Array(in.logits.shape);
  for_each_noise(in.logits, in.noise, in.step, [&](std::int64_t i, double z) {
    dnoise_logits[i] = dscores[i] * z / (1.0 + std::exp(-in.noise_logits[i]));
  });
}

}  // namespace mylos::oracle
