// SPDX-License-Identifier: BSD-3-Clause
// config.json: what mylos computes, and what it refuses because it would compute something else.
#include "io/models/hugging_face_config.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "io/json.hpp"

namespace mylos::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HuggingFaceConfig : public ::testing::Test {
 protected:
  /// A config with one more key, or with `value`, a JSON text, instead of another; "" removes the key.
  static std::string with(const std::string& key, const std::string& value) {
    Json config = Json::parse(
        R"({"model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 67})");
    config = config.without(key);
    std::vector<Json::Member> members = config.members();
    if (!value.empty()) members.emplace_back(key, Json::parse(value));
    return Json::object(members).dump();
  }

  ModelConfig parse(const std::string& text) {
    warnings_.clear();
    return parse_hugging_face_config(text, [&](const std::string& warning) { warnings_.push_back(warning); });
  }

  std::string refusal(const std::string& key, const std::string& value) { return refusal(with(key, value)); }
  std::string refusal(const std::string& text) {
    try {
      parse(text);
      return "good";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
  }

  std::vector<std::string> warnings_;
};

TEST_F(HuggingFaceConfig, GivesTheModel) {
  const ModelConfig model = parse(with("tie_word_embeddings", "false"));
  EXPECT_EQ(model.layers, 3);
  EXPECT_EQ(model.heads, 2);
  EXPECT_EQ(model.width, 16);
  EXPECT_EQ(model.context, 8);
  EXPECT_EQ(model.vocab, 67);
  EXPECT_FALSE(model.tied);
  EXPECT_EQ(model.dropout, 0.1F);
  EXPECT_TRUE(parse(with("tie_word_embeddings", "")).tied);
  EXPECT_EQ(parse(with("n_inner", "")).inner_width(), 64);
  EXPECT_EQ(parse(with("n_inner", "null")).inner_width(), 64);
  EXPECT_EQ(parse(with("n_inner", "40")).inner_width(), 40);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(HuggingFaceConfig, TakesWhatComputesTheSame) {
  EXPECT_EQ(refusal("activation_function", "\"gelu_new\""), "good");
  EXPECT_EQ(refusal("activation_function", "\"gelu_pytorch_tanh\""), "good");
  EXPECT_EQ(refusal("n_ctx", "8"), "good");
  EXPECT_EQ(refusal("layer_norm_epsilon", "0.00001"), "good");
  EXPECT_EQ(refusal("layer_norm_epsilon", "9.999999747378752e-06"), "good");
  EXPECT_EQ(refusal("quantization_config", "null"), "good");
  EXPECT_EQ(refusal("reorder_and_upcast_attn", "true"), "good");
  EXPECT_EQ(refusal("torch_dtype", "\"float16\""), "good");
}

TEST_F(HuggingFaceConfig, RefusesOtherFunctions) {
  EXPECT_THAT(refusal("activation_function", "\"gelu\""), HasSubstr("activation_function = \"gelu\""));
  EXPECT_THAT(refusal("activation_function", "\"relu\""), HasSubstr("activation_function = \"relu\""));
  EXPECT_THAT(refusal("layer_norm_epsilon", "1e-6"),
              HasSubstr("layer_norm_epsilon = 1e-06; mylos computes with"));
  EXPECT_THAT(refusal("n_ctx", "16"), HasSubstr("n_ctx = 16, but n_positions = 8"));
  EXPECT_THAT(refusal("scale_attn_by_inverse_layer_idx", "true"),
              HasSubstr("scale_attn_by_inverse_layer_idx = true; mylos computes with false"));
  EXPECT_THAT(refusal("scale_attn_weights", "false"),
              HasSubstr("scale_attn_weights = false; mylos computes with true"));
  EXPECT_THAT(refusal("add_cross_attention", "true"), HasSubstr("add_cross_attention = true"));
  EXPECT_THAT(refusal("quantization_config", "{\"bits\": 4}"), HasSubstr("quantised"));
  EXPECT_THAT(refusal("model_type", "\"llama\""), HasSubstr("model_type = \"llama\"; mylos reads gpt2"));
  EXPECT_THAT(refusal("model_type", ""), HasSubstr("has no \"model_type\""));
}

TEST_F(HuggingFaceConfig, RefusesShapes) {
  EXPECT_THAT(refusal("n_layer", ""), HasSubstr("has no \"n_layer\""));
  EXPECT_THAT(refusal("n_layer", "0"), HasSubstr("n_layer = 0 is out of range; mylos takes 1 to 1024"));
  EXPECT_THAT(refusal("n_layer", "1025"), HasSubstr("n_layer = 1025"));
  EXPECT_THAT(refusal("n_layer", "2.5"), HasSubstr("\"n_layer\" is not an integer"));
  EXPECT_THAT(refusal("n_head", "-2"), HasSubstr("n_head = -2"));
  EXPECT_THAT(refusal("n_head", "3"), HasSubstr("n_head = 3 does not divide n_embd = 16"));
  EXPECT_THAT(refusal("n_embd", "9223372036854775807"), HasSubstr("n_embd = 9223372036854775807"));
  EXPECT_THAT(refusal("n_embd", "18446744073709551615"), HasSubstr("is out of range"));
  EXPECT_THAT(refusal(R"({"n_embd": 1e400})"), HasSubstr("number overflow"));
  EXPECT_THAT(refusal("n_inner", "0"), HasSubstr("n_inner = 0 is out of range; mylos takes 1 to 4194304"));
  EXPECT_THAT(refusal("n_inner", "4194305"), HasSubstr("n_inner = 4194305"));
  EXPECT_THAT(refusal("n_inner", "2.5"), HasSubstr("\"n_inner\" is not an integer"));
  EXPECT_THAT(refusal("n_positions", "65537"), HasSubstr("n_positions = 65537"));
  EXPECT_THAT(refusal("vocab_size", "1048577"),
              HasSubstr("vocab_size = 1048577 is out of range; mylos takes 2 to 1048576"));
  EXPECT_THAT(refusal("vocab_size", "1"), HasSubstr("vocab_size = 1"));
}

TEST_F(HuggingFaceConfig, TakesTheLargestDropout) {
  EXPECT_EQ(parse(with("attn_pdrop", "0.25")).dropout, 0.25F);
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("embd_pdrop = 0.1, attn_pdrop = 0.25 and resid_pdrop = 0.1 differ")));
  EXPECT_EQ(parse(R"({"model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 16, "n_positions": 8,)"
                  R"("vocab_size": 67, "embd_pdrop": 0, "attn_pdrop": 0.0, "resid_pdrop": 0})")
                .dropout,
            0.0F);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(refusal("resid_pdrop", "1"),
              HasSubstr("resid_pdrop = 1 is out of range; mylos takes 0 to 0.99"));
  EXPECT_THAT(refusal("resid_pdrop", "-0.1"), HasSubstr("resid_pdrop = -0.1"));
  EXPECT_THAT(refusal("resid_pdrop", "\"0.1\""), HasSubstr("\"resid_pdrop\" is not a number"));
}

