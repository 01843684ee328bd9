// SPDX-License-Identifier: BSD-3-Clause
// A Hugging Face folder: config.json and safetensors files.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "io/models/model_file.hpp"

namespace mylos {

/// Opens a folder with config.json and either model.safetensors or the shards that
/// model.safetensors.index.json lists. Throws as open_model_file.
std::unique_ptr<ModelFile> open_hugging_face_folder(const std::filesystem::path& folder,
                                                    const std::function<void(const std::string&)>& warn);

/// Refuses `path`, which holds pickled weights, with the reason and the way to convert them.
[[noreturn]] void refuse_pickled_weights(const std::filesystem::path& path);

}  // namespace mylos
