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
class Reductions {
 public:
  Reductions(DdpMode mode, std::int64_t bucket_bytes, const TensorRef& buffer,
             const std::vector<std::int64_t>& offsets, Lowering& lowering)
      : mode_(mode), bucket_bytes_(bucket_bytes), buffer_(buffer), offsets_(offsets), lowering_(lowering) {}

  void insert() {
    lowering_.for_each_completion(
        [&](Pass& pass, std::size_t index, const GradientRange& range) { complete(pass, index, range); });
    require(complete_ == buffer_.size(), "a step completes every gradient");
    reduce_at_the_end();
    for (const int call : started_) lowering_.reduce(lowering_.await(call));
  }

 private:
  void complete(Pass& pass, std::size_t index, const GradientRange& range) {
    const std::int64_t unit_begin = offsets_[static_cast<std::size_t>(range.unit)];
    require(unit_begin + range.begin >= complete_, "gradients are completed in the order of the buffer");
    // A reduction is of units whose gradients are summed over the same ranks.
    const AxisSet group = lowering_.table().term_axes(range.unit);
    if (group != group_) reduce_at_the_end();
    group_ = group;
    complete_ = unit_begin + range.end;
    if (mode_ == DdpMode::per_parameter || mode_ == DdpMode::overlapped) {
      for (const int number : lowering_.table().unit(range.unit).parameters) {
        const Parameter& parameter = lowering_.table().parameters()[static_cast<std::size_t>(number)];
        if (parameter.offset < range.begin || parameter.offset >= range.end) continue;
        const std::int64_t begin = unit_begin + parameter.offset;
        const int call = start(begin, begin + parameter.padded_size());
        if (call >= 0 && mode_ == DdpMode::overlapped) Lowering::after(pass, index, call);
        if (call >= 0 && mode_ == DdpMode::per_parameter) lowering_.reduce(call);
      }
      reduced_ = complete_;
    }
    const auto element = static_cast<std::int64_t>(size_of(buffer_.dtype));
    if (mode_ == DdpMode::bucketed && (complete_ - reduced_) * element >= bucket_bytes_) {
      if (const int call = start(reduced_, complete_); call >= 0) Lowering::after(pass, index, call);
      reduced_ = complete_;
    }
  }

  /// Reduces what is complete and in no reduction yet, after the last pass.
  void reduce_at_the_end() {
    if (reduced_ == complete_) return;
    if (const int call = start(reduced_, complete_); call >= 0) lowering_.reduce(call);
    reduced_ = complete_;
  }

  /// Returns the call that sums elements [begin, end) over the ranks of the group; -1 if it is one rank.
  int start(std::int64_t begin, std::int64_t end) {
    if (lowering_.coordinates().extent(group_) == 1) return -1;
    started_.push_back(
        lowering_.add(AllReduceCall{.buffer = buffer_.flat(begin, end - begin), .group = group_}));
    return started_.back();
  }

  DdpMode mode_;
  std::int64_t bucket_bytes_;
  TensorRef buffer_;
  const std::vector<std::int64_t>& offsets_;
  Lowering& lowering_;
  AxisSet group_ = loss_axes;  // of the gradients completed last
  std::int64_t complete_ = 0;  // elements
  std::int64_t reduced_ = 0;
  std::vector<int> started_;
};

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
  holding.stored = stored_shares(table, holding.units, lowering.coordinates());
  if (lowering.has_gradients()) {
    const auto bucket_bytes = static_cast<std::int64_t>(values.real("parallel.bucket_mb") * 1024.0 * 1024.0);
    Reductions(mode_of(values), bucket_bytes, Storages::flat(gradients, 0, lowering.gradient_type(), size),
               offsets, lowering)
        .insert();
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
