// SPDX-License-Identifier: BSD-3-Clause
// llm.c's model files: those that llm.c's layout gives, round trips, and files that are refused.
#include <limits>

#include <gmock/gmock.h>

#include "io/models/llmc_file.hpp"
#include "tests/io/model_source.hpp"

namespace mylos::test {
namespace {

using ::testing::HasSubstr;

class Llmc : public ::testing::Test {
 protected:
  static std::string with_word(std::string content, std::size_t word, std::int32_t value) {
    std::memcpy(content.data() + word * sizeof value, &value, sizeof value);
    return content;
  }
  std::string refusal(const std::string& content) const {
    spill(file_, content);
    return model_refusal(file_);
  }
  std::string write_refusal(const ModelConfig& model, DType dtype) const {
    const Weights weights = reference_weights(model);
    try {
      write_llmc(source_of(model, weights), {.dtype = dtype}, file_);
      return "good";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
  }

  ScratchDirectory scratch_;
  fs::path file_ = scratch_.path() / "model.bin";
};

TEST_F(Llmc, ReadsBothVersions) {
  const Weights exact = reference_weights(reference_shape);
  const auto fp32 = open_model(reference_model("llmc_fp32.bin"));
  EXPECT_EQ(fp32->description().format, "llm.c file (version 3)");
  EXPECT_EQ(fp32->description().dtype, DType::fp32);
  EXPECT_EQ(fp32->description().model.layers, 2);
  EXPECT_EQ(fp32->description().model.heads, 2);
  EXPECT_EQ(fp32->description().model.width, 16);
  EXPECT_EQ(fp32->description().model.context, 16);
  EXPECT_EQ(fp32->description().model.vocab, 67);
  EXPECT_TRUE(fp32->description().model.tied);
  EXPECT_EQ(fp32->description().model.dropout, 0.0F);
  EXPECT_EQ(read_all(*fp32), exact);
  EXPECT_EQ(fp32->bytes_requested(), parameters_of(reference_shape).num_parameters() * 4);
  const auto bf16_file = open_model(reference_model("llmc_bf16.bin"));
  EXPECT_EQ(bf16_file->description().dtype, DType::bf16);
  EXPECT_EQ(read_all(*bf16_file), rounded<bf16>(exact));
}

TEST_F(Llmc, ReadsAnyBoxesOfATransposedMatrix) {
  const auto file = open_model(reference_model("llmc_fp32.bin"));
  const std::vector<float> whole = reference_weights(reference_shape).at("h.1.mlp.c_fc.weight");
  std::vector<float> memory(std::size_t{7} * 20, -1.0F);
  file->read({"h.1.mlp.c_fc.weight", {16, 64}},
             {{.box = {{3, 30}, {7, 20}}, .data = memory.data(), .stride = {20, 1}}});
  for (std::size_t r = 0; r < 7; ++r)
    for (std::size_t c = 0; c < 20; ++c) EXPECT_EQ(memory[r * 20 + c], whole[(3 + r) * 64 + 30 + c]);
  EXPECT_EQ(file->bytes_requested(), 7 * 20 * 4);
}

TEST_F(Llmc, WritesTheLayoutOfLlmc) {
  const Weights weights = reference_weights(reference_shape);
  for (const auto& [dtype, name] :
       {std::pair(DType::fp32, "llmc_fp32.bin"), std::pair(DType::bf16, "llmc_bf16.bin")}) {
    write_llmc(source_of(reference_shape, weights), {.dtype = dtype}, file_);
    std::string expected = slurp(reference_model(name));
    const std::size_t row = 16 * size_of(dtype);
    std::fill_n(expected.begin() + 1024 + static_cast<std::ptrdiff_t>(67 * row), (128 - 67) * row, '\0');
    EXPECT_EQ(slurp(file_), expected);
  }
}

TEST_F(Llmc, LargeTensorsGoThroughInChunks) {
  constexpr ModelConfig model = {.layers = 1, .heads = 1, .width = 768, .context = 2, .vocab = 3001};
  Weights weights;
  float value = 0.0F;
  for (const auto& [name, shape] : shapes_of(model)) {
    std::vector<float>& values = weights[name];
    values.resize(static_cast<std::size_t>(product(shape)));
    for (float& element : values) element = value = value > 3e6F ? 0.25F : value + 1.0F;
  }
  std::int64_t largest = 0;
  write_llmc(source_of(model, weights, &largest), {}, file_);
  EXPECT_LE(largest * 4, 8 << 20);
  EXPECT_EQ(fs::file_size(file_),
            1024U + 4 * (static_cast<std::size_t>(parameters_of(model).num_parameters()) +
                         std::size_t{3072 - 3001} * 768));
  EXPECT_EQ(read_all(*open_model(file_)), weights);
  const ScratchDirectory folder;
  write_hugging_face(source_of(model, weights, &largest), {}, folder.path());
  EXPECT_LE(largest * 4, 8 << 20);
  EXPECT_EQ(read_all(*open_model(folder.path())), weights);
}

TEST_F(Llmc, RefusesHeaders) {
  const std::string whole = slurp(reference_model("llmc_fp32.bin"));
  EXPECT_EQ(refusal(whole), "good");
  for (const std::int32_t version : {1, 2, 4, -3}) {
    EXPECT_THAT(refusal(with_word(whole, 1, version)),
                HasSubstr(fmt::format("offset 4: version {}; mylos reads 3 (fp32) and 5 (bf16)", version)));
  }
  EXPECT_THAT(refusal(with_word(whole, 1, 5)),
              HasSubstr("has 36608 bytes; a llm.c file (version 5) with its header has"));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() - 1)), HasSubstr("has 36607 bytes"));
  EXPECT_THAT(refusal(whole + "x"), HasSubstr("has 36609 bytes"));
  EXPECT_THAT(refusal(whole.substr(0, 1023)), HasSubstr("has 1023 bytes; a model file of llm.c begins with"));
  EXPECT_THAT(refusal(with_word(whole, 2, 0)), HasSubstr("longest sequence (word 2) = 0 is out of range"));
  EXPECT_THAT(refusal(with_word(whole, 3, 1048577)), HasSubstr("vocabulary (word 3) = 1048577"));
  EXPECT_THAT(refusal(with_word(whole, 3, 129)),
              HasSubstr("padded vocabulary (word 7) = 128 is less than vocabulary"));
  EXPECT_THAT(refusal(with_word(whole, 4, 2000000000)), HasSubstr("layers (word 4) = 2000000000"));
  EXPECT_THAT(refusal(with_word(whole, 4, 3)), HasSubstr("has 36608 bytes"));
  EXPECT_THAT(refusal(with_word(whole, 5, 3)),
              HasSubstr("heads (word 5) = 3 does not divide channels (word 6) = 16"));
  EXPECT_THAT(refusal(with_word(whole, 6, -16)), HasSubstr("channels (word 6) = -16"));
  EXPECT_THAT(refusal(with_word(whole, 7, std::numeric_limits<std::int32_t>::max())),
              HasSubstr("has 36608 bytes"));
  EXPECT_THAT(refusal(with_word(whole, 7, -1)), HasSubstr("padded vocabulary (word 7) = -1"));
}

