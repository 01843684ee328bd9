// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/initial_weights.hpp"

#include <algorithm>

namespace mylos {

namespace {

/// The overlap of a unit's part with a parameter, without padding: elements [begin, end) of the parameter,
/// which lie at `offset` within the part.
struct Overlap {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
  std::int64_t count() const { return end - begin; }
};

Overlap overlap(const Parameter& parameter, const UnitPart& part) {
  if (parameter.unit != part.unit) return {};
  const std::int64_t begin = std::max(parameter.offset, part.begin);
  const std::int64_t end = std::min(parameter.offset + parameter.size(), part.begin + part.count);
  if (begin >= end) return {};
  return {begin - parameter.offset, end - parameter.offset, begin - part.begin};
}

}  // namespace

void initialise_weights(ComputeBackend& backend, const ParameterTable& table, std::uint64_t seed,
                        GradientExchange& exchange, AdamW& optimizer) {
  TensorOps& ops = backend.tensor_ops();
  for (std::size_t i = 0; i < optimizer.parts().size(); ++i) {
    const UnitPart& part = optimizer.parts()[i];
    const TensorRef weights = exchange.weights(part);
    const TensorRef master = optimizer.master(i, weights);
    // Without a master the draws take the place of the first moment.
    const TensorRef exact = master.dtype == DType::fp32 ? master : optimizer.first_moment(i);
    ops.fill({}, exact, 0.0F);
    for (const Parameter& parameter : table.parameters()) {
      const Overlap o = overlap(parameter, part);
      if (o.count() == 0) continue;
      const TensorRef values = exact.flat(o.offset, o.count());
      if (parameter.initialisation == Initialisation::ones) ops.fill({}, values, 1.0F);
      if (parameter.initialisation == Initialisation::normal) {
        ops.fill_normal({}, values, stream_key(seed, parameter.name), o.begin, parameter.stddev);
      }
    }
    if (exact.data != weights.data) ops.cast({}, exact, weights);
    if (exact.data != master.data) ops.fill({}, exact, 0.0F);
  }
  exchange.publish();
}

}  // namespace mylos
