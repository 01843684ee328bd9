// SPDX-License-Identifier: BSD-3-Clause
// ModelPrograms: everything that a model runs, recorded once.
#pragma once

#include <vector>

#include "core/model/model_config.hpp"
#include "core/model/program.hpp"
#include "core/model/recorder.hpp"

namespace mylos {

/// A forward pass through a chunk, between storages of the residual stream.
struct ChunkForward {
  Program program;
  int input = -1;   ///< before the chunk; -1 for the first
  int output = -1;  ///< after the chunk; -1 for the last
};

/// The programs of some consecutive blocks. The last chunk also has the head.
struct ChunkPrograms {
  Program forward;
  /// Computes the gradients and, with the head, the losses and their sum. Recomputes the tensors that were
  /// not kept, block by block. Consists of one program or, if the pass is split, of the two of SplitProgram.
  std::vector<Program> backward;
  int input = -1;   ///< storage of the residual stream before the chunk; -1 for the first
  int output = -1;  ///< storage of the residual stream after the chunk; -1 for the last
  /// Storages of the gradients of the loss with respect to input and output.
  int input_gradient = -1;
  int output_gradient = -1;
  /// The forward pass without gradients, between the same storages; with the head also losses, and which
  /// predictions are correct.
  Program evaluate;
  std::vector<ChunkForward> cached;  ///< by CacheConfig::passes
};

struct ModelPrograms {
  Storages storages;
  std::vector<ChunkPrograms> chunks;  ///< empty programs for chunks that are not held
};

/// The prefix of the names of the activations of a pass over the cache.
std::string prefix_of(const CachedPass& pass);

/// Calls each block's forward pass once for training (except the head's), once for evaluation and once for
/// each pass over the cache, and each block's backward pass once. `table` must outlive the result.
ModelPrograms record_programs(const ModelConfig& model, const ParameterTable& table,
                              const ProgramConfig& config);

}  // namespace mylos
