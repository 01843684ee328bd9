// SPDX-License-Identifier: BSD-3-Clause
// ModelFile: the weights of a GPT-2 in another program's format, read by boxes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/model/model_config.hpp"
#include "io/checkpoint/tensor.hpp"

namespace mylos {

/// What the headers of a model's files say.
struct ModelDescription {
  std::string format;  ///< "Hugging Face folder", "llm.c file (version 3)"
  ModelConfig model;   ///< shape, whether the head is tied, dropout
  DType dtype{};       ///< of the weights; fp32 if they have several types
};

/// An opened model. Its constructors check everything that the headers say; `read` checks values.
class ModelFile {
 public:
  virtual ~ModelFile() = default;
  virtual const ModelDescription& description() const = 0;
  /// Reads the parts of a weight, whose name and shape are those of the parameter table (Hugging Face's names
  /// without "transformer.", matrices [in, out]), as fp32; bf16 and fp16 are converted exactly. Requests only
  /// the bytes of the boxes and, for the token embedding of a tied model whose file has a head too, those of
  /// the head. Takes few MiB of memory; threads may call it at the same time. Throws ExitCode::bad_data,
  /// naming file and tensor, for values that are not finite and for a stored head that differs from the token
  /// embedding of a tied model; ExitCode::io if a file cannot be read.
  virtual void read(const TensorInfo& tensor, const std::vector<TensorPart>& parts) const = 0;
  /// The bytes of weights that `read` has requested from files so far.
  virtual std::int64_t bytes_requested() const = 0;
};

/// Returns whether `path` looks like a model that `open_model_file` opens or refuses with a reason of its
/// own: a folder with config.json or *.safetensors, a file that begins with llm.c's magic number, or pickled
/// weights. Decided by content, not by name.
bool is_model_file(const std::filesystem::path& path);

/// Opens a model. Reads headers only. Throws ExitCode::bad_data with file, tensor or key and both values,
/// ExitCode::io if a file cannot be read.
std::unique_ptr<ModelFile> open_model_file(const std::filesystem::path& path,
                                           const std::function<void(const std::string&)>& warn);

}  // namespace mylos
