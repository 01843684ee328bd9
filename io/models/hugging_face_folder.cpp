// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/hugging_face_folder.hpp"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/what_is_at.hpp"
#include "core/model/parameters.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/models/hugging_face_config.hpp"
#include "io/models/safetensors_header.hpp"
#include "io/models/stored_weights.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

using WarnFunction = std::function<void(const std::string&)>;

constexpr std::size_t max_config_bytes = std::size_t{1} << 20U;
constexpr std::size_t max_index_bytes = std::size_t{4} << 20U;
constexpr std::string_view model_prefix = "transformer.";
constexpr std::string_view embedding_name = "wte.weight";
constexpr std::string_view head_name = "lm_head.weight";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string extents_text(std::span<const std::int64_t> shape) {
  return fmt::format("({})", join(shape, ", "));
}

/// Name of a parameter, without the prefix that the whole model's tensors have.
std::string_view parameter_name(std::string_view name) {
  const std::string_view rest =
      name.starts_with(model_prefix) ? name.substr(model_prefix.size()) : std::string_view();
  return rest.empty() || rest == head_name ? name : rest;
}

/// Whether a tensor is one of the masks that older versions stored: h.0.attn.bias, h.0.attn.masked_bias.
bool is_mask(std::string_view parameter) {
  constexpr std::string_view block = "h.";
  if (!parameter.starts_with(block)) return false;
  parameter.remove_prefix(block.size());
  const std::size_t digits = std::min(parameter.find_first_not_of("0123456789"), parameter.size());
  const std::string_view rest = parameter.substr(digits);
  return digits > 0 && (rest == ".attn.bias" || rest == ".attn.masked_bias");
}

std::optional<DType> weight_type(std::string_view name) {
  if (name == "F32") return DType::fp32;
  if (name == "BF16") return DType::bf16;
  if (name == "F16") return DType::fp16;
  return std::nullopt;
}

/// Names for a message: the first few, and how many there are.
class SomeNames {
 public:
  void add(const std::string& name) {
    constexpr std::size_t most = 3;
    if (++count_ <= most) first_.push_back(name);
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    return join(first_, ", ") + (count_ > first_.size() ? fmt::format(" ... ({} in all)", count_) : "");
  }

 private:
  std::vector<std::string> first_;
  std::size_t count_ = 0;
};

/// Throws unless `name`, which the index gives to a file, is that of a file in the folder itself. The cache
/// of the Hugging Face Hub has links to its own folder of files instead.
void check_inside(const fs::path& folder, const std::string& name) {
  const fs::path index = folder / hf_index_name;
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    fail(ExitCode::bad_data, "{}: weight_map names {}, which is not a file of this folder", index.string(),
         in_quotes(name));
  }
  if (!is_there(folder / name)) {
    fail(ExitCode::bad_data, "{}: weight_map names {}; there is {}", index.string(), in_quotes(name),
         what_is_at(folder / name));
  }
  const fs::path real = fs::canonical(folder / name).parent_path();
  const fs::path real_folder = fs::canonical(folder);
  if (real != real_folder && real != real_folder.parent_path().parent_path() / "blobs") {
    fail(ExitCode::bad_data, "{}: weight_map names {}, a link to {}, outside this folder", index.string(),
         in_quotes(name), fs::canonical(folder / name).string());
  }
}

using WeightMap = std::map<std::string, std::string>;  // tensor -> shard

WeightMap read_index(const fs::path& folder) {
  const fs::path index = folder / hf_index_name;
  const std::string text = read_text_file(index, max_index_bytes);
  WeightMap map = at_place(index.string(), [&] {
    WeightMap shards;
    const Json weight_map = Json::parse(text).at("weight_map");
    if (!weight_map.is_object() || weight_map.members().empty())
      fail(ExitCode::bad_data, "\"weight_map\" is not an object with members");
    for (const auto& [tensor, shard] : weight_map.members()) shards[tensor] = weight_map.text(tensor);
    return shards;
  });
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map)
    if (shards.insert(shard).second) check_inside(folder, shard);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model-") && name.ends_with(".safetensors") && !shards.contains(name))
      fail(ExitCode::bad_data, "{} does not name {}, a shard in its folder", index.string(), name);
  }
  return map;
}

