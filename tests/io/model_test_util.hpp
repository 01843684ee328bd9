// SPDX-License-Identifier: BSD-3-Clause
// For tests of models in other programs' formats: the reference folders, files made by hand, and messages.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/model/parameters.hpp"
#include "io/models/model_file.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {

/// All weights of a model, by parameter.
using Weights = std::map<std::string, std::vector<float>>;

/// The shape of the models in tests/reference/models.
inline constexpr ModelConfig reference_shape = {
    .layers = 2, .heads = 2, .width = 16, .context = 16, .vocab = 67, .dropout = 0.1F};

inline fs::path reference_model(const std::string& name) {
  return fs::path(std::getenv("MYLOS_SOURCE")) / "tests" / "reference" / "models" / name;
}

inline ModelConfig untied(ModelConfig model) {
  model.tied = false;
  return model;
}

/// The parameters, sorted by name.
inline std::map<std::string, std::vector<std::int64_t>> shapes_of(const ModelConfig& model) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const ParameterTable table = parameters_of(model);
  for (const Parameter& parameter : table.parameters()) shapes[parameter.name] = parameter.shape;
  return shapes;
}

/// The weights that tests/reference/make_model_folders.py gives a model.
inline Weights reference_weights(const ModelConfig& model) {
  Weights weights;
  std::int64_t t = 0;
  for (const auto& [name, shape] : shapes_of(untied(model))) {
    std::vector<float>& values = weights[name];
    for (std::int64_t i = 0; i < product(shape); ++i)
      values.push_back(static_cast<float>((31 * i + 17 * t) % 1009 - 504) / 4099.0F);
    ++t;
  }
  if (model.tied) weights.erase("lm_head.weight");
  return weights;
}

/// The weights rounded to `T` and back.
template <class T>
Weights rounded(Weights weights) {
  for (auto& [name, values] : weights)
    for (float& value : values) value = static_cast<float>(static_cast<T>(value));
  return weights;
}

inline std::vector<float> read_whole(const ModelFile& file, const std::string& name,
                                     const std::vector<std::int64_t>& shape) {
  const TensorInfo info{name, shape};
  std::vector<float> values(static_cast<std::size_t>(info.size()));
  file.read(info, parts_of_range(info, 0, info.size(), values.data()));
  return values;
}

inline Weights read_all(const ModelFile& file) {
  Weights weights;
  for (const auto& [name, shape] : shapes_of(file.description().model))
    weights[name] = read_whole(file, name, shape);
  return weights;
}

inline std::unique_ptr<ModelFile> open_model(const fs::path& path,
                                             std::vector<std::string>* warnings = nullptr) {
  return open_model_file(path, [=](const std::string& warning) {
    if (warnings == nullptr) {
      ADD_FAILURE() << warning;
    } else {
      warnings->push_back(warning);
    }
  });
}

/// What the file at `path` is refused with, by its headers or when all weights are read; "good" if it is not.
inline std::string model_refusal(const fs::path& path) {
  try {
    read_all(*open_model_file(path, [](const std::string&) {}));
    return "good";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data) << error.what();
    return error.what();
  }
}

/// A tensor of a safetensors file made by hand.
struct HandTensor {
  std::string dtype = "F32";
  std::vector<std::int64_t> shape;
  std::string bytes;
};

inline std::string bytes_of_floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A safetensors file with this header and these bytes after it.
inline std::string safetensors_file(const std::string& header, const std::string& data = "") {
  const std::uint64_t size = header.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof size);
  return file + header + data;
}

inline std::string safetensors_file(const std::map<std::string, HandTensor>& tensors) {
  std::vector<std::string> members;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    data += tensor.bytes;
    members.push_back(fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name,
                                  tensor.dtype, join(tensor.shape, ","), begin, data.size()));
  }
  return safetensors_file("{" + join(members, ",") + "}", data);
}

}  // namespace mylos::test
