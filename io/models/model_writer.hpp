// SPDX-License-Identifier: BSD-3-Clause
// Writes models in other programs' formats, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/model/model_config.hpp"
#include "io/checkpoint/tensor.hpp"

namespace mylos {

/// Where the weights come from.
struct ModelSource {
  ModelConfig model;
  /// Fills the parts of a tensor of the parameter table with fp32, as ModelFile::read.
  std::function<void(const TensorInfo& tensor, const std::vector<TensorPart>& parts)> read;
};

struct ModelWriteOptions {
  /// fp32, bf16 or fp16. Weights are rounded to nearest, ties to even; a weight beyond the type's range
  /// throws ExitCode::bad_data with its tensor, place and value, as does one that is not finite.
  DType dtype = DType::fp32;
  /// Hugging Face only: further metadata of the safetensors file, by key.
  std::vector<std::pair<std::string, std::string>> metadata{};
  /// Hugging Face only: the token that begins and ends a text.
  std::optional<std::int64_t> end_of_text = std::nullopt;
};

/// Writes model.safetensors, config.json and generation_config.json into an existing folder, as
/// transformers' save_pretrained. They are on disk on return. Throws ExitCode::io if they cannot be written.
void write_hugging_face(const ModelSource& source, const ModelWriteOptions& options,
                        const std::filesystem::path& folder);

/// Throws ExitCode::bad_data, with the reason, if llm.c's format cannot hold the model in this type.
void check_llmc_model(const ModelConfig& model, DType dtype);

/// Writes a model file of llm.c, whose vocabulary is padded with zeros, over `file` if that is there. It is
/// on disk on return. Throws ExitCode::io if it cannot be written, ExitCode::bad_data as check_llmc_model.
void write_llmc(const ModelSource& source, const ModelWriteOptions& options,
                const std::filesystem::path& file);

}  // namespace mylos