class HuggingFaceFolder final : public ModelFile {
 public:
  HuggingFaceFolder(fs::path folder, const WarnFunction& warn) : folder_(std::move(folder)) {
    description_.format = "Hugging Face folder";
    description_.model = read_config(warn);
    const ParameterTable table = parameters_of(description_.model);
    for (const Parameter& parameter : table.parameters()) shapes_[parameter.name] = parameter.shape;
    if (is_there(folder_ / hf_weights_name)) {
      if (is_there(folder_ / hf_index_name)) {
        warn(fmt::format("{} has {} and {}; the first is read", folder_.string(), hf_weights_name,
                         hf_index_name));
      }
      add_file(hf_weights_name);
    } else if (is_there(folder_ / hf_index_name)) {
      add_shards();
    } else {
      refuse_without_weights();
    }
    check_complete();
    const DType first = tensors_.begin()->second.dtype;
    const bool is_one =
        std::ranges::all_of(tensors_, [&](const auto& tensor) { return tensor.second.dtype == first; });
    description_.dtype = is_one ? first : DType::fp32;
  }

  const ModelDescription& description() const override { return description_; }

  void read(const TensorInfo& tensor, const std::vector<TensorPart>& parts) const override {
    check_parts(tensor, parts);
    const auto shape = shapes_.find(tensor.name);
    require(shape != shapes_.end() && shape->second == tensor.shape, "a tensor of the model");
    const StoredTensor& stored = tensors_.at(tensor.name);
    for (const TensorPart& part : parts) {
      weights_.read(stored, part);
      if (tensor.name == embedding_name && stored_head_) check_head(part);
    }
  }

  std::int64_t bytes_requested() const override { return weights_.bytes_requested(); }

 private:
  ModelConfig read_config(const WarnFunction& warn) const {
    const fs::path file = folder_ / hf_config_name;
    if (!is_there(file)) {
      fail(ExitCode::bad_data, "{} has no {}, which gives the model's shape", folder_.string(),
           hf_config_name);
    }
    const std::string text = read_text_file(file, max_config_bytes);
    return at_place(file.string(), [&] {
      return parse_hugging_face_config(
          text, [&](const std::string& message) { warn(file.string() + ": " + message); });
    });
  }

  [[noreturn]] void refuse_without_weights() const {
    for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
      if (is_there(folder_ / name)) refuse_pickled_weights(folder_ / name);
    SomeNames others;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
      if (entry.path().extension() == ".safetensors") others.add(entry.path().filename().string());
    fail(ExitCode::bad_data, "{} has neither {} nor {}{}", folder_.string(), hf_weights_name, hf_index_name,
         others.empty() ? "" : "; it has " + others.text());
  }

  /// Opens a file and adds the tensors of its header. Calls visit(tensor) for each, also for those that are
  /// ignored.
  void add_file(const std::string& name, const std::function<void(const SafetensorsTensor&)>& visit = {}) {
    const fs::path path = folder_ / name;
    FileDescriptor open = open_file(path, O_RDONLY | O_NONBLOCK);  // does not wait for a pipe's writer
    const std::vector<SafetensorsTensor> tensors = read_safetensors_header(open.get(), path);
    const std::size_t number = weights_.add(std::move(open), path);
    SomeNames unexpected;
    for (const SafetensorsTensor& tensor : tensors) {
      if (visit) visit(tensor);
      const std::string parameter(parameter_name(tensor.name));
      if (is_mask(parameter)) continue;
      const bool is_head = description_.model.tied && parameter == head_name;
      const auto shape = shapes_.find(std::string(is_head ? embedding_name : parameter));
      if (shape == shapes_.end()) {
        unexpected.add(in_quotes(tensor.name));
        continue;
      }
      add(tensor, path, number, parameter, shape->second, is_head);
    }
    if (!unexpected.empty()) {
      fail(ExitCode::bad_data, "{} has tensors that the GPT-2 of {} does not have: {}", path.string(),
           hf_config_name, unexpected.text());
    }
  }

  void add(const SafetensorsTensor& tensor, const fs::path& path, std::size_t number,
           const std::string& parameter, const std::vector<std::int64_t>& shape, bool is_head) {
    if (tensor.shape != shape) {
      const bool is_transposed = std::ranges::equal(tensor.shape, std::vector(shape.rbegin(), shape.rend()));
      fail(ExitCode::bad_data, "{}: tensor {} has shape {}{}; {} makes it {}", path.string(), tensor.name,
           extents_text(tensor.shape), is_transposed ? ", transposed" : "", hf_config_name,
           extents_text(shape));
    }
    const std::optional<DType> dtype = weight_type(tensor.dtype);
    if (!dtype) {
      fail(ExitCode::bad_data, "{}: tensor {} has type {}; mylos reads F32, BF16 and F16", path.string(),
           tensor.name, tensor.dtype);
    }
    const bool is_matrix = shape.size() == 2;
    StoredTensor stored{.name = tensor.name,
                        .file = number,
                        .offset = tensor.begin,
                        .dtype = *dtype,
                        .rows = is_matrix ? shape[0] : 1,
                        .columns = shape.back()};
    if (is_head) {
      if (stored_head_) refuse_twice(*stored_head_, stored);
      stored_head_ = std::move(stored);
      return;
    }
    const auto [place, is_new] = tensors_.try_emplace(parameter, stored);
    if (!is_new) refuse_twice(place->second, stored);
  }

