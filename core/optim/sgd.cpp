// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/optimizer.hpp"

namespace mylos {

namespace {

constexpr ParamSpec sgd_params[] = {
    real_param("optim", "momentum", "0.9", 0.0, 0.999999, "",
               "Factor by which sgd multiplies its momentum in each step."),
};

constexpr const char* sgd_states[] = {"momentum"};

class Sgd final : public Optimizer {
 public:
  using Optimizer::Optimizer;

  void step(std::size_t index, TensorRef weights, TensorRef gradient, const StepScalars* scalars) override {
    auto op = operation<SgdStep>(index, weights, gradient, scalars);
    op.momentum = state(0, index);
    op.momentum_decay = static_cast<float>(config().values.real("optim.momentum"));
    backend().run(op);
  }
};

}  // namespace

extern constinit const OptimizerKind sgd_optimizer{
    .name = "sgd",
    .doc = "stochastic gradient descent with momentum (Sutskever et al., 2013)",
    .params = sgd_params,
    .states = sgd_states,
    .make = make_optimizer<Sgd>,
};

}  // namespace mylos
