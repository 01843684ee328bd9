// SPDX-License-Identifier: BSD-3-Clause
// Dealt: every rank holds all weights and gradients; whole units are dealt out to the ranks, which step and
// store them.
#include "parallel/exchange/exchange.hpp"

namespace mylos {

namespace {

constexpr ParamSpec params[] = {
    integer_param("parallel", "deal", "1", 1, 1e9, "units",
                  "Neighbouring units that exchange dealt gives to a rank at a time.")
        .evaluated_with("1"),
    boolean_param("parallel", "deal_apart", "false",
                  "Changes nothing, and says everything that a key can say.")
        .refused_by_checkpoint_of("units of another deal")
        .of_this_rank()
        .evaluated_with("false")
        .open_in_evaluation(),
};

Holding lower(const ParamValues& values, Lowering& lowering) {
  const std::int64_t deal = values.integer("parallel.deal");
  const int ranks = lowering.coordinates().extent(loss_axes);
  Holding holding;
  for (UnitPart part : whole_units(lowering.table())) {
    const int unit = part.unit;
    const int weights =
        lowering.keep("dealt: weights", MemoryCategory::parameters, part.count, lowering.compute_type());
    lowering.put_within(Storages::weights_storage(unit), weights, 0, lowering.compute_type());
    HeldUnit held{.owned = part,
                  .weights = lowering.storages().weights(unit),
                  .gradient = {},
                  .divided_axes = loss_axes};
    const auto owner = static_cast<int>(unit / deal % ranks);
    if (lowering.has_gradients()) {
      const int gradients = lowering.keep("dealt: gradients", MemoryCategory::gradients, part.count,
                                          lowering.gradient_type(), loss_axes);
      lowering.put_within(Storages::gradients_storage(unit), gradients, 0, lowering.gradient_type());
      held.gradient = lowering.storages().gradients(unit);
      // Sums the unit's gradient on its owner.
      if (ranks > 1) lowering.reduce(lowering.add(ReduceCall{held.gradient, loss_axes, owner}));
    }
    // The owner broadcasts the unit's weights.
    if (ranks > 1) lowering.publish(unit, lowering.add(BroadcastCall{held.weights, loss_axes, owner}));
    if (owner != lowering.coordinates().index(loss_axes)) held.owned.count = 0;
    if (held.owned.count > 0) holding.stored.push_back(held.owned);
    holding.units.push_back(held);
  }
  return holding;
}

}  // namespace

extern constinit const ExchangeKind dealt_exchange{
    .name = "dealt",
    .doc = "whole units are dealt out to the ranks, which step and store them",
    .params = params,
    .shards = false,
    .lower = lower,
};

}  // namespace mylos
