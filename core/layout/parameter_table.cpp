// SPDX-License-Identifier: BSD-3-Clause
#include "core/layout/parameter_table.hpp"

#include <cmath>

namespace mylos {

ParameterTable::ParameterTable(const ModelConfig& model) {
  const std::int64_t c = model.width;
  const float stddev = 0.02F;
  // Radford et al., 2019, section 2.3: residual projections are scaled by 1/sqrt of the number of residual
  // layers.
  const float residual = stddev / std::sqrt(2.0F * static_cast<float>(model.layers));
  const auto normal = Initialisation::normal;
  const auto zeros = Initialisation::zeros;
  const auto ones = Initialisation::ones;

  begin_unit("embedding");
  add("wte.weight", {model.vocab, c}, normal, stddev, model.padded_vocab());
  add("wpe.weight", {model.context, c}, normal, stddev);
  end_unit();

  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string h = fmt::format("h.{}.", layer);
    begin_unit(fmt::format("block {}", layer));
    add(h + "mlp.c_proj.weight", {4 * c, c}, normal, residual);
    add(h + "mlp.c_proj.bias", {c}, zeros, 0);
    add(h + "mlp.c_fc.weight", {c, 4 * c}, normal, stddev);
    add(h + "mlp.c_fc.bias", {4 * c}, zeros, 0);
    add(h + "ln_2.weight", {c}, ones, 0);
    add(h + "ln_2.bias", {c}, zeros, 0);
    add(h + "attn.c_proj.weight", {c, c}, normal, residual);
    add(h + "attn.c_proj.bias", {c}, zeros, 0);
    add(h + "attn.c_attn.weight", {c, 3 * c}, normal, stddev);
    add(h + "attn.c_attn.bias", {3 * c}, zeros, 0);
    add(h + "ln_1.weight", {c}, ones, 0);
    add(h + "ln_1.bias", {c}, zeros, 0);
    end_unit();
  }

  begin_unit("head");
  if (!model.tied) add("lm_head.weight", {model.vocab, c}, normal, stddev, model.padded_vocab());
  add("ln_f.weight", {c}, ones, 0);
  add("ln_f.bias", {c}, zeros, 0);
  end_unit();
}

int ParameterTable::begin_unit(const std::string& name) {
  units_.push_back({.name = name, .parameters = {}, .size = 0, .segments = {}});
  return num_units() - 1;
}

void ParameterTable::add(const std::string& name, std::vector<std::int64_t> shape,
                         Initialisation initialisation, float stddev, std::int64_t padded_rows) {
  Unit& unit = units_.back();
  Parameter parameter;
  parameter.name = name;
  parameter.padded_rows = padded_rows > 0 ? padded_rows : shape[0];
  parameter.decay = shape.size() >= 2;
  parameter.shape = std::move(shape);
  parameter.initialisation = initialisation;
  parameter.stddev = stddev;
  parameter.unit = num_units() - 1;
  parameter.offset = unit.size;
  unit.size += (parameter.padded_size() + alignment - 1) / alignment * alignment;
  unit.parameters.push_back(static_cast<int>(parameters_.size()));
  parameters_.push_back(std::move(parameter));
}

void ParameterTable::end_unit() {
  Unit& unit = units_.back();
  for (const int index : unit.parameters) {
    const Parameter& parameter = parameters_[static_cast<std::size_t>(index)];
    const float decay = parameter.decay ? 1.0F : 0.0F;
    if (!unit.segments.empty()) unit.segments.back().end = parameter.offset;
    if (unit.segments.empty() || unit.segments.back().decay != decay) {
      unit.segments.push_back({.begin = parameter.offset, .end = unit.size, .decay = decay});
    }
    unit.segments.back().end = unit.size;
  }
}

const Parameter& ParameterTable::find(std::string_view name) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.name == name) return parameter;
  }
  fail(ExitCode::internal, "the model has no parameter {}", name);
}

std::int64_t ParameterTable::num_parameters() const {
  std::int64_t n = 0;
  for (const Parameter& parameter : parameters_) n += parameter.size();
  return n;
}

std::int64_t ParameterTable::padded_size() const {
  std::int64_t n = 0;
  for (const Unit& unit : units_) n += unit.size;
  return n;
}

}  // namespace mylos
