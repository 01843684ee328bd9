// SPDX-License-Identifier: BSD-3-Clause
// Checks the oracle: compares its backward operations with central differences of its forward operations, in
// fp64.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include <gtest/gtest.h>

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

}  // namespace

}  // namespace mylos
