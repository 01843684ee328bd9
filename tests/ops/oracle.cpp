// SPDX-License-Identifier: BSD-3-Clause
#include "tests/ops/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

namespace mylos::oracle {

namespace {

constexpr double layernorm_epsilon = 1e-5;
const double gelu_slope = std::sqrt(2.0 / std::numbers::pi);
constexpr double gelu_cubic = 0.044715;

void clear_unless(bool accumulate, Array& a) {
  if (!accumulate) std::ranges::fill(a.values, 0.0);
}

double keep_factor(const Dropout& dropout, std::int64_t step, std::int64_t sample, std::int64_t e) {
  if (dropout.probability == 0.0F) return 1.0;
  const bool keeps = dropout_keeps(dropout, step, dropout.first_sample + sample, e);
  return keeps ? 1.0 / (1.0 - static_cast<double>(dropout.probability)) : 0.0;
}

// One head of one sample of an attention tensor (B, T, H, D); the call operator gives the index of element
// (t, d).
struct HeadView {
  std::int64_t num_heads, head_size, first;

  HeadView(const Array& a, std::int64_t b, std::int64_t h)
      : num_heads(a.dim(2)), head_size(a.dim(3)), first((b * a.dim(1) * num_heads + h) * head_size) {}
  std::int64_t operator()(std::int64_t t, std::int64_t d) const {
    return first + t * num_heads * head_size + d;
  }
};

std::int64_t keys_seen(const AttentionInput& in, std::int64_t i) {
  return std::min(in.key.dim(1), in.query_offset + i + 1);
}

double score(const AttentionInput& in, const HeadView& q, const HeadView& k, std::int64_t i, std::int64_t j) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < q.head_size; ++d) sum += in.query[q(i, d)] * in.key[k(j, d)];
  return in.scale * sum;
}

double attention_keep(const AttentionInput& in, std::int64_t b, std::int64_t h, std::int64_t i,
                      std::int64_t j) {
  return keep_factor(in.dropout, in.step, b, in.place.element(h, i, j));
}

}  // namespace

bool dropout_keeps(const Dropout& dropout, std::int64_t step, std::int64_t sample, std::int64_t e) {
  const std::uint64_t group = static_cast<std::uint64_t>(e) / 4;
  const PhiloxBlock block =
      philox(dropout.key, static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32U),
             static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(step));
  return uniform01(block.x[static_cast<std::uint64_t>(e) % 4]) >= dropout.probability;
}

Array::Array(std::vector<std::int64_t> shape_)
    : shape(std::move(shape_)),
      values(static_cast<std::size_t>(
          std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()))) {}

double relative_error(const Array& a, const Array& b, double floor) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::int64_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  norm = std::max(norm, floor * floor * static_cast<double>(b.size()));
  if (difference == 0.0) return 0.0;
  const double error = std::sqrt(difference / norm);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

Array fill_normal(std::int64_t n, PhiloxKey key, const GlobalIndex& index, double stddev) {
  Array y({n});
  for (std::int64_t i = 0; i < n; ++i) {
    const auto pair = static_cast<std::uint64_t>(index(i)) / 2;
    const PhiloxBlock block =
        philox(key, static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32U), 0, 0);
    y[i] = stddev * static_cast<double>(normal_pair(block.x[0], block.x[1])[index(i) % 2]);
  }
  return y;
}

Array linear_forward(const Array& x, const Array& w, const Array& bias) {
  const std::int64_t rows = x.dim(0), inputs = w.dim(0), outputs = w.dim(1);
  Array y({rows, outputs});
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t o = 0; o < outputs; ++o) y[n * outputs + o] = bias ? bias[o] : 0.0;
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t o = 0; o < outputs; ++o) y[n * outputs + o] += x[n * inputs + i] * w[i * outputs + o];
    }
  }
  return y;
}

Array linear_backward_input(const Array& dy, const Array& w) {
  const std::int64_t rows = dy.dim(0), inputs = w.dim(0), outputs = w.dim(1);
  Array dx({rows, inputs});
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t o = 0; o < outputs; ++o)
        dx[n * inputs + i] += dy[n * outputs + o] * w[i * outputs + o];
    }
  }
  return dx;
}

void linear_backward_weight(const Array& x, const Array& dy, bool accumulate, Array& dw, Array& dbias) {
  const std::int64_t rows = x.dim(0), inputs = x.dim(1), outputs = dy.dim(1);
  clear_unless(accumulate, dw);
  clear_unless(accumulate, dbias);
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t o = 0; o < outputs; ++o)
        dw[i * outputs + o] += x[n * inputs + i] * dy[n * outputs + o];
    }
    for (std::int64_t o = 0; dbias && o < outputs; ++o) dbias[o] += dy[n * outputs + o];
  }
}

