// SPDX-License-Identifier: BSD-3-Clause
// ddp: every data-parallel rank holds all weights, gradients and optimizer states; the gradients of a step
// are summed in one of four ways, which docs/results.md compares (buckets and overlap: Li et al., "PyTorch
// Distributed", VLDB 2020).
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "parallel/exchange/exchange.hpp"

namespace mylos {

namespace {

enum class DdpMode : std::uint8_t {
  per_parameter,  ///< one all_reduce per parameter, after the last backward pass
  flat,           ///< one all_reduce, after the last backward pass
  overlapped,     ///< one all_reduce per parameter, as soon as its gradient is complete
  bucketed,       ///< one all_reduce per bucket, as soon as its bytes are complete; the rest at the end
};

constexpr ParamSpec params[] = {
    choice_param("parallel", "ddp_mode", "bucketed", "per_parameter|flat|overlapped|bucketed",
                 "How ddp reduces gradients. per_parameter: one all-reduce per parameter after the backward "
                 "pass; flat: a single one after it; overlapped: one per parameter during it; bucketed: one "
                 "per bucket during it."),
    real_param("parallel", "bucket_mb", "25", 0.001, 1e6, "MiB", "Size of a bucket if ddp_mode = bucketed."),
};

DdpMode mode_of(const ParamValues& values) {
  constexpr std::string_view names[] = {"per_parameter", "flat", "overlapped", "bucketed"};
  const auto mode = std::ranges::find(names, values.text("parallel.ddp_mode")) - std::begin(names);
  return static_cast<DdpMode>(mode);
}

/// The units, in the order in which a step completes their gradients; then the others, the last first.
std::vector<int> units_in_order(const Lowering& lowering) {
  std::vector<int> units;
  const auto add = [&](int unit) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  };
  lowering.for_each_completion(
      [&](const Pass&, std::size_t, const GradientRange& range) { add(range.unit); });
  for (int unit = lowering.table().num_units() - 1; unit >= 0; --unit) add(unit);
  return units;
}

/// Sums the gradients, which lie in `buffer` from `offsets` on, in the order in which they are completed.
void reduce_gradients(DdpMode mode, std::int64_t bucket_bytes, const TensorRef& buffer,
                      const std::vector<std::int64_t>& offsets, Lowering& lowering) {
  std::vector<int> started;
  const auto start = [&](std::int64_t begin, std::int64_t end) {
    started.push_back(
        lowering.add(AllReduceCall{.buffer = buffer.flat(begin, end - begin), .group = loss_axes}));
    return started.back();
  };
  std::int64_t complete = 0;
  std::int64_t reduced = 0;
  lowering.for_each_completion([&](Pass& pass, std::size_t index, const GradientRange& range) {
    const std::int64_t unit_begin = offsets[static_cast<std::size_t>(range.unit)];
    require(unit_begin + range.begin >= complete, "gradients are completed in the order of the buffer");
    complete = unit_begin + range.end;
    if (mode == DdpMode::per_parameter || mode == DdpMode::overlapped) {
      for (const int number : lowering.table().unit(range.unit).parameters) {
        const Parameter& parameter = lowering.table().parameters()[static_cast<std::size_t>(number)];
        if (parameter.offset < range.begin || parameter.offset >= range.end) continue;
        const std::int64_t begin = unit_begin + parameter.offset;
        const int call = start(begin, begin + parameter.padded_size());
        if (mode == DdpMode::overlapped) {
          Lowering::after(pass, index, call);
        } else {
          lowering.reduce(call);
        }
      }
    }
    const std::int64_t pending = (complete - reduced) * static_cast<std::int64_t>(size_of(buffer.dtype));
    if (mode == DdpMode::bucketed && pending >= bucket_bytes) {
      Lowering::after(pass, index, start(reduced, complete));
      reduced = complete;
    }
  });
  require(complete == buffer.size(), "a step completes every gradient");
  const bool has_rest = mode == DdpMode::flat || mode == DdpMode::bucketed;
  if (has_rest && reduced < complete) lowering.reduce(start(reduced, complete));
  for (const int call : started) lowering.reduce(lowering.await(call));
}

Holding lower(const ParamValues& values, Lowering& lowering) {
  const ParameterTable& table = lowering.table();
  std::vector<std::int64_t> offsets(table.units().size());
  std::int64_t size = 0;
  for (const int unit : units_in_order(lowering)) {
    offsets[static_cast<std::size_t>(unit)] = size;
    size += table.unit(unit).size;
  }
  const int weights =
      lowering.keep("ddp: weights", MemoryCategory::parameters, size, lowering.compute_type());
  const int gradients = lowering.has_gradients() ? lowering.keep("ddp: gradients", MemoryCategory::gradients,
                                                                 size, lowering.gradient_type(), loss_axes)
                                                 : -1;
  Holding holding;
  for (const UnitPart& whole : whole_units(table)) {
    const int unit = whole.unit;
    const std::int64_t begin = offsets[static_cast<std::size_t>(unit)];
    lowering.put_within(Storages::weights_storage(unit), weights, begin, lowering.compute_type());
    HeldUnit& held = holding.units.emplace_back();
    held.owned = whole;
    held.weights = lowering.storages().weights(unit);
    if (!lowering.has_gradients()) continue;
    lowering.put_within(Storages::gradients_storage(unit), gradients, begin, lowering.gradient_type());
    held.gradient = lowering.storages().gradients(unit);
  }
  const int ranks = lowering.coordinates().extent(loss_axes);
  holding.stored = share_of(holding.owned(), ranks, lowering.coordinates().index(loss_axes));
  if (lowering.has_gradients() && ranks > 1) {
    reduce_gradients(mode_of(values),
                     static_cast<std::int64_t>(values.real("parallel.bucket_mb") * 1024.0 * 1024.0),
                     Storages::flat(gradients, 0, lowering.gradient_type(), size), offsets, lowering);
  }
  return holding;
}

}  // namespace

extern constinit const ExchangeKind ddp_exchange{
    .name = "ddp",
    .doc = "nothing is divided, and gradients are summed",
    .params = params,
    .shards = false,
    .lower = lower,
};

}  // namespace mylos
