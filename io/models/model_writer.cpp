// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/model_writer.hpp"

#include <algorithm>
#include <fcntl.h>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/model/parameters.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/models/finite.hpp"
#include "io/models/hugging_face_config.hpp"
#include "io/models/llmc_file.hpp"
#include "io/models/place_rows.hpp"
#include "io/utf8.hpp"

namespace mylos {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "weights are little endian in a file");

namespace {

// Of the fp32 values that are converted at a time, unless one row is more.
constexpr std::int64_t chunk_limit = std::int64_t{8} << 20U;

/// Writes tensors one after another.
class WeightWriter {
 public:
  WeightWriter(const ModelSource& source, DType dtype, const fs::path& path)
      : source_(source),
        dtype_(dtype),
        path_(path),
        file_(open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW)) {}

  void write(const void* data, std::size_t bytes) {
    write_fully(file_.get(), path_, data, bytes, offset_);
    offset_ += static_cast<std::int64_t>(bytes);
  }

  /// Writes a tensor of the source row by row or, if it is `transposed`, column by column.
  void write(const TensorInfo& tensor, bool transposed) {
    const bool is_matrix = tensor.shape.size() == 2;
    require(is_matrix || (tensor.shape.size() == 1 && !transposed), "a weight is a vector or a matrix");
    const std::size_t row = transposed ? 1 : 0;  // the dimension that becomes the rows of the file
    const std::int64_t rows = is_matrix ? tensor.shape[row] : 1;
    const std::int64_t columns = is_matrix ? tensor.shape[1 - row] : tensor.shape[0];
    const std::int64_t most_rows =
        std::clamp<std::int64_t>(chunk_limit / (columns * static_cast<std::int64_t>(sizeof(float))), 1, rows);
    values_.resize(static_cast<std::size_t>(most_rows * columns));
    for (std::int64_t first = 0; first < rows; first += most_rows) {
      Box box = Box::whole(tensor.shape);
      if (is_matrix) {
        box.start[row] = first;
        box.count[row] = std::min(most_rows, rows - first);
      }
      TensorPart part{.box = box, .data = values_.data(), .stride = {1}};
      if (is_matrix) part.stride.insert(part.stride.begin(), box.count[1]);
      source_.read(tensor, {part});
      dispatch_float(dtype_, [&]<class T>(T) { write_chunk<T>(tensor, box, transposed); });
    }
  }

  void write_zeros(std::int64_t elements) {
    const std::vector<char> zeros(static_cast<std::size_t>(elements) * size_of(dtype_));
    write(zeros.data(), zeros.size());
  }

  /// Returns once everything is on disk.
  void finish() {
    sync_file(file_.get(), path_);
    check_call(file_.close(), "close", path_);
  }

 private:
  template <class T>
  void write_chunk(const TensorInfo& tensor, const Box& box, bool transposed) {
    const std::span<const float> values(values_.data(), static_cast<std::size_t>(box.size()));
    const auto chunk = std::make_unique_for_overwrite<T[]>(values.size());
    std::ranges::transform(values, chunk.get(), [](float value) { return static_cast<T>(value); });
    const std::span<const T> converted(chunk.get(), values.size());
    if (!are_finite(converted)) refuse<T>(tensor, box, find_not_finite(converted));
    if (!transposed) {
      write(converted.data(), converted.size_bytes());
      return;
    }
    const auto turned = std::make_unique_for_overwrite<T[]>(values.size());
    place_rows(chunk.get(), box.count[0], box.count[1], turned.get(), 1, box.count[0]);
    write(turned.get(), converted.size_bytes());
  }

  template <class T>
  [[noreturn]] void refuse(const TensorInfo& tensor, const Box& box, std::int64_t index) const {
    const float value = values_[static_cast<std::size_t>(index)];
    std::vector<std::int64_t> place = box.start;
    place.back() += index % box.count.back();
    if (place.size() == 2) place[0] += index / box.count.back();
    const std::string at = fmt::format("tensor {} is {} at [{}]", tensor.name, value, join(place, ", "));
    if (!is_finite(value)) fail(ExitCode::bad_data, "{}", at);
    fail(ExitCode::bad_data, "{}, beyond the range of {}; {} holds it", at, name_of(dtype_of<T>()),
         std::is_same_v<T, fp16> ? "bf16 or fp32" : "fp32");
  }

  const ModelSource& source_;
  DType dtype_;
  fs::path path_;
  FileDescriptor file_;
  std::int64_t offset_ = 0;
  std::vector<float> values_;
};