Array embedding_forward(const Array& tokens, std::int64_t first_token, const Array& wte, const Array& wpe,
                        std::int64_t position, const Array& positions) {
  const std::int64_t samples = tokens.dim(0), length = tokens.dim(1), width = wte.dim(1);
  Array out({samples, length, width});
  for (std::int64_t row = 0; row < samples * length; ++row) {
    const auto token = static_cast<std::int64_t>(tokens[row]) - first_token;
    const bool is_here = token >= 0 && token < wte.dim(0);
    std::int64_t place = position + row % length;
    if (positions) place += static_cast<std::int64_t>(positions[row / length]);
    const bool has_place = place < wpe.dim(0);
    for (std::int64_t c = 0; c < width; ++c) {
      out[row * width + c] =
          (is_here ? wte[token * width + c] : 0.0) + (has_place ? wpe[place * width + c] : 0.0);
    }
  }
  return out;
}

void embedding_backward(const Array& tokens, std::int64_t first_token, const Array& dout,
                        std::int64_t position, Array& dwte, bool accumulate_wte, Array& dwpe,
                        bool accumulate_wpe) {
  const std::int64_t samples = dout.dim(0), length = dout.dim(1), width = dout.dim(2);
  clear_unless(accumulate_wte, dwte);
  clear_unless(accumulate_wpe, dwpe);
  for (std::int64_t row = 0; row < samples * length; ++row) {
    const auto token = static_cast<std::int64_t>(tokens[row]) - first_token;
    const bool is_here = token >= 0 && token < dwte.dim(0);
    for (std::int64_t c = 0; c < width; ++c) {
      if (is_here) dwte[token * width + c] += dout[row * width + c];
      dwpe[(position + row % length) * width + c] += dout[row * width + c];
    }
  }
}

Array layernorm_forward(const Array& x, const Array& gamma, const Array& beta, Array& mean, Array& rstd) {
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  Array y({rows, width});
  mean = Array({rows});
  rstd = Array({rows});
  for (std::int64_t n = 0; n < rows; ++n) {
    double sum = 0.0;
    for (std::int64_t c = 0; c < width; ++c) sum += x[n * width + c];
    mean[n] = sum / static_cast<double>(width);
    double squares = 0.0;
    for (std::int64_t c = 0; c < width; ++c) squares += std::pow(x[n * width + c] - mean[n], 2);
    rstd[n] = 1.0 / std::sqrt(squares / static_cast<double>(width) + layernorm_epsilon);
    for (std::int64_t c = 0; c < width; ++c) {
      y[n * width + c] = (x[n * width + c] - mean[n]) * rstd[n] * gamma[c] + beta[c];
    }
  }
  return y;
}

Array layernorm_backward_input(const Array& dy, const Array& x, const Array& gamma, const Array& mean,
                               const Array& rstd, const Array& residual) {
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  Array dx({rows, width});
  for (std::int64_t n = 0; n < rows; ++n) {
    double sum = 0.0;             // of the gradient of the normalised row
    double sum_normalised = 0.0;  // of the same times the normalised row
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = dy[n * width + c] * gamma[c];
      sum += g;
      sum_normalised += g * (x[n * width + c] - mean[n]) * rstd[n];
    }
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = dy[n * width + c] * gamma[c];
      const double normalised = (x[n * width + c] - mean[n]) * rstd[n];
      dx[n * width + c] = (residual ? residual[n * width + c] : 0.0) +
                          rstd[n] * (g - (sum + normalised * sum_normalised) / static_cast<double>(width));
    }
  }
  return dx;
}

void layernorm_backward_weight(const Array& dy, const Array& x, const Array& mean, const Array& rstd,
                               bool accumulate, Array& dgamma, Array& dbeta) {
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  clear_unless(accumulate, dgamma);
  clear_unless(accumulate, dbeta);
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t c = 0; c < width; ++c) {
      dgamma[c] += dy[n * width + c] * (x[n * width + c] - mean[n]) * rstd[n];
      dbeta[c] += dy[n * width + c];
    }
  }
}

Array gelu_forward(const Array& x) {
  Array y(x.shape);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    y[i] = 0.5 * x[i] * (1.0 + std::tanh(gelu_slope * (x[i] + gelu_cubic * x[i] * x[i] * x[i])));
  }
  return y;
}

Array gelu_backward(const Array& x, const Array& dy) {
  Array dx(x.shape);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double t = std::tanh(gelu_slope * (x[i] + gelu_cubic * x[i] * x[i] * x[i]));
    const double inner = gelu_slope * (1.0 + 3.0 * gelu_cubic * x[i] * x[i]);
    dx[i] = dy[i] * (0.5 * (1.0 + t) + 0.5 * x[i] * (1.0 - t * t) * inner);
  }
  return dx;
}

