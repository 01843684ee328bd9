// SPDX-License-Identifier: BSD-3-Clause
// Writing Hugging Face folders: the bytes that transformers writes, round trips, and values that do not fit.
#include <limits>

#include <gmock/gmock.h>

#include "io/json.hpp"
#include "io/models/model_writer.hpp"
#include "tests/io/model_source.hpp"

namespace mylos::test {
namespace {

using ::testing::HasSubstr;

/// The text of the header of a safetensors file.
std::string header_text(const fs::path& file) {
  const std::string content = slurp(file);
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof length);
  return content.substr(sizeof length, length);
}

TEST(HuggingFaceWriter, WritesTheBytesThatTransformersWrites) {
  const ScratchDirectory scratch;
  const Weights weights = reference_weights(reference_shape);
  write_hugging_face(source_of(reference_shape, weights), {.end_of_text = 66}, scratch.path());
  const fs::path reference = reference_model("fp32");
  EXPECT_EQ(slurp(scratch.path() / "model.safetensors"), slurp(reference / "model.safetensors"));
  // The texts have no version of transformers; config.json has two keys more.
  const Json config = Json::parse(slurp(scratch.path() / "config.json"));
  const Json expected = Json::parse(slurp(reference / "config.json")).without("transformers_version");
  EXPECT_EQ(config.without("n_ctx").without("torch_dtype").dump(2), expected.dump(2));
  const Json generation = Json::parse(slurp(reference / "generation_config.json"));
  EXPECT_EQ(Json::parse(slurp(scratch.path() / "generation_config.json")).dump(),
            generation.without("transformers_version")
                .without("output_attentions")
                .without("output_hidden_states")
                .dump());
}

TEST(HuggingFaceWriter, WhatIsReadIsWhatWasWritten) {
  for (const bool tied : {true, false}) {
    const ModelConfig model = tied ? reference_shape : untied(reference_shape);
    const Weights exact = reference_weights(model);
    const std::pair<DType, Weights> cases[] = {
        {DType::fp32, exact}, {DType::bf16, rounded<bf16>(exact)}, {DType::fp16, rounded<fp16>(exact)}};
    for (const auto& [dtype, expected] : cases) {
      const ScratchDirectory scratch;
      write_hugging_face(source_of(model, exact), {.dtype = dtype}, scratch.path());
      const auto file = open_model(scratch.path());
      EXPECT_EQ(file->description().dtype, dtype);
      EXPECT_EQ(file->description().model.tied, tied);
      EXPECT_EQ(file->description().model.dropout, model.dropout);
      EXPECT_EQ(read_all(*file), expected);
      // From the file, the same file again.
      const ScratchDirectory again;
      const ModelSource source = {file->description().model,
                                  [&](const auto& tensor, const auto& parts) { file->read(tensor, parts); }};
      write_hugging_face(source, {.dtype = dtype}, again.path());
      for (const char* name : {"model.safetensors", "config.json", "generation_config.json"})
        EXPECT_EQ(slurp(again.path() / name), slurp(scratch.path() / name)) << name;
    }
  }
}

TEST(HuggingFaceWriter, KeepsMetadataAsText) {
  const ScratchDirectory scratch;
  write_hugging_face(source_of(reference_shape, reference_weights(reference_shape)),
                     {.metadata = {{"mylos.run", "caf\xe9/\"r\n"}, {"mylos.step", "12"}}}, scratch.path());
  const std::string header = header_text(scratch.path() / "model.safetensors");
  EXPECT_EQ(header.size() % 8, 0U);
  EXPECT_TRUE(header.starts_with(R"({"__metadata__":{"format":"pt","mylos.run":"caf)"
                                 "\xef\xbf\xbd"
                                 R"(/\"r\n","mylos.step":"12"},"transformer.h.0.attn.c_attn.bias":)"))
      << header;
  open_model(scratch.path());
}

TEST(HuggingFaceWriter, RefusesValuesThatTheTypeCannotHold) {
  const ScratchDirectory scratch;
  const auto refusal = [&](float value, DType dtype) -> std::string {
    Weights weights = reference_weights(reference_shape);
    weights["h.1.mlp.c_fc.weight"][2 * 64 + 3] = value;
    try {
      write_hugging_face(source_of(reference_shape, weights), {.dtype = dtype}, scratch.path());
      return "good";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
  };
  EXPECT_EQ(refusal(-65504.0F, DType::fp16), "good");
  EXPECT_EQ(refusal(65519.0F, DType::fp16), "good");
  EXPECT_EQ(refusal(65520.0F, DType::fp16),
            "tensor h.1.mlp.c_fc.weight is 65520 at [2, 3], beyond the range of fp16; bf16 or fp32 holds it");
  EXPECT_THAT(refusal(-1e5F, DType::fp16), HasSubstr("is -100000 at [2, 3]"));
  constexpr float largest = std::numeric_limits<float>::max();
  EXPECT_THAT(refusal(largest, DType::bf16), HasSubstr("at [2, 3], beyond the range of bf16; fp32 holds it"));
  EXPECT_EQ(refusal(largest, DType::fp32), "good");
  EXPECT_EQ(refusal(std::numeric_limits<float>::infinity(), DType::fp32),
            "tensor h.1.mlp.c_fc.weight is inf at [2, 3]");
  EXPECT_EQ(refusal(std::numeric_limits<float>::quiet_NaN(), DType::bf16),
            "tensor h.1.mlp.c_fc.weight is nan at [2, 3]");
}

TEST(HuggingFaceWriter, NeedsAFolder) {
  const ScratchDirectory scratch;
  const Weights weights = reference_weights(reference_shape);
  try {
    write_hugging_face(source_of(reference_shape, weights), {}, scratch.path() / "missing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
  }
}

}  // namespace
}  // namespace mylos::test