/// `bytes` with U+FFFD in place of what is not UTF-8.
std::string valid_utf8(std::string_view bytes) {
  constexpr std::uint32_t replacement = 0xfffd;
  std::string text;
  while (!bytes.empty()) {
    const Utf8Char next = decode_utf8(bytes.data(), bytes.data() + bytes.size());
    const std::size_t size = std::max<std::size_t>(next.bytes, 1);
    text += next.bytes == 0 ? encode_utf8(replacement) : std::string(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return text;
}

/// A parameter under its name in a Hugging Face file.
struct NamedTensor {
  std::string name;
  TensorInfo tensor;
};

/// All tensors in the order of the safetensors library: those of one type are sorted by name.
std::vector<NamedTensor> named_tensors(const ModelConfig& model) {
  std::vector<NamedTensor> tensors;
  const ParameterTable table = parameters_of(model);
  for (const Parameter& parameter : table.parameters()) {
    const bool is_head = parameter.name == "lm_head.weight";
    tensors.push_back({(is_head ? "" : "transformer.") + parameter.name, {parameter.name, parameter.shape}});
  }
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

/// The JSON text of a safetensors header, padded with spaces to whole words.
std::string safetensors_header(const std::vector<NamedTensor>& tensors, const ModelWriteOptions& options) {
  constexpr std::size_t word = 8;
  const std::string_view dtype = options.dtype == DType::fp32   ? "F32"
                                 : options.dtype == DType::bf16 ? "BF16"
                                                                : "F16";
  std::vector<Json::Member> metadata = {{"format", "pt"}};
  for (const auto& [key, text] : options.metadata) metadata.emplace_back(key, valid_utf8(text));
  std::string header = "{\"__metadata__\":" + Json::object(metadata).dump();
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::int64_t end = offset + tensor.size() * static_cast<std::int64_t>(size_of(options.dtype));
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype,
                          join(tensor.shape, ","), offset, end);
    offset = end;
  }
  header += '}';
  header.resize((header.size() + word - 1) / word * word, ' ');
  return header;
}

}  // namespace

void write_hugging_face(const ModelSource& source, const ModelWriteOptions& options, const fs::path& folder) {
  const std::vector<NamedTensor> tensors = named_tensors(source.model);
  const std::string header = safetensors_header(tensors, options);
  const std::uint64_t header_bytes = header.size();
  WeightWriter writer(source, options.dtype, folder / hf_weights_name);
  writer.write(&header_bytes, sizeof header_bytes);
  writer.write(header.data(), header.size());
  for (const NamedTensor& named : tensors) writer.write(named.tensor, false);
  writer.finish();
  write_text_file(folder / hf_config_name,
                  hugging_face_config(source.model, options.dtype, options.end_of_text));
  write_text_file(folder / "generation_config.json", hugging_face_generation_config(options.end_of_text));
  sync_path(folder);
}

void check_llmc_model(const ModelConfig& model, DType dtype) {
  if (!model.tied) {
    fail(ExitCode::bad_data,
         "llm.c's format has no head of its own, but the model's head is not tied to the token embedding");
  }
  if (model.inner_width() != 4 * model.width) {
    fail(ExitCode::bad_data,
         "llm.c's format has feed-forward layers of four times the width, {}, but the model's have {}",
         4 * model.width, model.inner_width());
  }
  if (dtype != DType::fp32 && dtype != DType::bf16)
    fail(ExitCode::bad_data, "llm.c's format has fp32 and bf16, not {}", name_of(dtype));
}

void write_llmc(const ModelSource& source, const ModelWriteOptions& options, const fs::path& file) {
  const ModelConfig& model = source.model;
  check_llmc_model(model, options.dtype);
  ModelConfig padded = model;
  padded.vocab_multiple = llmc_vocab_multiple;
  const std::int64_t padded_vocab = padded.padded_vocab();
  LlmcHeader header{};
  header[0] = llmc_model_magic;
  header[1] = options.dtype == DType::fp32 ? llmc_fp32_version : llmc_bf16_version;
  std::ranges::transform(std::initializer_list<std::int64_t>{model.context, model.vocab, model.layers,
                                                             model.heads, model.width, padded_vocab},
                         header.begin() + 2,
                         [](std::int64_t word) { return static_cast<std::int32_t>(word); });
  WeightWriter writer(source, options.dtype, file);
  writer.write(&header, sizeof header);
  const ParameterTable table = parameters_of(model);
  for (const LlmcTensor& tensor : llmc_tensors(model, padded_vocab)) {
    const TensorInfo info{tensor.name, table.find(tensor.name).shape};
    writer.write(info, tensor.transposed);
    writer.write_zeros(tensor.size() - info.size());  // the padding of the vocabulary
  }
  writer.finish();
}

}  // namespace mylos
