// SPDX-License-Identifier: BSD-3-Clause
// Data and tensor parallelism over the mpi and shm backends, with every algorithm, compared with one rank
// that computes the batch alone.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/parameters.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"
#include "parallel/collectives/hierarchical.hpp"
#include "parallel/collectives/progress_thread.hpp"
#include "parallel/collectives/simulated_link.hpp"
#include "tests/parallel/equivalence.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/relative_error.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// How the ranks communicate.
struct Carrier {
  const char* backend;
  const char* algorithm;
  bool simulated = false;
  bool two_levels = false;
};

std::string name(const Carrier& carrier) {
  return fmt::format("{}_{}{}{}", carrier.backend, carrier.algorithm, carrier.simulated ? "_simulated" : "",
                     carrier.two_levels ? "_two_levels" : "");
}

constexpr Carrier carriers[] = {{"mpi", "native"},
                                {"mpi", "naive"},
                                {"mpi", "tree"},
                                {"mpi", "ring"},
                                {"mpi", "halving_doubling"},
                                {"shm", "native"},
                                {"shm", "naive"},
                                {"shm", "tree"},
                                {"shm", "ring"},
                                {"shm", "halving_doubling"},
                                {"mpi", "ring", true},
                                {"shm", "native", false, true},
                                {"shm", "halving_doubling", false, true}};

ModelConfig model() {
  ModelConfig config;
  config.layers = 2;
  config.heads = 6;
  config.width = 48;
  config.context = 24;
  config.vocab = 211;
  return config;
}

class DdpBackends : public testing::TestWithParam<Carrier> {
 protected:
  struct Outcome {
    std::vector<StepScalars> steps;
    std::vector<float> gradient;
    std::vector<std::vector<float>> weights;
  };

  static constexpr std::int64_t global_batch = 24;
  static constexpr std::int64_t steps = 3;

  Outcome run(Communicator& communicator, const RunConfig& config) {
    MiniTrainer trainer(backend_, ledger_, communicator, without_amplified_noise(config));
    Outcome outcome;
    for (std::int64_t step = 1; step <= steps; ++step)
      outcome.steps.push_back(trainer.step(walk_tokens(config, step)));
    outcome.gradient = trainer.whole_gradient();
    for (const Parameter& parameter : trainer.table().parameters())
      outcome.weights.push_back(trainer.weight(parameter.name));
    return outcome;
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::unique_ptr<Communicator> flat_ = open_communicator("mpi");
  MemoryLedger ledger_;
};

TEST_P(DdpBackends, ComputeWhatOneRankDoes) {
  const Carrier& carrier = GetParam();
  const int ranks = flat_->size();
  const std::unique_ptr<Communicator> base = open_communicator(carrier.backend);
  TrafficCounter counter;
  std::unique_ptr<Communicator> world = base->split(0, base->rank());
  if (carrier.two_levels) {
    constexpr int ranks_per_node = 2;  // three ranks form nodes of two and one
    world = std::make_unique<HierarchicalCommunicator>(
        base->split(base->rank() / ranks_per_node, base->rank()), flat_->split(0, flat_->rank()), &backend_);
  }
  if (carrier.simulated) {
    constexpr LinkModel link{.latency = 20e-6, .gigabits_per_second = 20.0};
    world = std::make_unique<SimulatedLink>(std::move(world), link);
  }
  AlgorithmCommunicator communicator(std::move(world), AlgorithmChoice::parse(carrier.algorithm), "wire",
                                     counter, &backend_);
  std::optional<ProgressThread> progress;  // without it, operations advance only in calls
  if (std::string_view(carrier.algorithm) != "tree") progress.emplace(communicator);

  const Outcome oracle = run(*self_, mini_config(model(), global_batch, 23));
  for (const std::string strategy :
       {"flat", "overlapped", "bucketed", "zero1", "zero2", "zero3", "hybrid", "tensor"}) {
    SCOPED_TRACE(strategy);
    const bool accumulates = strategy == "zero2" || strategy == "zero3" || strategy == "hybrid";
    const bool can_accumulate = global_batch % (2 * ranks) == 0;
    RunConfig config = mini_config(model(), global_batch, 23, ranks, accumulates && can_accumulate ? 2 : 1);
    if (strategy == "tensor") {
      const int tensor = ranks % 2 == 0 ? 2 : 3;
      if (ranks % tensor != 0) continue;
      config = mini_config(model(), global_batch, 23, ranks / tensor);
      config.parallel.tensor = tensor;
      const std::int64_t rows = config.train.micro_batch * config.train.seq_len;
      config.parallel.splits = {.vocab = true, .sequence = rows % tensor == 0};
      set_exchange(config, "zero3", ranks / tensor);
    } else if (strategy == "hybrid") {
      if (ranks < 4) continue;
      set_exchange(config, "zero3", ranks / 2);
    } else if (strategy.starts_with("zero")) {
      set_exchange(config, strategy, ranks);
    } else {
      set_ddp(config, strategy, 0.02);
    }
    const Outcome outcome = run(communicator, config);
    for (std::size_t i = 0; i < oracle.steps.size(); ++i) {
      EXPECT_NEAR(outcome.steps[i].loss / oracle.steps[i].loss, 1.0, 1e-5) << "step " << i + 1;
      EXPECT_NEAR(outcome.steps[i].gradient_norm / oracle.steps[i].gradient_norm, 1.0, 1e-5)
          << "step " << i + 1;
    }
    EXPECT_LE(relative_error(outcome.gradient, oracle.gradient), 1e-5);
    const ParameterTable table = parameters_of(config.model);
    for (std::size_t i = 0; i < oracle.weights.size(); ++i) {
      // The gradient of the key bias is zero in exact arithmetic, so Adam updates the bias by rounding noise.
      if (table.parameters()[i].name.ends_with("c_attn.bias")) continue;
      EXPECT_LE(relative_error(outcome.weights[i], oracle.weights[i]), 2e-5) << table.parameters()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Carriers, DdpBackends, testing::ValuesIn(carriers),
                         [](const auto& carrier) { return name(carrier.param); });

}  // namespace
}  // namespace mylos