Array dropout_add(const Array& x, const Array& residual, const Dropout& dropout, std::int64_t step) {
  Array y(x.shape);
  const std::int64_t per_sample = x.dim(1) * x.dim(2);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    y[i] = (residual ? residual[i] : 0.0) +
           x[i] * keep_factor(dropout, step, i / per_sample, dropout.index(i % per_sample));
  }
  return y;
}

void attention_forward(const AttentionInput& in, Array& output, Array& lse) {
  const std::int64_t samples = in.query.dim(0), queries = in.query.dim(1);
  const std::int64_t heads = in.query.dim(2), size = in.query.dim(3);
  output = Array({samples, queries, heads, size});
  lse = Array({samples, heads, queries});
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const HeadView q(in.query, b, h), k(in.key, b, h);
      for (std::int64_t i = 0; i < queries; ++i) {
        const std::int64_t seen = keys_seen(in, i);
        std::vector<double> scores(static_cast<std::size_t>(seen));
        for (std::int64_t j = 0; j < seen; ++j) scores[static_cast<std::size_t>(j)] = score(in, q, k, i, j);
        const double largest = *std::ranges::max_element(scores);
        double sum = 0.0;
        for (const double s : scores) sum += std::exp(s - largest);
        const double row_lse = largest + std::log(sum);
        lse[(b * heads + h) * queries + i] = row_lse;
        for (std::int64_t j = 0; j < seen; ++j) {
          const double p =
              std::exp(scores[static_cast<std::size_t>(j)] - row_lse) * attention_keep(in, b, h, i, j);
          for (std::int64_t d = 0; d < size; ++d) output[q(i, d)] += p * in.value[k(j, d)];
        }
      }
    }
  }
}

AttentionGradients attention_backward(const AttentionInput& in, const Array& output, const Array& lse,
                                      const Array& output_grad) {
  const std::int64_t samples = in.query.dim(0), queries = in.query.dim(1);
  const std::int64_t heads = in.query.dim(2), size = in.query.dim(3);
  AttentionGradients gradients{Array(in.query.shape), Array(in.key.shape), Array(in.value.shape)};
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const HeadView q(in.query, b, h), k(in.key, b, h);
      for (std::int64_t i = 0; i < queries; ++i) {
        double delta = 0.0;
        for (std::int64_t d = 0; d < size; ++d) delta += output[q(i, d)] * output_grad[q(i, d)];
        for (std::int64_t j = 0; j < keys_seen(in, i); ++j) {
          const double p = std::exp(score(in, q, k, i, j) - lse[(b * heads + h) * queries + i]);
          const double keep = attention_keep(in, b, h, i, j);
          double dp = 0.0;
          for (std::int64_t d = 0; d < size; ++d) {
            dp += output_grad[q(i, d)] * in.value[k(j, d)] * keep;
            gradients.value[k(j, d)] += p * keep * output_grad[q(i, d)];
          }
          const double ds = in.scale * p * (dp - delta);
          for (std::int64_t d = 0; d < size; ++d) {
            gradients.query[q(i, d)] += ds * in.key[k(j, d)];
            gradients.key[k(j, d)] += ds * in.query[q(i, d)];
          }
        }
      }
    }
  }
  return gradients;
}

void cache_append(const Array& added, const Array& rows, const Array& positions, Array& cache) {
  const std::int64_t texts = added.dim(0), tokens = added.dim(1), heads = added.dim(2), size = added.dim(3);
  for (std::int64_t b = 0; b < texts; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t row = static_cast<std::int64_t>(rows[b]);
      const std::int64_t position = static_cast<std::int64_t>(positions[b]) + t;
      if (position >= cache.dim(2)) continue;
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < size; ++d) {
          cache[((row * heads + h) * cache.dim(2) + position) * size + d] =
              added[((b * tokens + t) * heads + h) * size + d];
        }
      }
    }
  }
}

Array cached_attention(const Array& query, const Array& keys, const Array& values, const Array& rows,
                       const Array& positions, double scale) {
  const std::int64_t texts = query.dim(0), tokens = query.dim(1), heads = query.dim(2), size = query.dim(3);
  Array output(query.shape);
  for (std::int64_t b = 0; b < texts; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t last =
          std::min(static_cast<std::int64_t>(positions[b]) + t, keys.dim(2) - 1);  // position of the query
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t q = ((b * tokens + t) * heads + h) * size;
        const std::int64_t first = (static_cast<std::int64_t>(rows[b]) * heads + h) * keys.dim(2) * size;
        std::vector<double> weights;
        for (std::int64_t j = 0; j <= last; ++j) {
          double score = 0.0;
          for (std::int64_t d = 0; d < size; ++d) score += query[q + d] * keys[first + j * size + d];
          weights.push_back(scale * score);
        }
        const double largest = *std::ranges::max_element(weights);
        double sum = 0.0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (std::int64_t j = 0; j <= last; ++j) {
          for (std::int64_t d = 0; d < size; ++d)
            output[q + d] += weights[static_cast<std::size_t>(j)] / sum * values[first + j * size + d];
        }
      }
    }
  }
  return output;
}

