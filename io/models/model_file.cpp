// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/model_file.hpp"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/what_is_at.hpp"
#include "io/models/hugging_face_config.hpp"
#include "io/models/hugging_face_folder.hpp"
#include "io/models/llmc_file.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

enum class Content : std::uint8_t { folder, llmc, pickle, safetensors, other };

bool is_model_folder(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {hf_config_name, "pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (fs::exists(folder / name, error)) return true;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".safetensors") return true;
  return false;
}

/// A file's content, by its first bytes. PyTorch's zip archives begin with the file NAME/data.pkl.
Content content_of_file(const fs::path& file) {
  const std::string head = content_head(file);
  if (begins_as_llmc_model(head)) return Content::llmc;
  const std::string_view kind = known_format(head).name;
  if (kind == "a PyTorch file" || kind == "a Python pickle") return Content::pickle;
  if (head.starts_with("PK") && head.find("/data.pkl") != std::string::npos) return Content::pickle;
  return kind == "a safetensors file" ? Content::safetensors : Content::other;
}

Content content_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return is_model_folder(path) ? Content::folder : Content::other;
  return fs::is_regular_file(path, error) ? content_of_file(path) : Content::other;
}

}  // namespace

bool is_model_file(const fs::path& path) {
  return content_of(path) != Content::other;
}

std::unique_ptr<ModelFile> open_model_file(const fs::path& path,
                                           const std::function<void(const std::string&)>& warn) {
  switch (content_of(path)) {
    case Content::folder:
      return open_hugging_face_folder(path, warn);
    case Content::llmc:
      return open_llmc_file(path);
    case Content::pickle:
      refuse_pickled_weights(path);
    case Content::safetensors:
      fail(ExitCode::bad_data, "{} is one file of a model; name the folder that holds it and {}",
           path.string(), hf_config_name);
    case Content::other:
      break;
  }
  fail(ExitCode::bad_data, "{} is neither a Hugging Face folder nor a model file of llm.c; there is {}",
       path.string(), what_is_at(path));
}

}  // namespace mylos
