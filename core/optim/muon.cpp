// SPDX-License-Identifier: BSD-3-Clause
// Muon (Jordan, 2024, "Muon: an optimizer for hidden layers in neural networks"): the momentum of each matrix
// is made nearly orthogonal by five iterations of Newton and Schulz. Everything else is stepped by AdamW.
#include <algorithm>
#include <cmath>

#include "core/optim/optimizer.hpp"

namespace mylos {

extern const OptimizerKind adamw_optimizer;

namespace {

constexpr ParamSpec muon_params[] = {
    real_param("optim", "muon_momentum", "0.95", 0.0, 0.999999, "",
               "Factor by which muon multiplies the momentum of matrices in each step."),
    choice_param(
        "optim", "muon_scale", "adamw", "adamw|original",
        "Length of muon's steps. adamw: 0.2 sqrt(max(I, O)) times that of an orthogonal matrix (I, O), so "
        "that AdamW's learning rate and decay serve (Liu et al., 2025); original: sqrt(max(1, O / I)) "
        "times (Jordan, 2024)."),
    real_param("optim", "muon_lr", "0", 0.0, 1e3, "",
               "Peak of the learning rate of muon's matrices, whose schedule is that of lr; 0 takes lr."),
};

constexpr const char* muon_states[] = {"momentum", "first_moment", "second_moment"};

void record_others(const OptimizerConfig& config, const OptimizerPart& part, UpdateRecorder& run) {
  adamw_optimizer.record(config, part, run);
}

void direct(const OptimizerConfig& config, const OptimizerPart& part, TensorRef direction,
            UpdateRecorder& run) {
  run(NesterovMomentum{.gradient = part.gradient,
                       .momentum = part.states[0],
                       .direction = direction,
                       .decay = static_cast<float>(config.values.real("optim.muon_momentum")),
                       .scalars = part.scalars});
}

/// Five steps of X <- a X + (b A + c A²) X with A = X Xᵀ, which bring the singular values of X / |X| near 1;
/// of tall matrices X <- a X + X (b A + c A²) with A = Xᵀ X.
void orthogonalise(TensorRef x, MatrixScratch& scratch, UpdateRecorder& run) {
  constexpr int iterations = 5;
  constexpr float a = 3.4445F;
  constexpr float b = -4.7750F;
  constexpr float c = 2.0315F;
  const std::int64_t count = x.shape[0];
  const std::int64_t small = std::min(x.shape[1], x.shape[2]);
  const bool is_tall = x.shape[1] > x.shape[2];
  const TensorRef gram = scratch.tensor("gram", DType::fp32, {count, small, small});
  const TensorRef square = scratch.tensor("square", DType::fp32, {count, small, small});
  const TensorRef product = scratch.tensor("product", DType::fp32, {count, x.shape[1], x.shape[2]});
  // The factor of a product: the tensor itself, or rounded.
  const auto factor = [&](const char* name, const TensorRef& tensor) {
    if (scratch.product_type() == tensor.dtype) return tensor;
    const TensorRef rounded =
        scratch.tensor(name, scratch.product_type(), {tensor.shape[0], tensor.shape[1], tensor.shape[2]});
    run(Cast{.x = tensor, .y = rounded});
    return rounded;
  };
  run(NormaliseMatrices{.x = x.reshaped({count, x.shape[1] * x.shape[2]})});
  for (int i = 0; i < iterations; ++i) {
    const TensorRef left = factor("factor", x);
    run(MatrixProduct{.x = left, .y = left, .z = gram, .x_transposed = is_tall, .y_transposed = !is_tall});
    const TensorRef of_gram = factor("gram factor", gram);
    run(MatrixProduct{.x = of_gram, .y = of_gram, .z = square});
    run(ScaledSum{.x = square, .y = gram, .z = square, .a = c, .b = b});
    const TensorRef polynomial = factor("square factor", square);
    run(is_tall ? MatrixProduct{.x = left, .y = polynomial, .z = product}
                : MatrixProduct{.x = polynomial, .y = left, .z = product});
    run(ScaledSum{.x = x, .y = product, .z = x, .a = a, .b = 1.0F});
  }
}

void step(const OptimizerConfig& config, const OptimizerPart& part, std::int64_t rows, std::int64_t columns,
          UpdateRecorder& run) {
  auto op = operation_on<MuonStep>(part, config);
  const double in = static_cast<double>(rows);
  const double out = static_cast<double>(columns);
  const bool is_original = config.values.text("optim.muon_scale") == "original";
  op.scale = static_cast<float>(is_original ? std::sqrt(std::max(1.0, out / in))
                                            : 0.2 * std::sqrt(std::max(in, out)));
  const double own_peak = config.values.real("optim.muon_lr");
  const double peak = config.values.real("optim.lr");
  if (own_peak > 0.0) op.rate_factor = static_cast<float>(own_peak / peak);
  run(op);
}

constexpr MatrixRule muon_rule{.direct = direct, .transform = orthogonalise, .step = step};

}  // namespace

extern constinit const OptimizerKind muon_optimizer{
    .name = "muon",
    .doc = "orthogonalised momentum of whole matrices, AdamW for the rest (Jordan, 2024; Liu et al., 2025)",
    .params = muon_params,
    .states = muon_states,
    .record = record_others,
    .matrices = &muon_rule,
};

}  // namespace mylos
