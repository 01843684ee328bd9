// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/optimizer.hpp"

namespace mylos {

namespace {

constexpr ParamSpec adamw_params[] = {
    real_param("optim", "beta1", "0.9", 0.0, 0.999999, "", "Decay of the first moment of adamw."),
    real_param("optim", "beta2", "0.95", 0.0, 0.999999, "", "Decay of the second moment of adamw."),
    real_param("optim", "epsilon", "1e-8", 1e-30, 1.0, "",
               "Added by adamw to the square root of the second moment."),
};

constexpr const char* adamw_states[] = {"first_moment", "second_moment"};

class AdamW final : public Optimizer {
 public:
  using Optimizer::Optimizer;

  void step(std::size_t index, TensorRef weights, TensorRef gradient, const StepScalars* scalars) override {
    auto op = operation<AdamWStep>(index, weights, gradient, scalars);
    op.first_moment = state(0, index);
    op.second_moment = state(1, index);
    op.beta1 = value("optim.beta1");
    op.beta2 = value("optim.beta2");
    op.epsilon = value("optim.epsilon");
    backend().run(op);
  }

 private:
  float value(const char* key) const { return static_cast<float>(config().values.real(key)); }
};

}  // namespace

extern constinit const OptimizerKind adamw_optimizer{
    .name = "adamw",
    .doc = "Adam with decoupled weight decay (Loshchilov and Hutter, 2019)",
    .params = adamw_params,
    .states = adamw_states,
    .make = make_optimizer<AdamW>,
};

}  // namespace mylos
