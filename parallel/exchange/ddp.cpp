// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/ddp.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/base/weight_version.hpp"

namespace mylos {

namespace {

constexpr ParamSpec params[] = {
    choice_param("parallel", "ddp_mode", "bucketed", "per_parameter|flat|overlapped|bucketed",
                 "How ddp reduces gradients. per_parameter: one all-reduce per parameter after the backward "
                 "pass; flat: a single one after it; overlapped: one per parameter during it; bucketed: one "
                 "per bucket during it."),
    real_param("parallel", "bucket_mb", "25", 0.001, 1e6, "MiB", "Size of a bucket if ddp_mode = bucketed."),
};

DdpConfig config_of(const ParamValues& values) {
  constexpr std::string_view names[] = {"per_parameter", "flat", "overlapped", "bucketed"};
  const auto mode = std::ranges::find(names, values.text("parallel.ddp_mode")) - std::begin(names);
  return {.mode = static_cast<DdpMode>(mode),
          .bucket_bytes = static_cast<std::int64_t>(values.real("parallel.bucket_mb") * 1024.0 * 1024.0)};
}

ExchangePlan plan(const ParamValues& values, const ExchangeScope& scope) {
  const DdpLayout layout(config_of(values), scope);
  const auto bytes = [&](DType type) { return layout.size * static_cast<std::int64_t>(size_of(type)); };
  ExchangePlan plan{.weight_bytes = bytes(scope.compute_type),
                    .gradient_bytes = layout.has_gradients ? bytes(scope.gradient_type) : 0,
                    .owned = whole_units(scope.table),
                    .stored = share_of(whole_units(scope.table), scope.coordinates.extent(loss_axes),
                                       scope.coordinates.index(loss_axes))};
  if (scope.coordinates.extent(loss_axes) == 1) return plan;
  for (const DdpLayout::Reduction& reduction : layout.reductions) {
    plan.calls.push_back({.group = loss_axes,
                          .operation = CommOperation::all_reduce,
                          .count = reduction.end - reduction.begin,
                          .dtype = scope.gradient_type,
                          .until = layout.reductions.size()});
  }
  return plan;
}

std::unique_ptr<GradientExchange> make(const ParamValues& values, const ExchangeScope& scope,
                                       ComputeBackend& backend, MemoryLedger& ledger,
                                       const ProcessGrid& grid) {
  return std::make_unique<Ddp>(config_of(values), scope, backend, ledger, grid.group(loss_axes));
}

/// The units, in the order in which their gradients are completed; then the others, the last first.
std::vector<int> units_in_order(const ParameterTable& table, const std::vector<GradientRange>& completions) {
  std::vector<int> units;
  for (const GradientRange& range : completions) {
    if (std::ranges::find(units, range.unit) == units.end()) units.push_back(range.unit);
  }
  for (int unit = table.num_units() - 1; unit >= 0; --unit) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  return units;
}

}  // namespace

extern constinit const ExchangeKind ddp_exchange{
    .name = "ddp",
    .doc = "nothing is divided, and gradients are summed",
    .params = params,
    .shards = false,
    .gathers_within_passes = false,
    .plan = plan,
    .make = make,
};

DdpLayout::DdpLayout(const DdpConfig& config, const ExchangeScope& scope)
    : offsets(scope.table.units().size()) {
  const std::vector<GradientRange> completions = completions_of(scope.events);
  has_gradients = !completions.empty();
  for (const int unit : units_in_order(scope.table, completions)) {
    offsets[static_cast<std::size_t>(unit)] = size;
    size += scope.table.unit(unit).size;
  }
  const auto reduce_parameters = [&](const GradientRange& range, std::int64_t after) {
    const std::int64_t unit_begin = offsets[static_cast<std::size_t>(range.unit)];
    for (const int index : scope.table.unit(range.unit).parameters) {
      const Parameter& parameter = scope.table.parameters()[static_cast<std::size_t>(index)];
      if (parameter.offset < range.begin || parameter.offset >= range.end) continue;
      const std::int64_t begin = unit_begin + parameter.offset;
      reductions.push_back({begin, begin + parameter.padded_size(), after});
    }
  };
  std::int64_t complete = 0;
  std::int64_t reduced = 0;
  for (const GradientRange& range : completions) {
    const std::int64_t unit_begin = offsets[static_cast<std::size_t>(range.unit)];
    require(unit_begin + range.begin >= complete, "gradients are completed in the order of the buffer");
    complete = unit_begin + range.end;
    const std::int64_t pending =
        (complete - reduced) * static_cast<std::int64_t>(size_of(scope.gradient_type));
    if (config.mode == DdpMode::per_parameter) reduce_parameters(range, at_the_end);
    if (config.mode == DdpMode::overlapped) reduce_parameters(range, complete);
    if (config.mode == DdpMode::bucketed && pending >= config.bucket_bytes) {
      reductions.push_back({reduced, complete, complete});
      reduced = complete;
    }
  }
  require(completions.empty() || complete == size, "a step completes every gradient");
  const bool has_rest = config.mode == DdpMode::flat || config.mode == DdpMode::bucketed;
  if (has_rest && reduced < complete) reductions.push_back({reduced, complete, at_the_end});
}

Ddp::Ddp(const DdpConfig& config, const ExchangeScope& scope, ComputeBackend& backend, MemoryLedger& ledger,
         Communicator& replicas)
    : GradientExchange(scope.table),
      compute_type_(scope.compute_type),
      gradient_type_(scope.gradient_type),
      replicas_(replicas),
      layout_(config, scope) {
  const auto bytes = [&](DType type) { return static_cast<std::size_t>(layout_.size) * size_of(type); };
  weights_ =
      DeviceBuffer(backend, ledger, MemoryCategory::parameters, bytes(compute_type_), "mylos::ddp::weights");
  backend.run(Fill{.y = flat(weights_, compute_type_), .value = 0.0F});
  if (layout_.has_gradients) {
    gradients_ = DeviceBuffer(backend, ledger, MemoryCategory::gradients, bytes(gradient_type_),
                              "mylos::ddp::gradients", replicas);
    backend.run(Fill{.y = flat(gradients_, gradient_type_), .value = 0.0F});
  }
  if (replicas_.size() == 1) layout_.reductions.clear();
  requests_.reserve(layout_.reductions.size());
  versions_.resize(table().units().size());
  publish_all();
}

TensorRef Ddp::flat(const DeviceBuffer& buffer, DType type) const {
  return {buffer.data(), type, {layout_.size}};
}

TensorRef Ddp::weights(const UnitPart& part) const {
  TensorRef view = flat(weights_, compute_type_).flat(offset(part.unit) + part.begin, part.count);
  view.version = versions_[static_cast<std::size_t>(part.unit)];
  return view;
}

TensorRef Ddp::gradient(const UnitPart& part) const {
  return flat(gradients_, gradient_type_).flat(offset(part.unit) + part.begin, part.count);
}

UnitView Ddp::acquire(const UnitAccess& access) {
  const UnitPart whole{access.unit, 0, unit_size(access.unit)};
  UnitView view;
  view.weights = weights(whole);
  if (access.adds_gradients) view.gradients = gradient(whole);
  return view;
}

void Ddp::release(int /*unit*/) {
  if (!requests_.empty()) replicas_.progress();
}

bool Ddp::starts_reduction(const GradientRange& range) const {
  return std::ranges::find(layout_.reductions, offset(range.unit) + range.end,
                           &DdpLayout::Reduction::after) != layout_.reductions.end();
}

void Ddp::gradient_ready(const GradientRange& range) {
  const std::int64_t complete = offset(range.unit) + range.end;
  const auto is_next = [&] {
    return num_started_ < layout_.reductions.size() && layout_.reductions[num_started_].after == complete;
  };
  while (is_next()) start();
}

void Ddp::start() {
  const DdpLayout::Reduction& reduction = layout_.reductions[num_started_++];
  const TensorRef part =
      flat(gradients_, gradient_type_).flat(reduction.begin, reduction.end - reduction.begin);
  requests_.push_back(replicas_.all_reduce(part, ReduceOp::sum));
}

void Ddp::reduce() {
  while (num_started_ < layout_.reductions.size()) start();
  for (Request& request : requests_) request.wait();
  requests_.clear();
  num_started_ = 0;
}

void Ddp::publish(int unit) {
  versions_[static_cast<std::size_t>(unit)] = new_weight_version();
}

std::vector<UnitPart> Ddp::owned() const {
  return whole_units(table());
}

std::vector<UnitPart> Ddp::stored() const {
  return share_of(owned(), replicas_.size(), replicas_.rank());
}

}  // namespace mylos
