// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/llmc_file.hpp"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <string_view>
#include <sys/stat.h>
#include <utility>

#include "core/base/error.hpp"
#include "io/file_util.hpp"
#include "io/models/model_shape.hpp"
#include "io/models/stored_weights.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr ShapeNames header_names = {.layers = "layers (word 4)",
                                     .heads = "heads (word 5)",
                                     .width = "channels (word 6)",
                                     .context = "longest sequence (word 2)",
                                     .vocab = "vocabulary (word 3)"};

/// A tensor that each block has, with its extents in units of the width; 0 inputs for a vector.
struct BlockTensor {
  std::string_view name;
  std::int64_t outputs;
  std::int64_t inputs;
};
constexpr BlockTensor block_tensors[] = {
    {"ln_1.weight", 1, 0},      {"ln_1.bias", 1, 0},          {"attn.c_attn.weight", 3, 1},
    {"attn.c_attn.bias", 3, 0}, {"attn.c_proj.weight", 1, 1}, {"attn.c_proj.bias", 1, 0},
    {"ln_2.weight", 1, 0},      {"ln_2.bias", 1, 0},          {"mlp.c_fc.weight", 4, 1},
    {"mlp.c_fc.bias", 4, 0},    {"mlp.c_proj.weight", 1, 4},  {"mlp.c_proj.bias", 1, 0}};

class LlmcFile final : public ModelFile {
 public:
  explicit LlmcFile(const fs::path& path) {
    FileDescriptor open = open_file(path, O_RDONLY | O_NONBLOCK);  // does not wait for a pipe's writer
    struct stat info {};
    check_call(::fstat(open.get(), &info), "read", path);
    if (!S_ISREG(info.st_mode)) fail(ExitCode::bad_data, "{} is not a regular file", path.string());
    LlmcHeader header{};
    if (info.st_size < std::int64_t{sizeof header}) {
      fail(ExitCode::bad_data, "{} has {} bytes; a model file of llm.c begins with a header of {}",
           path.string(), info.st_size, sizeof header);
    }
    read_fully(open.get(), path, header.data(), sizeof header, 0);
    const std::int64_t padded_vocab = read_header(path, header);
    place_tensors(path, padded_vocab, info.st_size);
    weights_.add(std::move(open), path);
  }

  const ModelDescription& description() const override { return description_; }

  void read(const TensorInfo& tensor, const std::vector<TensorPart>& parts) const override {
    check_parts(tensor, parts);
    const auto stored = tensors_.find(tensor.name);
    require(stored != tensors_.end(), "a tensor of the model");
    for (const TensorPart& part : parts) weights_.read(stored->second, part);
  }

  std::int64_t bytes_requested() const override { return weights_.bytes_requested(); }

 private:
  /// Sets the description. Returns the rows of the token embedding.
  std::int64_t read_header(const fs::path& path, const LlmcHeader& header) {
    if (header[0] != llmc_model_magic) {
      fail(ExitCode::bad_data, "{}: offset 0: magic number {}; a model file of llm.c has {}", path.string(),
           header[0], llmc_model_magic);
    }
    if (header[1] != llmc_fp32_version && header[1] != llmc_bf16_version) {
      fail(ExitCode::bad_data, "{}: offset 4: version {}; mylos reads {} (fp32) and {} (bf16)", path.string(),
           header[1], llmc_fp32_version, llmc_bf16_version);
    }
    description_.format = fmt::format("llm.c file (version {})", header[1]);
    description_.dtype = header[1] == llmc_fp32_version ? DType::fp32 : DType::bf16;
    ModelConfig& model = description_.model;
    model.context = header[2];
    model.vocab = header[3];
    model.layers = header[4];
    model.heads = header[5];
    model.width = header[6];
    const std::int64_t padded_vocab = header[7];
    return at_place(path.string(), [&] {
      check_model_shape(model, header_names);
      if (padded_vocab < model.vocab) {
        fail(ExitCode::bad_data, "padded vocabulary (word 7) = {} is less than vocabulary (word 3) = {}",
             padded_vocab, model.vocab);
      }
      return padded_vocab;
    });
  }

  void place_tensors(const fs::path& path, std::int64_t padded_vocab, std::int64_t file_bytes) {
    std::int64_t offset = sizeof(LlmcHeader);
    for (const LlmcTensor& tensor : llmc_tensors(description_.model, padded_vocab)) {
      const StoredTensor stored{.name = tensor.name,
                                .offset = offset,
                                .dtype = description_.dtype,
                                .rows = tensor.rows,
                                .columns = tensor.columns,
                                .transposed = tensor.transposed};
      offset += stored.bytes();
      tensors_.emplace(tensor.name, stored);
    }
    if (offset != file_bytes) {
      fail(ExitCode::bad_data, "{} has {} bytes; a {} with its header has {}", path.string(), file_bytes,
           description_.format, offset);
    }
  }

  ModelDescription description_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  StoredWeights weights_;
};

}  // namespace

std::vector<LlmcTensor> llmc_tensors(const ModelConfig& model, std::int64_t padded_vocab) {
  const std::int64_t width = model.width;
  std::vector<LlmcTensor> tensors = {{.name = "wte.weight", .rows = padded_vocab, .columns = width},
                                     {.name = "wpe.weight", .rows = model.context, .columns = width}};
  for (const auto& [name, outputs, inputs] : block_tensors) {
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      std::string full_name = fmt::format("h.{}.{}", layer, name);
      if (inputs == 0) {
        tensors.push_back({.name = std::move(full_name), .columns = outputs * width});
      } else {
        tensors.push_back({.name = std::move(full_name),
                           .rows = outputs * width,
                           .columns = inputs * width,
                           .transposed = true});
      }
    }
  }
  tensors.push_back({.name = "ln_f.weight", .columns = width});
  tensors.push_back({.name = "ln_f.bias", .columns = width});
  return tensors;
}

bool begins_as_llmc_model(std::string_view head) {
  return head.size() >= sizeof llmc_model_magic &&
         std::memcmp(head.data(), &llmc_model_magic, sizeof llmc_model_magic) == 0;
}

std::unique_ptr<ModelFile> open_llmc_file(const fs::path& file) {
  return std::make_unique<LlmcFile>(file);
}

}  // namespace mylos
