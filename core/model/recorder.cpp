// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/recorder.hpp"

namespace mylos {

Roots::Roots(const ParameterTable& table, const ProgramConfig& config) : table_(table), config_(config) {
  roots_.push_back({.name = "sum of losses", .kind = RootKind::loss_sum, .bytes = sizeof(float)});
  for (int unit = 0; unit < table.num_units(); ++unit) {
    const auto bytes = [&](DType dtype) {
      return static_cast<std::size_t>(table.unit(unit).size) * size_of(dtype);
    };
    const std::string& name = table.unit(unit).name;
    roots_.push_back({"weights of " + name, RootKind::weights, bytes(config.shape.dtype), unit});
    roots_.push_back({"gradients of " + name, RootKind::gradients, bytes(config.grad_dtype), unit});
  }
}

TensorRef Roots::at(int root, DType dtype, std::initializer_list<std::int64_t> shape) const {
  return {address_of(root), dtype, shape};
}

TensorRef Roots::tensor(const std::string& name, const TensorRef& like, Cost cost) {
  const auto [found, is_new] = names_.try_emplace(name, static_cast<int>(roots_.size()));
  if (is_new) {
    roots_.push_back({.name = name, .bytes = like.bytes(), .cheap = cost == Cost::cheap});
  } else {
    require(roots_[static_cast<std::size_t>(found->second)].bytes == like.bytes(),
            "tensors with the same name have the same size");
  }
  TensorRef tensor = like;
  tensor.data = address_of(found->second);
  return tensor;
}

TensorRef Roots::weights(int unit) const {
  return at(weights_root(unit), config_.shape.dtype, {table_.unit(unit).size});
}

TensorRef Roots::gradients(int unit) const {
  return at(gradients_root(unit), config_.grad_dtype, {table_.unit(unit).size});
}

TensorRef Roots::loss_sum() const {
  return at(loss_sum_root, DType::fp32, {1});
}

int Roots::find(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? -1 : found->second;
}

const StepScalars* Recorder::scalars() const {
  static const StepScalars stand_in{};
  return &stand_in;
}

namespace {

TensorRef view_of(const TensorRef& flat, const Parameter& parameter) {
  const TensorRef range = flat.flat(parameter.offset, parameter.padded_size());
  if (parameter.shape.size() < 2) return range;
  return range.reshaped({parameter.padded_rows, parameter.local_shape()[1]});
}

}  // namespace

TensorRef Recorder::weight(const Parameter& parameter) const {
  return view_of(roots_.weights(parameter.unit), parameter);
}

TensorRef Recorder::gradient(const Parameter& parameter) const {
  return view_of(roots_.gradients(parameter.unit), parameter);
}

Dropout Recorder::dropout(float probability, std::string_view site) const {
  if (!training_ || probability == 0.0F) return {};
  return {.probability = probability, .key = stream_key(config_.seed, site), .scalars = scalars()};
}

}  // namespace mylos