Array softmax_statistics(const Array& logits, const Array& targets, std::int64_t vocab,
                         std::int64_t first_token) {
  const std::int64_t rows = logits.dim(0), padded = logits.dim(1);
  Array statistics({SoftmaxStatistics::count, rows});
  for (std::int64_t n = 0; n < rows; ++n) {
    const auto first = logits.values.begin() + n * padded;
    const auto largest = std::max_element(first, first + vocab);
    double sum = 0.0;
    for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(first[v] - *largest);
    statistics[n] = *largest;
    statistics[rows + n] = sum;
    const std::int64_t target = static_cast<std::int64_t>(targets[n]) - first_token;
    statistics[2 * rows + n] = first[target];
    statistics[3 * rows + n] = largest - first == target ? 1.0 : 0.0;
  }
  return statistics;
}

Array cross_entropy(const Array& logits, const Array& targets, std::int64_t vocab, double gradient_scale,
                    Array& losses, Array& correct) {
  const std::int64_t rows = logits.dim(0), padded = logits.dim(1);
  Array gradient(logits.shape);
  losses = Array({rows});
  correct = Array({rows});
  for (std::int64_t n = 0; n < rows; ++n) {
    const auto first = logits.values.begin() + n * padded;
    const auto largest = std::max_element(first, first + vocab);
    const auto target = static_cast<std::int64_t>(targets[n]);
    if (target < 0) continue;
    double sum = 0.0;
    for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(first[v] - *largest);
    losses[n] = std::log(sum) + *largest - first[target];
    correct[n] = largest - first == target ? 1.0 : 0.0;
    for (std::int64_t v = 0; v < vocab; ++v) {
      gradient[n * padded + v] =
          gradient_scale * (std::exp(first[v] - *largest) / sum - (v == target ? 1.0 : 0.0));
    }
  }
  return gradient;
}

void adamw(const AdamWStep& args, const StepScalars& scalars, const std::vector<Segment>& segments,
           const Array& gradient, Array& master, Array& first_moment, Array& second_moment) {
  if (scalars.skip != 0) return;
  const double beta1 = args.beta1, beta2 = args.beta2;
  const double correction1 = 1.0 - std::pow(beta1, scalars.step);
  const double correction2 = 1.0 - std::pow(beta2, scalars.step);
  for (const Segment& segment : segments) {
    const double decay = static_cast<double>(args.weight_decay) * segment.decay;
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      const double g = gradient[i] * scalars.clip_factor;
      first_moment[i] = beta1 * first_moment[i] + (1.0 - beta1) * g;
      second_moment[i] = beta2 * second_moment[i] + (1.0 - beta2) * g * g;
      const double direction =
          (first_moment[i] / correction1) / (std::sqrt(second_moment[i] / correction2) + args.epsilon);
      master[i] -= scalars.learning_rate * (direction + decay * master[i]);
    }
  }
}

void sgd(const SgdStep& args, const StepScalars& scalars, const std::vector<Segment>& segments,
         const Array& gradient, Array& master, Array& momentum) {
  if (scalars.skip != 0) return;
  for (const Segment& segment : segments) {
    const double decay = static_cast<double>(args.weight_decay) * segment.decay;
    for (std::int64_t i = segment.begin; i < segment.end; ++i) {
      momentum[i] = args.momentum_decay * momentum[i] + gradient[i] * scalars.clip_factor + decay * master[i];
      master[i] -= scalars.learning_rate * momentum[i];
    }
  }
}

void round_stochastically(const std::vector<Segment>& segments, std::int64_t step, DType dtype,
                          Array& values) {
  const int digits = dtype == DType::bf16 ? 8 : 11;
  const int smallest_exponent = dtype == DType::bf16 ? -125 : -13;  // of numbers 0.5 <= |f| < 1, by frexp
  auto segment = segments.begin();
  for (std::int64_t i = 0; i < values.size(); ++i) {
    if (i == segment->end) ++segment;
    const auto element = static_cast<std::uint64_t>(segment->rounding.index(i - segment->begin));
    const PhiloxBlock words = rounding_words(segment->rounding.key, step, element / 8);
    int exponent = 0;
    std::frexp(values[i], &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent, smallest_exponent) - digits);
    const double magnitude = std::abs(values[i]) / unit;
    const double below = std::floor(magnitude);
    const bool up = std::ldexp(chance_of(words, static_cast<int>(element % 8)), -16) < magnitude - below;
    values[i] = std::copysign((below + (up ? 1.0 : 0.0)) * unit, values[i]);
  }
}

}  // namespace mylos::oracle
