// SPDX-License-Identifier: BSD-3-Clause
// llm.c's model file: a header of 256 int32, then the weights of a tied GPT-2 in fp32 (version 3) or bf16
// (version 5). See https://github.com/karpathy/llm.c, train_gpt2.py, write_model.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/model/model_config.hpp"
#include "io/models/model_file.hpp"

namespace mylos {

inline constexpr std::int32_t llmc_model_magic = 20240326;
inline constexpr std::int32_t llmc_fp32_version = 3;
inline constexpr std::int32_t llmc_bf16_version = 5;
inline constexpr std::int64_t llmc_vocab_multiple = 128;

using LlmcHeader = std::array<std::int32_t, 256>;

/// A tensor in the file: the rows of a matrix are the outputs, the transpose of the parameter; those of
/// embeddings and of vectors, of which each has one, are as they are.
struct LlmcTensor {
  std::string name;  ///< of the parameter
  std::int64_t rows = 1;
  std::int64_t columns = 0;
  bool transposed = false;

  std::int64_t size() const { return rows * columns; }
};

/// The tensors of a model in the order of the file; the token embedding has `padded_vocab` rows.
std::vector<LlmcTensor> llmc_tensors(const ModelConfig& model, std::int64_t padded_vocab);

/// Whether the first bytes of `head` are llm.c's magic number.
bool begins_as_llmc_model(std::string_view head);

/// Opens a file. Throws as open_model_file.
std::unique_ptr<ModelFile> open_llmc_file(const std::filesystem::path& file);

}  // namespace mylos
