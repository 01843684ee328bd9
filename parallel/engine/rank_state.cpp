// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/rank_state.hpp"

namespace mylos {

void RankState::initialise(ComputeBackend& backend, std::uint64_t seed) {
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    const TensorRef own_weights = weights(owned_[i]);
    const TensorRef own_master = master(i);
    backend.run(Fill{.y = own_weights, .value = 0.0F});
    if (own_master.data != own_weights.data) backend.run(Fill{.y = own_master, .value = 0.0F});
    for (const Piece& piece : pieces_of(table(), owned_[i])) {
      const Parameter& parameter = piece.parameter;
      const TensorRef held = own_weights.flat(piece.offset, piece.count);
      // Without fp32 weights or an fp32 master, the values are set in a state of the optimizer, which is
      // cleared afterwards.
      TensorRef values = own_master.flat(piece.offset, piece.count);
      for (std::size_t s = 0; values.dtype != DType::fp32; ++s) {
        const TensorRef borrowed = state(s, i, piece.offset, piece.count);
        if (borrowed) values = borrowed;
      }
      if (parameter.initialisation == Initialisation::ones) backend.run(Fill{.y = values, .value = 1.0F});
      if (parameter.initialisation == Initialisation::normal) {
        backend.run(FillNormal{.y = values,
                               .key = stream_key(seed, parameter.name),
                               .index = piece.global_index(),
                               .stddev = parameter.stddev});
      }
      if (values.data != held.data) backend.run(Cast{.x = values, .y = held});
      const bool is_borrowed = own_master.dtype != DType::fp32;
      if (is_borrowed) backend.run(Fill{.y = values, .value = 0.0F});
    }
  }
  publish();
}

}  // namespace mylos
