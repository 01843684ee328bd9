// SPDX-License-Identifier: BSD-3-Clause
// Checks the oracle: compares its backward operations with central differences of its forward operations, in
// fp64.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/ops/depth_oracle.hpp"
#include "tests/ops/expert_oracle.hpp"
#include "tests/ops/op_run.hpp"

namespace mylos {

namespace {

using oracle::Array;

/// <y, dy>, and the sum of the absolute terms, which bounds the rounding error of the difference of two
/// objectives.
struct Objective {
  double value = 0.0;
  double magnitude = 0.0;

  void add(const Array& y, const Array& dy) {
    for (std::int64_t i = 0; i < y.size(); ++i) {
      value += y[i] * dy[i];
      magnitude += std::abs(y[i] * dy[i]);
    }
  }
};

/// Compares `gradient` with the differences of `objective` in up to 24 elements of `x`, spread over the
/// tensor.
void expect_gradient(const std::string& what, Array& x, const Array& gradient,
                     const std::function<Objective()>& objective) {
  constexpr double step = 1e-5;
  double difference = 0.0;
  double norm = 0.0;
  const std::int64_t samples = std::min<std::int64_t>(x.size(), 24);
  for (std::int64_t s = 0; s < samples; ++s) {
    const std::int64_t i = s * x.size() / samples + (x.size() / samples) * (s % 3) / 3;
    const double old = x[i];
    x[i] = old + step;
    const double above = objective().value;
    x[i] = old - step;
    const double below = objective().value;
    x[i] = old;
    const double slope = (above - below) / (2.0 * step);
    difference += std::pow(slope - gradient[i], 2);
    norm += std::pow(gradient[i], 2);
  }
  const double rounding = 1e-10 * objective().magnitude;
  EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm) + rounding) << what;
}

