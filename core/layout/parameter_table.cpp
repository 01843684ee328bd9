// SPDX-License-Identifier: BSD-3-Clause
#include "core/layout/parameter_table.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "core/base/error.hpp"

namespace mylos {

namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::vector<std::int64_t> Parameter::view_shape() const {
  std::vector<std::int64_t> extents;
  for (const Dimension& dimension : view) extents.push_back(dimension.extent);
  return extents;
}

std::int64_t Parameter::padded_size() const {
  const std::vector<std::int64_t> local = local_shape();
  return product(std::span(local).subspan(1)) * padded_rows;
}

std::vector<std::int64_t> Parameter::local_shape() const {
  std::vector<std::int64_t> local;
  std::size_t d = 0;
  for (const std::int64_t extent : shape) {
    std::int64_t whole = 1;
    std::int64_t part = 1;
    while (whole < extent) {
      whole *= view[d].extent;
      part *= box.count[d++];
    }
    local.push_back(part);
  }
  return local;
}

GlobalIndex Parameter::global_index() const {
  GlobalIndex index;
  std::int64_t inner = 1;  // stride of dimension d in the whole weight
  bool is_cut = false;
  for (std::size_t d = view.size(); d-- > 0;) {
    index.first += box.start[d] * inner;
    const bool has_outer =
        std::ranges::any_of(std::span(box.count).first(d), [](std::int64_t count) { return count > 1; });
    if (box.count[d] != view[d].extent && has_outer) {
      require(!is_cut, "the rows of a part are evenly spaced in the whole weight");
      is_cut = true;
      index.width = box.count[d] * inner;
      index.pitch = view[d].extent * inner;
    }
    inner *= view[d].extent;
  }
  return index;
}

void ParameterTable::begin_unit(const std::string& name) {
  units_.push_back({.name = name, .parameters = {}, .size = 0});
}

Parameter& ParameterTable::add(const std::string& name, std::vector<std::int64_t> shape,
                               std::vector<Dimension> view, Initialisation initialisation, float stddev) {
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = name;
  parameter.decay = shape.size() >= 2;
  parameter.padded_rows = shape.front();
  parameter.shape = std::move(shape);
  parameter.view = std::move(view);
  parameter.box = Box::whole(parameter.view_shape());
  parameter.initialisation = initialisation;
  parameter.stddev = stddev;
  parameter.unit = num_units() - 1;
  for (int i = 0; i < num_axes; ++i) {
    if (loss_axes.contains(static_cast<Axis>(i)))
      parameter.placement[static_cast<std::size_t>(i)].kind = Placement::Kind::partial;
  }
  units_.back().parameters.push_back(static_cast<int>(parameters_.size()) - 1);
  return parameter;
}

void ParameterTable::split(Parameter& parameter, Axis axis, std::string_view dimension) {
  const auto found = std::ranges::find(parameter.view, dimension, &Dimension::name);
  require(found != parameter.view.end(), "a dimension of the view");
  parameter.placement[static_cast<std::size_t>(axis)] = {
      .kind = Placement::Kind::split, .dimension = static_cast<int>(found - parameter.view.begin())};
}

void ParameterTable::split_rows(Parameter& parameter, const Coordinates& coordinates) {
  const std::int64_t rows = parameter.shape[0];
  const std::int64_t parts = coordinates.extent(Axis::tensor);
  parameter.row_multiple = std::lcm(parameter.row_multiple, parts);
  parameter.padded_rows = round_up(rows, parameter.row_multiple) / parts;
  const std::int64_t begin = std::min(rows, coordinates.index(Axis::tensor) * parameter.padded_rows);
  parameter.box.start[0] = begin;
  parameter.box.count[0] = std::min(rows - begin, parameter.padded_rows);
}

ParameterTable ParameterTable::local(const Coordinates& coordinates, const TensorSplits& splits) const {
  constexpr auto tensor = static_cast<std::size_t>(Axis::tensor);
  const bool divides = coordinates.extent(Axis::tensor) > 1;
  ParameterTable table = *this;
  for (Parameter& parameter : table.parameters_) {
    if (divides && splits.sequence && parameter.is_norm)
      parameter.placement[tensor].kind = Placement::Kind::summed;
    const bool has_split_rows = divides && splits.vocab && parameter.view[0].name == vocab_dimension;
    if (has_split_rows) {
      parameter.placement[tensor] = {.kind = Placement::Kind::split, .dimension = 0};
      split_rows(parameter, coordinates);
    }
    parameter.parts = parameter.copies = parameter.twins = 1;
    parameter.twin = 0;
    for (int i = 0; i < num_axes; ++i) {
      auto axis = static_cast<Axis>(i);
      const Placement placement = parameter.along(axis);
      if (axis == Axis::pipeline) {
        if (!parameter.is_on_both_ends()) continue;  // other stages hold other units
        axis = Axis::embedding;
      }
      const int parts = coordinates.extent(axis);
      if (placement.kind != Placement::Kind::split) {
        parameter.copies *= parts;
        if (placement.kind == Placement::Kind::partial) continue;
        parameter.twin += parameter.twins * coordinates.index(axis);
        parameter.twins *= parts;
        continue;
      }
      parameter.parts *= parts;
      if (has_split_rows && axis == Axis::tensor) continue;
      const auto d = static_cast<std::size_t>(placement.dimension);
      std::int64_t& count = parameter.box.count[d];
      if (count % parts != 0) {
        fail(ExitCode::usage,
             "{}: extent {} of dimension {} cannot be divided among {} ranks along the {} axis",
             parameter.name, count, parameter.view[d].name, parts, name_of(axis));
      }
      count /= parts;
      parameter.box.start[d] += coordinates.index(axis) * count;
    }
    if (!has_split_rows) parameter.padded_rows = round_up(parameter.local_shape()[0], parameter.row_multiple);
  }
  table.lay_out();
  return table;
}

void ParameterTable::lay_out() {
  for (Unit& unit : units_) {
    unit.size = 0;
    for (const int index : unit.parameters) {
      Parameter& parameter = parameters_[static_cast<std::size_t>(index)];
      parameter.offset = unit.size;
      unit.size += (parameter.padded_size() + alignment - 1) / alignment * alignment;
    }
  }
}

const Parameter& ParameterTable::find(std::string_view name) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.name == name) return parameter;
  }
  fail(ExitCode::internal, "the model has no parameter {}", name);
}

