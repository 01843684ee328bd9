// SPDX-License-Identifier: BSD-3-Clause
// config.json of Hugging Face: any text either gives a model that is written and read back, or is refused as
// bad data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.hpp"
#include "io/models/hugging_face_config.hpp"
#include "io/models/model_shape.hpp"

namespace {

using namespace mylos;

void ignore(const std::string& /*warning*/) {}

bool is_same(const ModelConfig& a, const ModelConfig& b) {
  return a.layers == b.layers && a.heads == b.heads && a.width == b.width &&
         a.inner_width() == b.inner_width() && a.context == b.context && a.vocab == b.vocab &&
         a.tied == b.tied && a.dropout == b.dropout;
}

}  // namespace

/// The bits of byte 0 say which keys come before the rest of the input; if none does, that is the whole text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  constexpr const char* members[] = {"\"model_type\":\"gpt2\",", "\"n_layer\":2,",     "\"n_head\":2,",
                                     "\"n_embd\":16,",           "\"n_positions\":8,", "\"vocab_size\":67,",
                                     "\"n_inner\":40,",          "\"n_ctx\":8,"};
  std::string text = data[0] == 0 ? "" : "{";
  for (std::size_t i = 0; i < std::size(members); ++i)
    if ((data[0] >> i & 1U) != 0) text += members[i];
  text.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] != 0) text += "}";
  try {
    const ModelConfig model = parse_hugging_face_config(text, ignore);
    if (model.width > max_width || model.width % model.heads != 0 || model.vocab > max_vocab) std::abort();
    if (model.inner_width() < 1 || model.inner_width() > max_feed_forward) std::abort();
    if (!(model.dropout >= 0.0F && model.dropout <= max_dropout)) std::abort();
    const std::string written = hugging_face_config(model, DType::fp32, {});
    if (!is_same(model, parse_hugging_face_config(written, ignore))) std::abort();
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data) std::abort();
  }
  return 0;
}
