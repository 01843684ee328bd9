// SPDX-License-Identifier: BSD-3-Clause
// The limits of a model's shape, which keep products of its extents within 64 bits.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/model/model_config.hpp"

namespace mylos {

/// The largest values of the deck's keys of the same names.
inline constexpr std::int64_t max_layers = 1024;
inline constexpr std::int64_t max_heads = 16384;
inline constexpr std::int64_t max_width = 1048576;
inline constexpr std::int64_t max_feed_forward = 4194304;  ///< four times max_width
inline constexpr std::int64_t max_context = 65536;
inline constexpr std::int64_t max_vocab = 1048576;  ///< the ids in token files have 16 bits
inline constexpr float max_dropout = 0.99F;

/// What a format calls the extents of a model.
struct ShapeNames {
  std::string_view layers, heads, width, context, vocab;
};

/// Throws ExitCode::bad_data, with the name and the value of what is at fault, if a shape is outside the
/// limits or its heads do not divide its width.
void check_model_shape(const ModelConfig& model, const ShapeNames& names);

}  // namespace mylos