/// Calls `check` for small fp32 cases of one operation, with their operands.
void for_each_case(Op op, const std::function<void(const OpCase&, Arrays&)>& check) {
  int checked = 0;
  for (const OpCase& c : op_cases()) {
    if (c.op != op || c.full_size || c.operands.front().view.size() > 20000) continue;
    if (!c.detail.starts_with("fp32") || c.accumulate || c.detail.ends_with("_into_dy")) continue;
    SCOPED_TRACE(c.name());
    Arrays arrays = read_all(c, initial_contents(c));
    check(c, arrays);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

TEST(OracleGradient, Linear) {
  for_each_case(Op::linear_forward, [](const OpCase&, Arrays& a) {
    Array& x = a.at("x");
    Array& w = a.at("w");
    Array bias = a.contains("bias") ? a.at("bias") : Array();
    Array dy = oracle::linear_forward(x, w, bias);
    for (std::int64_t i = 0; i < dy.size(); ++i) dy[i] = std::sin(static_cast<double>(i + 1));
    const auto objective = [&] {
      Objective sum;
      sum.add(oracle::linear_forward(x, w, bias), dy);
      return sum;
    };
    Array dw(w.shape);
    Array dbias = bias ? Array(bias.shape) : Array();
    oracle::linear_backward_weight(x, dy, false, dw, dbias);
    expect_gradient("dx", x, oracle::linear_backward_input(dy, w), objective);
    expect_gradient("dw", w, dw, objective);
    if (bias) expect_gradient("dbias", bias, dbias, objective);
  });
}

TEST(OracleGradient, Embedding) {
  for_each_case(Op::embedding_backward, [](const OpCase& c, Arrays& a) {
    Array wte(a.at("dwte").shape), wpe(a.at("dwpe").shape);
    Array& dwte = a.at("dwte");
    Array& dwpe = a.at("dwpe");
    oracle::embedding_backward(a.at("tokens"), c.first_token, a.at("dout"), c.position, dwte, false, dwpe,
                               false);
    const auto objective = [&] {
      Objective sum;
      sum.add(oracle::embedding_forward(a.at("tokens"), c.first_token, wte, wpe, c.position), a.at("dout"));
      return sum;
    };
    expect_gradient("dwte", wte, dwte, objective);
    expect_gradient("dwpe", wpe, dwpe, objective);
  });
}

TEST(OracleGradient, Layernorm) {
  for_each_case(Op::layernorm_forward, [](const OpCase&, Arrays& a) {
    Array &x = a.at("x"), &gamma = a.at("gamma"), &beta = a.at("beta");
    Array dy(x.shape);
    for (std::int64_t i = 0; i < dy.size(); ++i) dy[i] = std::sin(static_cast<double>(i + 1));
    Array mean, rstd;
    const auto objective = [&] {
      Objective sum;
      Array unused_mean, unused_rstd;
      sum.add(oracle::layernorm_forward(x, gamma, beta, unused_mean, unused_rstd), dy);
      return sum;
    };
    oracle::layernorm_forward(x, gamma, beta, mean, rstd);
    Array dgamma(gamma.shape), dbeta(beta.shape);
    oracle::layernorm_backward_weight(dy, x, mean, rstd, false, dgamma, dbeta);
    expect_gradient("dx", x, oracle::layernorm_backward_input(dy, x, gamma, mean, rstd, {}), objective);
    expect_gradient("dgamma", gamma, dgamma, objective);
    expect_gradient("dbeta", beta, dbeta, objective);
  });
}

TEST(OracleGradient, Gelu) {
  for_each_case(Op::gelu_backward, [](const OpCase&, Arrays& a) {
    Array& x = a.at("x");
    expect_gradient("dx", x, oracle::gelu_backward(x, a.at("dy")), [&] {
      Objective sum;
      sum.add(oracle::gelu_forward(x), a.at("dy"));
      return sum;
    });
  });
}

TEST(OracleGradient, Dropout) {
  // dropout_add is linear: its gradient is the same operation on the gradient, without the residual.
  for_each_case(Op::dropout_add, [](const OpCase& c, Arrays& a) {
    Array& x = a.at("x");
    const Dropout dropout = dropout_of(c, nullptr);
    Array dy(x.shape);
    for (std::int64_t i = 0; i < dy.size(); ++i) dy[i] = std::sin(static_cast<double>(i + 1));
    expect_gradient("dx", x, oracle::dropout_add(dy, {}, dropout, c.scalars.step), [&] {
      Objective sum;
      sum.add(oracle::dropout_add(x, {}, dropout, c.scalars.step), dy);
      return sum;
    });
  });
}

TEST(OracleGradient, Attention) {
  for_each_case(Op::attention_backward, [](const OpCase& c, Arrays& a) {
    oracle::AttentionInput in{.query = a.at("query"),
                              .key = a.at("key"),
                              .value = a.at("value"),
                              .query_offset = c.position,
                              .scale = c.scale,
                              .dropout = dropout_of(c, nullptr),
                              .place = c.place,
                              .step = c.scalars.step};
    const Array& output_grad = a.at("output_grad");
    Array output, lse;
    oracle::attention_forward(in, output, lse);
    const oracle::AttentionGradients gradients = oracle::attention_backward(in, output, lse, output_grad);
    const auto objective = [&] {
      Array y, unused_lse;
      oracle::attention_forward(in, y, unused_lse);
      Objective sum;
      sum.add(y, output_grad);
      return sum;
    };
    expect_gradient("query", in.query, gradients.query, objective);
    expect_gradient("key", in.key, gradients.key, objective);
    expect_gradient("value", in.value, gradients.value, objective);
  });
}

TEST(OracleGradient, CrossEntropy) {
  for_each_case(Op::cross_entropy, [](const OpCase& c, Arrays& a) {
    Array& logits = a.at("logits");
    Array losses, correct;
    const Array gradient = oracle::cross_entropy(logits, a.at("targets"), c.vocab, c.scale, losses, correct);
    const Array ones = [&] {
      Array weights(losses.shape);
      std::ranges::fill(weights.values, static_cast<double>(c.scale));
      return weights;
    }();
    expect_gradient("logits", logits, gradient, [&] {
      Array row_losses, unused;
      oracle::cross_entropy(logits, a.at("targets"), c.vocab, c.scale, row_losses, unused);
      Objective sum;
      sum.add(row_losses, ones);
      return sum;
    });
  });
}

/// A gradient for results of this shape.
Array some_gradient(const std::vector<std::int64_t>& shape) {
  Array dy(shape);
  for (std::int64_t i = 0; i < dy.size(); ++i) dy[i] = std::sin(static_cast<double>(i + 1));
  return dy;
}

Objective objective_of(const Array& y, const Array& dy) {
  Objective sum;
  sum.add(y, dy);
  return sum;
}

TEST(OracleGradient, Router) {
  for_each_case(Op::router_forward, [](const OpCase&, Arrays& a) {
    Array &x = a.at("x"), &w = a.at("w");
    const Array dlogits = some_gradient(a.at("logits").shape);
    const auto objective = [&] { return objective_of(oracle::router_forward(x, w), dlogits); };
    Array dw(w.shape);
    oracle::router_backward_weight(x, dlogits, false, dw);
    expect_gradient("dx", x, oracle::router_backward_input(dlogits, w, {}), objective);
    expect_gradient("dw", w, dw, objective);
  });
}

TEST(OracleGradient, RouterLogits) {
  for_each_case(Op::router_gradient, [](const OpCase& c, Arrays& a) {
    const Array absent;
    const bool is_learned = c.noise == RouterNoise::Kind::learned;
    oracle::RouterGradientInput in{.logits = a.at("logits"),
                                   .noise_logits = is_learned ? a.at("noise_logits") : absent,
                                   .scores = absent,
                                   .choices = a.at("choices"),
                                   .gates = absent,
                                   .dgates = a.at("dgates"),
                                   .loads = a.at("loads"),
                                   .kind = c.router,
                                   .noise = noise_of(c, nullptr),
                                   .step = c.scalars.step,
                                   .balance_scale = c.balance_scale,
                                   .z_scale = c.z_scale};
    const auto compute_scores = [&] {
      return oracle::router_scores(in.logits, in.noise_logits, in.noise, in.step);
    };
    Array loss_factors({3 + in.logits.dim(2)});
    loss_factors[0] = in.balance_scale * static_cast<double>(in.logits.dim(1));
    loss_factors[1] = in.z_scale;
    const auto objective = [&] {
      const Array scores = compute_scores();
      Array sums;
      oracle::router_statistics(in.logits, scores, in.loads, c.choices, 0, false, sums);
      Objective sum = objective_of(oracle::router_gates(scores, in.choices, in.kind), in.dgates);
      sum.add(sums, loss_factors);
      return sum;
    };
    if (c.noise != RouterNoise::Kind::none) in.scores = compute_scores();
    in.gates = oracle::router_gates(compute_scores(), in.choices, in.kind);
    Array dlogits, dnoise_logits;
    oracle::router_gradient(in, dlogits, dnoise_logits);
    expect_gradient("dlogits", in.logits, dlogits, objective);
    if (is_learned) expect_gradient("dnoise_logits", in.noise_logits, dnoise_logits, objective);
  });
}

TEST(OracleGradient, DepthPredictor) {
  for_each_case(Op::depth_predictor_loss, [](const OpCase& c, Arrays& a) {
    Array& logits = a.at("logits");
    const double scale = static_cast<double>(c.scale) * c.scalars.loss_scale;
    Array factors({3});
    factors[0] = scale;
    Array unused;
    const Array dlogits = oracle::depth_predictor_loss(logits, a.at("places"), scale, false, unused);
    expect_gradient("dlogits", logits, dlogits, [&] {
      Array sums;
      oracle::depth_predictor_loss(logits, a.at("places"), scale, false, sums);
      return objective_of(sums, factors);
    });
  });
}

TEST(OracleGradient, GatherRows) {
  // Its gradient is CombineRows of the gradient, with gates of one.
  for_each_case(Op::gather_rows, [](const OpCase& c, Arrays& a) {
    Array &x = a.at("x"), &pairs = a.at("pairs"), &offsets = a.at("offsets");
    const Array drows = some_gradient(a.at("rows").shape);
    Array places({x.dim(0), x.dim(1), c.choices});
    std::ranges::fill(places.values, -1.0);
    for (std::int64_t row = 0; row < pairs.size(); ++row) {
      const auto part = static_cast<std::size_t>(row / pairs.dim(1));
      if (row % pairs.dim(1) < c.part_rows.at(part)) {
        places[static_cast<std::int64_t>(pairs[row])] = static_cast<double>(row);
      }
    }
    expect_gradient("dx", x, oracle::combine_rows(drows, places, {}, {}), [&] {
      Array rows(drows.shape);
      oracle::gather_rows(x, pairs, offsets, c.choices, rows);
      return objective_of(rows, drows);
    });
  });
}

TEST(OracleGradient, CombineRows) {
  for_each_case(Op::combine_rows_backward, [](const OpCase&, Arrays& a) {
    Array &rows = a.at("rows"), &gates = a.at("gates");
    const auto objective = [&] {
      return objective_of(oracle::combine_rows(rows, a.at("places"), gates, {}), a.at("dy"));
    };
    Array drows(rows.shape), dgates;
    oracle::combine_rows_backward(a.at("dy"), rows, a.at("places"), gates, drows, dgates);
    expect_gradient("drows", rows, drows, objective);
    expect_gradient("dgates", gates, dgates, objective);
  });
}

TEST(OracleGradient, GroupedLinear) {
  for_each_case(Op::grouped_linear_forward, [](const OpCase&, Arrays& a) {
    Array &x = a.at("x"), &w = a.at("w"), &offsets = a.at("offsets");
    const bool is_activated = a.contains("activated");
    Array bias = a.contains("bias") ? a.at("bias") : Array();
    const std::vector<std::int64_t> shape = a.at("y").shape;
    const Array gradient = some_gradient(shape);
    const auto objective = [&] {
      Array y(shape), activated(shape);
      oracle::grouped_linear_forward(x, w, bias, offsets, y, activated);
      return objective_of(is_activated ? activated : y, gradient);
    };
    Array dy = gradient;
    if (is_activated) {
      Array y(shape), unused;
      oracle::grouped_linear_forward(x, w, bias, offsets, y, unused);
      dy = oracle::gelu_backward(y, gradient);
    }
    Array dx(x.shape), dw(w.shape), dbias = bias ? Array(bias.shape) : Array();
    oracle::grouped_linear_backward_input(dy, w, offsets, {}, dx);
    oracle::grouped_linear_backward_weight(x, dy, offsets, false, dw, dbias);
    expect_gradient("dx", x, dx, objective);
    expect_gradient("dw", w, dw, objective);
    if (bias) expect_gradient("dbias", bias, dbias, objective);
  });
}

TEST(OracleGradient, GroupedLinearOfGelu) {
  for_each_case(Op::grouped_linear_backward_input, [](const OpCase&, Arrays& a) {
    if (!a.contains("pre")) return;
    Array &pre = a.at("pre"), &w = a.at("w"), &offsets = a.at("offsets");
    const Array dy = some_gradient(a.at("dy").shape);
    Array dpre(pre.shape);
    oracle::grouped_linear_backward_input(dy, w, offsets, pre, dpre);
    expect_gradient("dpre", pre, dpre, [&] {
      Array y(dy.shape), unused;
      oracle::grouped_linear_forward(oracle::gelu_forward(pre), w, {}, offsets, y, unused);
      return objective_of(y, dy);
    });
  });
}

}  // namespace

}  // namespace mylos