TEST_F(Llmc, RefusesValuesThatAreNotFinite) {
  const std::string whole = slurp(reference_model("llmc_fp32.bin"));
  constexpr std::int32_t nan = 0x7fc00000;
  const std::size_t first =
      256 + (128 + 16) * 16 + 4 * 16;  // of h.0.attn.c_attn.weight, after ln_1 of two layers
  EXPECT_THAT(refusal(with_word(whole, first + 5 * 16 + 2, nan)),
              HasSubstr("tensor h.0.attn.c_attn.weight is nan at [2, 5]"));
  EXPECT_EQ(refusal(with_word(whole, 256 + 67 * 16, nan)), "good");  // padding is not read
}

TEST_F(Llmc, RefusesModelsThatTheFormatCannotHold) {
  EXPECT_THAT(write_refusal(untied(reference_shape), DType::fp32), HasSubstr("has no head of its own"));
  EXPECT_THAT(write_refusal(reference_shape, DType::fp16),
              HasSubstr("llm.c's format has fp32 and bf16, not fp16"));
  ModelConfig narrow = reference_shape;
  narrow.feed_forward = 40;
  EXPECT_THAT(write_refusal(narrow, DType::fp32),
              HasSubstr("feed-forward layers of four times the width, 64, but the model's have 40"));
  EXPECT_FALSE(fs::exists(file_));
}

}  // namespace
}  // namespace mylos::test
