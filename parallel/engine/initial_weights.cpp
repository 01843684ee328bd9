// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/initial_weights.hpp"

namespace mylos {

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
    for (const Piece& piece : pieces_of(table, part)) {
      const Parameter& parameter = piece.parameter;
      const TensorRef values = exact.flat(piece.offset, piece.count);
      if (parameter.initialisation == Initialisation::ones) ops.fill({}, values, 1.0F);
      if (parameter.initialisation == Initialisation::normal) {
        ops.fill_normal({}, values, stream_key(seed, parameter.name), piece.global_index(), parameter.stddev);
      }
    }
    if (exact.data != weights.data) ops.cast({}, exact, weights);
    if (exact.data != master.data) ops.fill({}, exact, 0.0F);
  }
  exchange.publish();
}

}  // namespace mylos
