// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/hugging_face_config.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "io/json.hpp"
#include "io/models/model_shape.hpp"

namespace mylos {

namespace {

constexpr ShapeNames config_names = {.layers = "n_layer",
                                     .heads = "n_head",
                                     .width = "n_embd",
                                     .context = "n_positions",
                                     .vocab = "vocab_size"};
constexpr std::array dropout_keys = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
constexpr double default_dropout = 0.1;
constexpr float norm_epsilon = 1e-5F;  // of mylos' layernorm
constexpr double initializer_range = 0.02;

/// Whether `json` has a value for the key; null means the same as no key.
bool has_value(const Json& json, std::string_view key) {
  return json.has(key) && json.at(key).dump() != "null";
}

bool boolean_or(const Json& json, const char* key, bool otherwise) {
  return has_value(json, key) ? json.boolean(key) : otherwise;
}

std::string text_or(const Json& json, const char* key, const char* otherwise) {
  return has_value(json, key) ? json.text(key) : otherwise;
}

/// Throws if the key is there with another value than the one that mylos computes with.
void require_boolean(const Json& json, const char* key, bool value) {
  if (boolean_or(json, key, value) != value)
    fail(ExitCode::bad_data, "{} = {}; mylos computes with {}", key, !value, value);
}

void check_architecture(const Json& json, const ModelConfig& model) {
  const std::string activation = text_or(json, "activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fail(ExitCode::bad_data,
         "activation_function = {}; mylos computes gelu_new, which is also called gelu_pytorch_tanh",
         Json(activation).ascii());
  }
  if (has_value(json, "layer_norm_epsilon") &&
      static_cast<float>(json.real("layer_norm_epsilon")) != norm_epsilon) {
    fail(ExitCode::bad_data, "layer_norm_epsilon = {}; mylos computes with 1e-05",
         json.at("layer_norm_epsilon").dump());
  }
  if (has_value(json, "n_ctx") && json.integer("n_ctx") != model.context) {
    fail(ExitCode::bad_data, "n_ctx = {}, but n_positions = {}", json.integer("n_ctx"), model.context);
  }
  require_boolean(json, "scale_attn_weights", true);
  require_boolean(json, "scale_attn_by_inverse_layer_idx", false);
  require_boolean(json, "add_cross_attention", false);
  if (has_value(json, "quantization_config"))
    fail(ExitCode::bad_data, "quantization_config: mylos does not read quantised weights");
}

std::int64_t inner_width(const Json& json) {
  const std::int64_t inner = json.integer("n_inner");
  if (inner < 1 || inner > max_feed_forward)
    fail(ExitCode::bad_data, "n_inner = {} is out of range; mylos takes 1 to {}", inner, max_feed_forward);
  return inner;
}

float dropout_of(const Json& json, const std::function<void(const std::string&)>& warn) {
  std::array<double, dropout_keys.size()> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = has_value(json, dropout_keys[i]) ? json.real(dropout_keys[i]) : default_dropout;
    if (!(values[i] >= 0.0 && static_cast<float>(values[i]) <= max_dropout)) {
      fail(ExitCode::bad_data, "{} = {} is out of range; mylos takes 0 to {}", dropout_keys[i], values[i],
           max_dropout);
    }
  }
  const auto [least, most] = std::ranges::minmax(values);
  if (least != most) {
    warn(fmt::format("{} = {}, {} = {} and {} = {} differ; mylos has one dropout and takes the largest",
                     dropout_keys[0], values[0], dropout_keys[1], values[1], dropout_keys[2], values[2]));
  }
  return static_cast<float>(most);
}

Json token(std::optional<std::int64_t> id) {
  return id ? Json(*id) : Json();
}

}  // namespace

ModelConfig parse_hugging_face_config(std::string_view text,
                                      const std::function<void(const std::string&)>& warn) {
  const Json json = Json::parse(text);
  if (!json.is_object()) fail(ExitCode::bad_data, "is not a JSON object");
  if (const std::string type = json.text("model_type"); type != "gpt2") {
    fail(ExitCode::bad_data, "model_type = {}; mylos reads gpt2", Json(type).ascii());
  }
  const auto extent = [&](std::string_view name) { return json.integer(name); };
  ModelConfig model;
  model.layers = extent(config_names.layers);
  model.heads = extent(config_names.heads);
  model.width = extent(config_names.width);
  if (has_value(json, "n_inner")) model.feed_forward = inner_width(json);
  model.context = extent(config_names.context);
  model.vocab = extent(config_names.vocab);
  model.tied = boolean_or(json, "tie_word_embeddings", true);
  check_model_shape(model, config_names);
  check_architecture(json, model);
  model.dropout = dropout_of(json, warn);
  return model;
}

std::string hugging_face_config(const ModelConfig& model, DType dtype,
                                std::optional<std::int64_t> end_of_text) {
  const char* const type = dtype == DType::fp32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
  const std::int64_t inner = model.inner_width();
  const double dropout = parse_real(fmt::format("{}", model.dropout));  // 0.1, not 0.10000000149
  const Json config = Json::object({{"activation_function", "gelu_new"},
                                    {"add_cross_attention", false},
                                    {"architectures", Json::array({"GPT2LMHeadModel"})},
                                    {"attn_pdrop", dropout},
                                    {"bos_token_id", token(end_of_text)},
                                    {"dtype", type},
                                    {"embd_pdrop", dropout},
                                    {"eos_token_id", token(end_of_text)},
                                    {"initializer_range", initializer_range},
                                    {"layer_norm_epsilon", 1e-5},
                                    {"model_type", "gpt2"},
                                    {"n_ctx", model.context},
                                    {"n_embd", model.width},
                                    {"n_head", model.heads},
                                    {"n_inner", inner == 4 * model.width ? Json() : Json(inner)},
                                    {"n_layer", model.layers},
                                    {"n_positions", model.context},
                                    {"pad_token_id", Json()},
                                    {"reorder_and_upcast_attn", false},
                                    {"resid_pdrop", dropout},
                                    {"scale_attn_by_inverse_layer_idx", false},
                                    {"scale_attn_weights", true},
                                    {"summary_activation", Json()},
                                    {"summary_first_dropout", dropout},
                                    {"summary_proj_to_labels", true},
                                    {"summary_type", "cls_index"},
                                    {"summary_use_proj", true},
                                    {"tie_word_embeddings", model.tied},
                                    {"torch_dtype", type},
                                    {"use_cache", true},
                                    {"vocab_size", model.vocab}});
  return config.dump(2) + "\n";
}

std::string hugging_face_generation_config(std::optional<std::int64_t> end_of_text) {
  const Json config = Json::object({{"_from_model_config", true},
                                    {"bos_token_id", token(end_of_text)},
                                    {"eos_token_id", token(end_of_text)},
                                    {"use_cache", true}});
  return config.dump(2) + "\n";
}

}  // namespace mylos
