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

void record_adamw(const OptimizerConfig& config, const OptimizerPart& part, UpdateRecorder& run) {
  const auto value = [&](const char* key) { return static_cast<float>(config.values.real(key)); };
  auto op = operation_on<AdamWStep>(part, config);
  op.first_moment = part.states[0];
  op.second_moment = part.states[1];
  op.beta1 = value("optim.beta1");
  op.beta2 = value("optim.beta2");
  op.epsilon = value("optim.epsilon");
  run(op);
}

}  // namespace

extern constinit const OptimizerKind adamw_optimizer{
    .name = "adamw",
    .doc = "Adam with decoupled weight decay (Loshchilov and Hutter, 2019)",
    .params = adamw_params,
    .states = adamw_states,
    .record = record_adamw,
};

}  // namespace mylos
