// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/rank_state.hpp"

namespace mylos {

void RankState::initialise(ComputeBackend& backend, std::uint64_t seed) {
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    const TensorRef own_weights = weights(owned_[i]);
    const TensorRef own_master = master(i);
    // Without fp32 weights or an fp32 master, the values are set in the first state of the optimizer, which
    // is cleared afterwards.
    const TensorRef exact = own_master.dtype == DType::fp32 ? own_master : state(0, i);
    backend.run(Fill{.y = exact, .value = 0.0F});
    for (const Piece& piece : pieces_of(table(), owned_[i])) {
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
    if (exact.data != own_weights.data) backend.run(Cast{.x = exact, .y = own_weights});
    if (exact.data != own_master.data) backend.run(Fill{.y = exact, .value = 0.0F});
  }
  publish();
}

}  // namespace mylos