  [[noreturn]] void refuse_twice(const StoredTensor& first, const StoredTensor& second) const {
    fail(ExitCode::bad_data, "{} has a tensor twice: {} in {} and {} in {}", folder_.string(), first.name,
         weights_.file(first.file).filename().string(), second.name,
         weights_.file(second.file).filename().string());
  }

  void add_shards() {
    const fs::path index = folder_ / hf_index_name;
    WeightMap rest = read_index(folder_);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : rest) shards.insert(shard);
    allow_open_files(shards.size());
    for (const std::string& shard : shards) {
      add_file(shard, [&](const SafetensorsTensor& tensor) {
        const auto place = rest.find(tensor.name);
        if (place == rest.end()) {
          fail(ExitCode::bad_data, "{}: tensor {} is in {}, but not in weight_map, or in several shards",
               index.string(), in_quotes(tensor.name), shard);
        }
        if (place->second != shard) {
          fail(ExitCode::bad_data, "{}: weight_map puts tensor {} into {}, but it is in {}", index.string(),
               in_quotes(tensor.name), in_quotes(place->second), shard);
        }
        rest.erase(place);
      });
    }
    if (!rest.empty()) {
      fail(ExitCode::bad_data, "{}: weight_map puts tensor {} into {}, which does not have it",
           index.string(), in_quotes(rest.begin()->first), in_quotes(rest.begin()->second));
    }
  }

  void check_complete() const {
    SomeNames missing;
    for (const auto& [name, shape] : shapes_)
      if (!tensors_.contains(name)) missing.add(name);
    if (missing.text() == head_name) {
      fail(ExitCode::bad_data, "{} lacks the tensor {}, which tie_word_embeddings = false in {} asks for",
           folder_.string(), head_name, hf_config_name);
    }
    if (!missing.empty()) {
      fail(ExitCode::bad_data, "{} lacks tensors of the GPT-2 of its {}: {}", folder_.string(),
           hf_config_name, missing.text());
    }
  }

  /// Compares a part of the token embedding that was read with the head that is stored beside it.
  void check_head(const TensorPart& part) const {
    constexpr std::int64_t most_bytes = std::int64_t{1} << 20U;
    std::vector<float> head;
    for (const TensorPart& rows : cut(part, most_bytes)) {
      head.resize(static_cast<std::size_t>(rows.box.size()));
      const std::int64_t columns = rows.box.count[1];
      weights_.read(*stored_head_, {.box = rows.box, .data = head.data(), .stride = {columns, 1}});
      for (std::int64_t r = 0; r < rows.box.count[0]; ++r) {
        const float* own = rows.data + r * rows.stride[0];
        const float* other = head.data() + r * columns;
        const auto [a, b] = std::mismatch(own, own + columns, other);
        if (a == own + columns) continue;
        const StoredTensor& embedding = tensors_.at(std::string(embedding_name));
        fail(ExitCode::bad_data,
             "{}: tensor {} differs from {}, though tie_word_embeddings = true in {}: at [{}, {}], {} and {}",
             weights_.file(stored_head_->file).string(), stored_head_->name, embedding.name, hf_config_name,
             rows.box.start[0] + r, rows.box.start[1] + (a - own), *b, *a);
      }
    }
  }

  fs::path folder_;
  ModelDescription description_;
  std::map<std::string, std::vector<std::int64_t>, std::less<>> shapes_;  // of all parameters
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::optional<StoredTensor> stored_head_;  // of a tied model
  StoredWeights weights_;
};

}  // namespace

std::unique_ptr<ModelFile> open_hugging_face_folder(const fs::path& folder, const WarnFunction& warn) {
  return std::make_unique<HuggingFaceFolder>(folder, warn);
}

void refuse_pickled_weights(const fs::path& path) {
  fail(ExitCode::bad_data,
       "{} holds pickled weights, and reading pickle executes code that it holds; mylos reads safetensors. "
       "For a "
       "transformers model that you trust, AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW) "
       "writes them; for nanoGPT's ckpt.pt, see docs/models.md",
       path.string());
}

}  // namespace mylos
