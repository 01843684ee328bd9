// SPDX-License-Identifier: BSD-3-Clause
// Every small case of the table on every backend, against the fp64 oracle.
#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/ops/expert_oracle.hpp"
#include "tests/ops/op_run.hpp"
#include "tests/support/backend_fixture.hpp"

namespace mylos {

namespace {

std::vector<const OpCase*> small_cases() {
  std::vector<const OpCase*> cases;
  for (const OpCase& c : op_cases()) {
    if (!c.full_size) cases.push_back(&c);
  }
  return cases;
}

using CaseParam = std::tuple<std::string, const OpCase*>;

class OpsTest : public testing::TestWithParam<CaseParam> {};

std::string test_name(const testing::TestParamInfo<CaseParam>& info) {
  std::string name = fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param)->name());
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

TEST_P(OpsTest, AgreesWithOracle) {
  const auto& [backend, case_pointer] = GetParam();
  const OpCase& c = *case_pointer;
  const Contents initial = initial_contents(c);
  Arrays expected = read_all(c, initial);
  run_oracle(c, expected);

  OpRun run(c, test_backends().at(backend), initial);
  run.run();
  const Contents contents = run.contents();
  for (const Operand& operand : c.operands) {
    if (!operand.is_result()) continue;
    const double error =
        oracle::relative_error(read(operand, contents), expected.at(operand.name), operand.floor);
    EXPECT_LE(error, operand.tolerance) << operand.name;
  }
  EXPECT_EQ(stray_write(c, initial, contents), "");

  run.reset();
  run.run();
  EXPECT_TRUE(run.contents() == contents) << "two runs differ";
}

INSTANTIATE_TEST_SUITE_P(Cases, OpsTest,
                         testing::Combine(testing::ValuesIn(compute_backend_names()),
                                          testing::ValuesIn(small_cases())),
                         test_name);

TEST(OpCases, EmbeddingBackwardMovesTheRowsOfItsTokens) {
  for (const OpCase* c : small_cases()) {
    if (c->op != Op::embedding_backward) continue;
    const TensorRef& dwte = c->find("dwte")->view;
    std::set<double> tokens;
    for (const double token : read(*c->find("tokens"), initial_contents(*c)).values) {
      const double row = token - static_cast<double>(c->first_token);
      if (row >= 0.0 && row < static_cast<double>(dwte.shape[0])) tokens.insert(token);
    }
    const auto distinct = static_cast<double>(tokens.size());
    const TensorRef& dwpe = c->find("dwpe")->view;
    const double row = static_cast<double>(dwte.bytes()) / static_cast<double>(dwte.shape[0]);
    const double length = static_cast<double>(c->find("tokens")->view.shape[1]);
    const double rows_of_dwte = c->accumulate ? 2.0 * distinct : static_cast<double>(dwte.shape[0]);
    const double rows_of_dwpe = c->accumulate_second ? 2.0 * length : static_cast<double>(dwpe.shape[0]);
    const double moved =
        static_cast<double>(c->find("tokens")->view.bytes() + c->find("dout")->view.bytes()) +
        row * (rows_of_dwte + rows_of_dwpe);
    // Cases count the expected number of distinct tokens.
    EXPECT_NEAR(c->bytes, moved, 0.05 * moved) << c->name();
  }
}

TEST(OpCases, OptimizersMoveEachElementOnce) {
  for (const OpCase* c : small_cases()) {
    if (!is_step(c->op)) continue;
    const double states = c->op == Op::adamw ? 2.0 : c->op == Op::sgd ? 1.0 : 0.0;
    const Operand& weights = *c->find("weights");
    const double gradient = static_cast<double>(size_of(c->find("gradient")->view.dtype));
    const double copy = weights.view.dtype == DType::fp32 ? 0.0 : 2.0;  // fp32 weights are the master
    const double truth = c->find("master") != nullptr ? copy + 8.0 : 2.0 * copy;
    EXPECT_EQ(c->bytes, static_cast<double>(weights.view.size()) * (gradient + truth + states * 8.0))
        << c->name();
  }
}

// Kernels compute scores in fp32, so the chosen experts' scores must differ by more than rounding, or not at
// all.
TEST(OpCases, ChoicesOfExpertsAreClear) {
  for (const OpCase* c : small_cases()) {
    if (c->op != Op::router_choice || c->detail.ends_with("_ties")) continue;
    const Arrays arrays = read_all(*c, initial_contents(*c));
    const oracle::Array none;
    const bool is_learned = c->noise == RouterNoise::Kind::learned;
    const oracle::Array scores =
        oracle::router_scores(arrays.at("logits"), is_learned ? arrays.at("noise_logits") : none,
                              noise_of(*c, nullptr), c->scalars.step);
    const std::int64_t experts = scores.dim(2);
    const oracle::Array order = oracle::largest_scores(scores, experts);
    const std::int64_t chosen = arrays.at("choices").dim(2);
    for (std::int64_t i = 0; i < order.size(); ++i) {
      if (i % experts >= std::min(chosen, experts - 1)) continue;
      const std::int64_t row = i / experts * experts;
      const auto score = [&](std::int64_t place) {
        return scores[row + static_cast<std::int64_t>(order[place])];
      };
      EXPECT_GT(score(i) - score(i + 1), 1e-4) << c->name() << " row " << i / experts;
    }
  }
}

TEST(Backends, KokkosIsFound) {
  const std::vector<std::string> names = compute_backend_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "kokkos");
}

}  // namespace

}  // namespace mylos