TEST_F(HuggingFaceConfig, RefusesTextThatIsNoConfig) {
  EXPECT_THAT(refusal(""), HasSubstr("parse error"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(refusal(R"({"n_head": 2, "n_head": 4})"), HasSubstr("has \"n_head\" twice"));
  EXPECT_THAT(refusal(R"({"n_head": 2, "n\u005fhead": 4})"), HasSubstr("has \"n_head\" twice"));
}

TEST_F(HuggingFaceConfig, IsReadBack) {
  ModelConfig model = {.layers = 3,
                       .heads = 2,
                       .width = 16,
                       .feed_forward = 40,
                       .context = 8,
                       .vocab = 67,
                       .tied = false,
                       .dropout = 0.15F};
  const std::string text = hugging_face_config(model, DType::bf16, 66);
  const ModelConfig read = parse(text);
  EXPECT_EQ(read.layers, model.layers);
  EXPECT_EQ(read.heads, model.heads);
  EXPECT_EQ(read.width, model.width);
  EXPECT_EQ(read.feed_forward, model.feed_forward);
  EXPECT_EQ(read.context, model.context);
  EXPECT_EQ(read.vocab, model.vocab);
  EXPECT_EQ(read.tied, model.tied);
  EXPECT_EQ(read.dropout, model.dropout);
  EXPECT_THAT(warnings_, IsEmpty());
  const Json json = Json::parse(text);
  EXPECT_EQ(json.at("attn_pdrop").dump(), "0.15");
  EXPECT_EQ(json.integer("n_ctx"), 8);
  EXPECT_EQ(json.integer("n_inner"), 40);
  EXPECT_EQ(json.integer("eos_token_id"), 66);
  EXPECT_EQ(json.text("dtype"), "bfloat16");
  EXPECT_EQ(json.text("torch_dtype"), "bfloat16");
  EXPECT_EQ(Json::parse(hugging_face_config(model, DType::fp16, {})).at("bos_token_id").dump(), "null");
  model.feed_forward = 64;
  EXPECT_EQ(Json::parse(hugging_face_config(model, DType::fp16, {})).at("n_inner").dump(), "null");
}

}  // namespace
}  // namespace mylos::test
