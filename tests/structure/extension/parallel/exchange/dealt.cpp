// SPDX-License-Identifier: BSD-3-Clause
// Dealt: every rank holds all weights and gradients; whole units are dealt out to the ranks, which step and
// store them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "core/base/weight_version.hpp"
#include "core/memory/device_buffer.hpp"
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

namespace {

constexpr ParamSpec params[] = {
    integer_param("parallel", "deal", "1", 1, 1e9, "units",
                  "Neighbouring units that exchange dealt gives to a rank at a time."),
};

/// Assigns each unit to an owner.
struct Deal {
  Deal(const ParamValues& values, const ExchangeScope& scope)
      : units(values.integer("parallel.deal")), ranks(scope.coordinates.extent(loss_axes)) {}

  int owner(int unit) const { return static_cast<int>(unit / units % ranks); }
  /// One part per unit, empty if another rank owns the unit.
  std::vector<UnitPart> owned(const ParameterTable& table, int rank) const {
    std::vector<UnitPart> parts = whole_units(table);
    for (UnitPart& part : parts) {
      if (owner(part.unit) != rank) part.count = 0;
    }
    return parts;
  }

  std::int64_t units = 1;  // consecutive units that one rank owns
  int ranks = 1;
};

std::vector<UnitPart> without_empty(std::vector<UnitPart> parts) {
  std::erase_if(parts, [](const UnitPart& part) { return part.count == 0; });
  return parts;
}

class Dealt final : public GradientExchange {
 public:
  Dealt(const Deal& deal, const ExchangeScope& scope, ComputeBackend& backend, MemoryLedger& ledger,
        Communicator& ranks)
      : GradientExchange(scope.table),
        deal_(deal),
        compute_type_(scope.compute_type),
        gradient_type_(scope.gradient_type),
        ranks_(ranks) {
    for (const Unit& unit : table().units()) {
      offsets_.push_back(size_);
      size_ += unit.size;
    }
    weights_ = DeviceBuffer(backend, ledger, MemoryCategory::parameters, bytes(compute_type_),
                            "mylos::dealt::weights");
    backend.run(Fill{.y = {weights_.data(), compute_type_, {size_}}, .value = 0.0F});
    if (!completions_of(scope.events).empty()) {
      gradients_ = DeviceBuffer(backend, ledger, MemoryCategory::gradients, bytes(gradient_type_),
                                "mylos::dealt::gradients", ranks_);
      backend.run(Fill{.y = {gradients_.data(), gradient_type_, {size_}}, .value = 0.0F});
    }
    versions_.resize(offsets_.size());
    std::ranges::generate(versions_, new_weight_version);
    publications_.resize(offsets_.size());
  }
  ~Dealt() override {
    if (std::uncaught_exceptions() == 0) Dealt::settle();
  }

  UnitView acquire(const UnitAccess& access) override {
    const UnitPart whole{access.unit, 0, table().unit(access.unit).size};
    publications_[static_cast<std::size_t>(access.unit)].wait();
    UnitView view;
    view.weights = weights(whole);
    if (access.adds_gradients) view.gradients = gradient(whole);
    return view;
  }
  void release(int /*unit*/) override {}
  void gradient_ready(const GradientRange& /*range*/) override {}
  bool starts_reduction(const GradientRange& /*range*/) const override { return false; }
  /// Sums each unit's gradient on its owner.
  void reduce() override {
    if (ranks_.size() == 1) return;
    for (const UnitPart& unit : whole_units(table()))
      reductions_.push_back(ranks_.reduce(gradient(unit), ReduceOp::sum, deal_.owner(unit.unit)));
    for (Request& request : reductions_) request.wait();
    reductions_.clear();
  }

  std::vector<UnitPart> owned() const override { return deal_.owned(table(), ranks_.rank()); }
  std::vector<UnitPart> stored() const override { return without_empty(owned()); }
  AxisSet sharded_axes() const override { return loss_axes; }
  TensorRef weights(const UnitPart& part) const override {
    TensorRef view = part_of(weights_, compute_type_, part);
    view.version = versions_[static_cast<std::size_t>(part.unit)];
    return view;
  }
  TensorRef gradient(const UnitPart& part) const override {
    return part_of(gradients_, gradient_type_, part);
  }

  /// The owner broadcasts the unit's weights.
  void publish(int unit) override {
    const auto index = static_cast<std::size_t>(unit);
    versions_[index] = new_weight_version();
    if (ranks_.size() == 1) return;
    publications_[index].wait();
    publications_[index] = ranks_.broadcast(weights({unit, 0, table().unit(unit).size}), deal_.owner(unit));
  }
  void settle() override {
    for (Request& request : publications_) request.wait();
  }

 private:
  std::size_t bytes(DType type) const { return static_cast<std::size_t>(size_) * size_of(type); }
  TensorRef part_of(const DeviceBuffer& buffer, DType type, const UnitPart& part) const {
    const std::int64_t first = offsets_[static_cast<std::size_t>(part.unit)] + part.begin;
    return TensorRef(buffer.data(), type, {size_}).flat(first, part.count);
  }

  Deal deal_;
  DType compute_type_, gradient_type_;
  Communicator& ranks_;
  std::int64_t size_ = 0;              // elements of all units
  std::vector<std::int64_t> offsets_;  // by unit
  DeviceBuffer weights_;
  DeviceBuffer gradients_;               // empty if no pass completes gradients
  std::vector<std::uint64_t> versions_;  // of the weights, by unit
  std::vector<Request> publications_;    // by unit
  std::vector<Request> reductions_;
};

ExchangePlan plan(const ParamValues& values, const ExchangeScope& scope) {
  const Deal deal(values, scope);
  std::int64_t elements = 0;
  for (const Unit& unit : scope.table.units()) elements += unit.size;
  const auto bytes = [&](DType type) { return elements * static_cast<std::int64_t>(size_of(type)); };
  const bool has_gradients = !completions_of(scope.events).empty();
  ExchangePlan plan;
  plan.weight_bytes = bytes(scope.compute_type);
  plan.gradient_bytes = has_gradients ? bytes(scope.gradient_type) : 0;
  plan.owned = deal.owned(scope.table, scope.coordinates.index(loss_axes));
  plan.stored = without_empty(plan.owned);
  if (deal.ranks == 1 || !has_gradients) return plan;
  const auto add = [&](CommOperation operation, DType dtype, std::size_t until) {
    for (const Unit& unit : scope.table.units())
      plan.calls.push_back(
          {.group = loss_axes, .operation = operation, .count = unit.size, .dtype = dtype, .until = until});
  };
  const std::size_t units = scope.table.units().size();
  add(CommOperation::reduce, scope.gradient_type, units);
  add(CommOperation::broadcast, scope.compute_type, 2 * units);
  return plan;
}

std::unique_ptr<GradientExchange> make(const ParamValues& values, const ExchangeScope& scope,
                                       ComputeBackend& backend, MemoryLedger& ledger,
                                       const ProcessGrid& grid) {
  return std::make_unique<Dealt>(Deal(values, scope), scope, backend, ledger, grid.group(loss_axes));
}

}  // namespace

extern constinit const ExchangeKind dealt_exchange{
    .name = "dealt",
    .doc = "whole units are dealt out to the ranks, which step and store them",
    .params = params,
    .shards = false,
    .gathers_within_passes = false,
    .plan = plan,
    .make = make,
};

}  // namespace mylos
