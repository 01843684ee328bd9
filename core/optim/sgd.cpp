// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/optimizer.hpp"

namespace mylos {

namespace {

constexpr ParamSpec sgd_params[] = {
    real_param("optim", "momentum", "0.9", 0.0, 0.999999, "",
               "Factor by which sgd multiplies its momentum in each step."),
};

constexpr const char* sgd_states[] = {"momentum"};

void record_sgd(const OptimizerConfig& config, const OptimizerPart& part, UpdateRecorder& run) {
  auto op = operation_on<SgdStep>(part, config);
  op.momentum = part.states[0];
  op.momentum_decay = static_cast<float>(config.values.real("optim.momentum"));
  run(op);
}

}  // namespace

extern constinit const OptimizerKind sgd_optimizer{
    .name = "sgd",
    .doc = "stochastic gradient descent with momentum (Sutskever et al., 2013)",
    .params = sgd_params,
    .states = sgd_states,
    .record = record_sgd,
};

}  // namespace mylos