AxisSet ParameterTable::term_axes(int unit) const {
  const auto axes_of = [&](int index) {
    AxisSet axes;
    for (int i = 0; i < num_axes; ++i) {
      const auto axis = static_cast<Axis>(i);
      if (!parameters_[static_cast<std::size_t>(index)].is_split(axis)) axes = axes.with({axis});
    }
    return axes.common(loss_axes);
  };
  const std::vector<int>& parameters = units_[static_cast<std::size_t>(unit)].parameters;
  const AxisSet axes = axes_of(parameters.front());
  for (const int index : parameters)
    require(axes_of(index) == axes, "the parameters of a unit are split along the same data axes");
  return axes;
}

std::int64_t ParameterTable::num_parameters() const {
  std::int64_t n = elsewhere_;
  for (const Parameter& parameter : parameters_) n += product(parameter.shape);
  return n;
}

ParameterTable ParameterTable::only(const std::set<int>& units) const {
  ParameterTable table;
  table.elsewhere_ = num_parameters();
  for (const int index : units) {
    Unit& own = table.units_.emplace_back(unit(index));
    for (int& parameter : own.parameters) {
      table.parameters_.push_back(parameters_[static_cast<std::size_t>(parameter)]);
      table.parameters_.back().unit = table.num_units() - 1;
      table.elsewhere_ -= product(table.parameters_.back().shape);
      parameter = static_cast<int>(table.parameters_.size()) - 1;
    }
  }
  return table;
}

Piece Piece::share() const {
  constexpr std::int64_t grain = std::int64_t{1} << 16U;
  const std::int64_t grains = (count + grain - 1) / grain;
  // A piece of at most one grain goes to a single twin. `turn`, which all twins agree on, spreads such pieces
  // over them.
  const std::string& name = parameter.name;
  const std::int64_t turn = std::accumulate(name.begin(), name.end(), std::int64_t{0});
  const std::int64_t place = (parameter.twin + turn) % parameter.twins;
  const std::int64_t first = std::min(count, grains * place / parameter.twins * grain);
  const std::int64_t end = std::min(count, grains * (place + 1) / parameter.twins * grain);
  return {.parameter = parameter, .begin = begin + first, .count = end - first, .offset = offset + first};
}

GlobalIndex Piece::global_index() const {
  GlobalIndex index = parameter.global_index();
  index.begin = begin;
  return index;
}

std::vector<PlacedBox> Piece::boxes() const {
  const std::vector<std::int64_t> view = parameter.view_shape();
  std::vector<PlacedBox> boxes;
  for (PlacedBox& part : boxes_of_range(parameter.box.count, begin, begin + count)) {
    for (std::size_t d = 0; d < view.size(); ++d) part.box.start[d] += parameter.box.start[d];
    part.offset += offset;
    for (PlacedBox& box : joined_boxes(part, view, parameter.shape)) boxes.push_back(std::move(box));
  }
  return boxes;
}

std::vector<Box> matrices_of(const Parameter& parameter) {
  require(parameter.is_matrix, "a weight of a product");
  const Box whole = Box::whole(parameter.shape);
  std::int64_t count = 1;
  std::size_t divided = 0;  // dimension of the shape
  std::int64_t covered = 1;
  for (const Dimension& dimension : parameter.view) {
    if (dimension.name == parameter.stack) {
      require(covered == 1, "a stack is the outermost of the dimensions that are joined");
      count = dimension.extent;
      break;
    }
    covered *= dimension.extent;
    if (covered < parameter.shape[divided]) continue;
    ++divided;
    covered = 1;
  }
  std::vector<Box> matrices;
  for (std::int64_t i = 0; i < count; ++i) {
    Box& matrix = matrices.emplace_back(whole);
    if (count == 1) continue;
    matrix.count[divided] /= count;
    matrix.start[divided] = i * matrix.count[divided];
  }
  return matrices;
}

std::vector<Piece> pieces_of(const ParameterTable& table, const UnitPart& part) {
  std::vector<Piece> pieces;
  for (const int index : table.unit(part.unit).parameters) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
    const std::int64_t begin = std::max(parameter.offset, part.begin);
    const std::int64_t end = std::min(parameter.offset + parameter.size(), part.begin + part.count);
    if (begin < end) {
      pieces.push_back({.parameter = parameter,
                        .begin = begin - parameter.offset,
                        .count = end - begin,
                        .offset = begin - part.begin});
    }
  }
  return pieces;
}

}  // namespace mylos
