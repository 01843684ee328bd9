// SPDX-License-Identifier: BSD-3-Clause
// The config.json of a Hugging Face GPT-2.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.hpp"
#include "core/model/model_config.hpp"

namespace mylos {

/// Names of the files of a Hugging Face folder.
inline constexpr const char* hf_config_name = "config.json";
inline constexpr const char* hf_weights_name = "model.safetensors";
inline constexpr const char* hf_index_name = "model.safetensors.index.json";

/// The model that the text of a config.json describes. Throws ExitCode::bad_data, naming the key, unless
/// mylos computes the same function. Keys that are absent have transformers' defaults, except those of the
/// shape, which must be there. Tells `warn` what mylos does differently.
ModelConfig parse_hugging_face_config(std::string_view text,
                                      const std::function<void(const std::string&)>& warn);

/// The text of the config.json of a model, as transformers writes it, and with the keys "n_ctx" and
/// "torch_dtype" of its older versions, which other programs read.
std::string hugging_face_config(const ModelConfig& model, DType dtype,
                                std::optional<std::int64_t> end_of_text);
/// The text of its generation_config.json.
std::string hugging_face_generation_config(std::optional<std::int64_t> end_of_text);

}  // namespace mylos
