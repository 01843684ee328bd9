// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/initial_weights.hpp"

namespace mylos {

void initialise_weights(ComputeBackend& backend, const ParameterTable& table, std::uint64_t seed,
                        GradientExchange& exchange, Optimizer& optimizer) {
  for (std::size_t i = 0; i < optimizer.parts().size(); ++i) {
    const UnitPart& part = optimizer.parts()[i];
    const TensorRef weights = exchange.weights(part);
    const TensorRef master = optimizer.master(i, weights);
    // Without fp32 weights or an fp32 master, the values are set in the first state of the optimizer, which
    // is cleared afterwards.
    const TensorRef exact = master.dtype == DType::fp32 ? master : optimizer.state(0, i);
    backend.run(Fill{.y = exact, .value = 0.0F});
    for (const Piece& piece : pieces_of(table, part)) {
      const Parameter& parameter = piece.parameter;
      const TensorRef values = exact.flat(piece.offset, piece.count);
      if (parameter.initialisation == Initialisation::ones) backend.run(Fill{.y = values, .value = 1.0F});
      if (parameter.initialisation == Initialisation::normal) {
        backend.run(FillNormal{.y = values,
                               .key = stream_key(seed, parameter.name),
                               .index = piece.global_index(),
                               .stddev = parameter.stddev});
      }
    }
    if (exact.data != weights.data) backend.run(Cast{.x = exact, .y = weights});
    if (exact.data != master.data) backend.run(Fill{.y = exact, .value = 0.0F});
  }
  exchange.publish_all();
}

}  // namespace mylos
