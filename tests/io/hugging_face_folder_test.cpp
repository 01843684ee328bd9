// SPDX-License-Identifier: BSD-3-Clause
// Hugging Face folders: those that transformers wrote, any boxes of them, and what is refused.
#include "io/models/hugging_face_folder.hpp"

#include <limits>

#include <gmock/gmock.h>

#include "io/json.hpp"
#include "tests/io/model_test_util.hpp"

namespace mylos::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HuggingFaceReference, OneFileInFp32) {
  const auto file = open_model(reference_model("fp32"));
  const ModelDescription& description = file->description();
  EXPECT_EQ(description.format, "Hugging Face folder");
  EXPECT_EQ(description.dtype, DType::fp32);
  EXPECT_EQ(description.model.layers, reference_shape.layers);
  EXPECT_EQ(description.model.heads, reference_shape.heads);
  EXPECT_EQ(description.model.dropout, 0.1F);
  EXPECT_TRUE(description.model.tied);
  EXPECT_EQ(file->bytes_requested(), 0);
  EXPECT_EQ(read_all(*file), reference_weights(reference_shape));
  EXPECT_EQ(file->bytes_requested(), parameters_of(reference_shape).num_parameters() * 4);
}

TEST(HuggingFaceReference, ShardsInBf16WithAHead) {
  const auto file = open_model(reference_model("bf16_shards"));
  EXPECT_EQ(file->description().dtype, DType::bf16);
  EXPECT_FALSE(file->description().model.tied);
  EXPECT_EQ(read_all(*file), rounded<bf16>(reference_weights(untied(reference_shape))));
  EXPECT_EQ(file->bytes_requested(), parameters_of(untied(reference_shape)).num_parameters() * 2);
}

TEST(HuggingFaceReference, OldFileInSeveralTypesWithMasksAndATiedHead) {
  std::vector<std::string> warnings;
  const auto file = open_model(reference_model("fp16_bare"), &warnings);
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("config.json: embd_pdrop = 0.05, attn_pdrop = 0 and resid_pdrop")));
  EXPECT_EQ(file->description().dtype, DType::fp32);
  const Weights exact = reference_weights(reference_shape);
  Weights expected = rounded<fp16>(exact);
  expected["wpe.weight"] = exact.at("wpe.weight");
  for (const char* name : {"ln_f.weight", "ln_f.bias"}) expected[name] = rounded<bf16>(exact).at(name);
  EXPECT_EQ(read_all(*file), expected);
}

TEST(HuggingFaceReference, AnyBoxesIntoAnyStrides) {
  const auto file = open_model(reference_model("fp32"));
  const std::vector<float> whole = reference_weights(reference_shape).at("h.1.attn.c_attn.weight");
  const TensorInfo info{"h.1.attn.c_attn.weight", {16, 48}};
  // The columns of one head of query, key and value, as a tensor rank holds them, and some whole rows.
  std::vector<float> memory(std::size_t{16} * 24, -1.0F);
  std::vector<TensorPart> parts;
  for (std::int64_t i = 0; i < 3; ++i)
    parts.push_back({.box = {{0, 16 * i + 8}, {16, 8}}, .data = memory.data() + 8 * i, .stride = {24, 1}});
  std::vector<float> rows(std::size_t{5} * 48);
  parts.push_back({.box = {{11, 0}, {5, 48}}, .data = rows.data(), .stride = {48, 1}});
  parts.push_back({.box = {{11, 3}, {0, 4}}, .data = nullptr, .stride = {4, 1}});
  file->read(info, parts);
  for (std::size_t r = 0; r < 16; ++r)
    for (std::size_t c = 0; c < 24; ++c)
      EXPECT_EQ(memory[r * 24 + c], whole[r * 48 + c / 8 * 16 + 8 + c % 8]) << r << " " << c;
  EXPECT_EQ(rows, std::vector<float>(whole.begin() + 11 * 48, whole.end()));
  EXPECT_EQ(file->bytes_requested(), (16 * 24 + 5 * 48) * 4);
}

/// A folder with a small model that a test changes before it is opened.
class HuggingFaceFolder : public ::testing::Test {
 protected:
  HuggingFaceFolder() {
    config_ = {{"model_type", "gpt2"}, {"n_layer", 1},     {"n_head", 2},
               {"n_embd", 4},          {"n_positions", 3}, {"vocab_size", 5},
               {"attn_pdrop", 0},      {"embd_pdrop", 0},  {"resid_pdrop", 0}};
    const ModelConfig model = {.layers = 1, .heads = 2, .width = 4, .context = 3, .vocab = 5};
    for (const auto& [name, shape] : shapes_of(model)) tensors_["transformer." + name] = tensor(shape);
  }

  static HandTensor tensor(const std::vector<std::int64_t>& shape) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < product(shape); ++i) values.push_back(static_cast<float>(i) * 0.25F - 1.0F);
    return {"F32", shape, bytes_of_floats(values)};
  }

  void write_config() const {
    spill(path_ / "config.json", Json::object({config_.begin(), config_.end()}).dump());
  }
  std::string refusal() const {
    write_config();
    spill(path_ / "model.safetensors", safetensors_file(tensors_));
    return model_refusal(path_);
  }

  /// Writes shards of a tensor each, named by `shard_of`, and an index of all of them.
  void write_shards() {
    write_config();
    std::map<std::string, std::map<std::string, HandTensor>> shards;
    for (const auto& [name, tensor] : tensors_) {
      const std::string shard = shard_name(shards.size() % 3);
      shards[shard][name] = tensor;
      if (!index_.contains(name)) index_[name] = shard;
    }
    for (const auto& [name, tensors] : shards) spill(path_ / name, safetensors_file(tensors));
    write_index();
  }
  static std::string shard_name(std::size_t number) {
    return fmt::format("model-{:05}-of-00003.safetensors", number);
  }
  void write_index() const {
    std::vector<Json::Member> members;
    for (const auto& [name, shard] : index_) members.emplace_back(name, shard);
    spill(path_ / "model.safetensors.index.json",
          Json::object({{"weight_map", Json::object(members)}}).dump());
  }
  std::string shards_refusal() {
    write_shards();
    return model_refusal(path_);
  }

  ScratchDirectory scratch_;
  fs::path path_ = scratch_.path();
  std::map<std::string, Json> config_;
  std::map<std::string, HandTensor> tensors_;
  std::map<std::string, std::string> index_;
};

TEST_F(HuggingFaceFolder, TakesBothSpellingsInOneFile) {
  EXPECT_EQ(refusal(), "good");
  auto node = tensors_.extract("transformer.wpe.weight");
  node.key() = "wpe.weight";
  tensors_.insert(std::move(node));
  EXPECT_EQ(refusal(), "good");
}

TEST_F(HuggingFaceFolder, RefusesMissingTensors) {
  tensors_.erase("transformer.h.0.ln_1.bias");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr(path_.string()), HasSubstr("lacks tensors"), HasSubstr(": h.0.ln_1.bias")));
  config_["n_layer"] = 2;
  EXPECT_THAT(refusal(), HasSubstr("(13 in all)"));
}

TEST_F(HuggingFaceFolder, RefusesUnexpectedTensors) {
  for (const char* name :
       {"score.weight", "h.1.ln_1.bias", "transformer.lm_head.weight", "transformer.",
        "h.0.attn.c_attn.masked_bias", "h..attn.bias", "transformer.transformer.wpe.weight"}) {
    tensors_[name] = tensor({4});
    EXPECT_THAT(refusal(), AllOf(HasSubstr("model.safetensors has tensors that"), HasSubstr(name)));
    tensors_.erase(name);
  }
}

TEST_F(HuggingFaceFolder, RefusesATensorInBothSpellings) {
  tensors_["ln_f.bias"] = tensors_["transformer.ln_f.bias"];
  EXPECT_THAT(refusal(), HasSubstr("has a tensor twice: ln_f.bias in model.safetensors and "
                                   "transformer.ln_f.bias in model.safetensors"));
}

TEST_F(HuggingFaceFolder, RefusesOtherShapes) {
  tensors_["transformer.wte.weight"] = tensor({6, 4});
  EXPECT_THAT(refusal(),
              HasSubstr("tensor transformer.wte.weight has shape (6, 4); config.json makes it (5, 4)"));
  tensors_["transformer.wte.weight"] = tensor({5, 4, 1});
  EXPECT_THAT(refusal(), HasSubstr("has shape (5, 4, 1);"));
  tensors_["transformer.wte.weight"] = tensor({5, 4});
  tensors_["transformer.h.0.mlp.c_fc.weight"] = tensor({16, 4});
  EXPECT_THAT(refusal(), HasSubstr("has shape (16, 4), transposed; config.json makes it (4, 16)"));
}

TEST_F(HuggingFaceFolder, RefusesOtherTypes) {
  tensors_["transformer.ln_f.bias"] = {"F64", {4}, std::string(32, '\0')};
  EXPECT_THAT(refusal(),
              HasSubstr("tensor transformer.ln_f.bias has type F64; mylos reads F32, BF16 and F16"));
  tensors_["transformer.ln_f.bias"] = {"I8", {4}, std::string(4, '\0')};
  EXPECT_THAT(refusal(), HasSubstr("has type I8"));
}

TEST_F(HuggingFaceFolder, RefusesValuesThatAreNotFinite) {
  std::vector<float> values(20, 1.0F);
  values[9] = std::numeric_limits<float>::infinity();
  tensors_["transformer.wte.weight"].bytes = bytes_of_floats(values);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.safetensors: "),
                               HasSubstr("tensor transformer.wte.weight is inf at [2, 1]")));
  values[9] = std::numeric_limits<float>::quiet_NaN();
  tensors_["transformer.wte.weight"].bytes = bytes_of_floats(values);
  EXPECT_THAT(refusal(), HasSubstr("is nan at [2, 1]"));
  values[9] = std::numeric_limits<float>::max();
  tensors_["transformer.wte.weight"].bytes = bytes_of_floats(values);
  EXPECT_EQ(refusal(), "good");
  tensors_["transformer.ln_f.bias"] = {"F16", {4}, std::string("\0\x7b\0\x7b\0\xfc\0\0", 8)};
  EXPECT_THAT(refusal(), HasSubstr("tensor transformer.ln_f.bias is -inf at [2]"));
  tensors_["transformer.ln_f.bias"] = {"BF16", {4}, std::string("\x7f\x7f\x81\x7f\0\0\0\0", 8)};
  EXPECT_THAT(refusal(), HasSubstr("tensor transformer.ln_f.bias is nan at [1]"));
}

TEST_F(HuggingFaceFolder, AStoredHeadOfATiedModelMustBeTheEmbedding) {
  tensors_["lm_head.weight"] = tensors_["transformer.wte.weight"];
  EXPECT_EQ(refusal(), "good");
  tensors_["lm_head.weight"].bytes[4 * 13 + 2] ^= 1;
  EXPECT_THAT(refusal(), HasSubstr("tensor lm_head.weight differs from transformer.wte.weight, though "
                                   "tie_word_embeddings = true in config.json: at [3, 1]"));
  // A rank that holds only other rows of it does not find that; the one that holds them does.
  const auto file = open_model(path_);
  std::vector<float> rows(8);
  const TensorInfo info{"wte.weight", {5, 4}};
  EXPECT_NO_THROW(file->read(info, {{.box = {{1, 0}, {2, 4}}, .data = rows.data(), .stride = {4, 1}}}));
  EXPECT_THROW(file->read(info, {{.box = {{3, 0}, {2, 2}}, .data = rows.data(), .stride = {2, 1}}}), Error);
  tensors_["lm_head.weight"] = tensor({4, 5});
  EXPECT_THAT(refusal(), HasSubstr("tensor lm_head.weight has shape (4, 5), transposed"));
}

TEST_F(HuggingFaceFolder, AnUntiedModelNeedsAHead) {
  config_["tie_word_embeddings"] = false;
  EXPECT_THAT(refusal(), HasSubstr("lacks the tensor lm_head.weight, which tie_word_embeddings = false"));
  tensors_["lm_head.weight"] = tensor({5, 4});
  tensors_["lm_head.weight"].bytes[0] ^= 1;
  EXPECT_EQ(refusal(), "good");
}

TEST_F(HuggingFaceFolder, RefusesAConfigThatItNames) {
  config_["activation_function"] = "relu";
  EXPECT_THAT(refusal(), HasSubstr((path_ / "config.json").string() + ": activation_function = \"relu\""));
  fs::remove(path_ / "config.json");
  EXPECT_THAT(model_refusal(path_), HasSubstr("has no config.json"));
}

TEST_F(HuggingFaceFolder, SaysWhichWeightsAreMissing) {
  write_config();
  EXPECT_TRUE(is_model_file(path_));
  EXPECT_THAT(model_refusal(path_),
              AllOf(HasSubstr("has neither model.safetensors nor model.safetensors.index.json"),
                    Not(HasSubstr("it has"))));
  spill(path_ / "model-00001-of-00002.safetensors", "");
  EXPECT_THAT(model_refusal(path_), HasSubstr("; it has model-00001-of-00002.safetensors"));
  spill(path_ / "pytorch_model.bin", "");
  EXPECT_THAT(model_refusal(path_), AllOf(HasSubstr("pytorch_model.bin holds pickled weights"),
                                          HasSubstr("executes code"), HasSubstr("save_pretrained")));
}

TEST_F(HuggingFaceFolder, PrefersTheSingleFile) {
  write_shards();
  spill(path_ / "model.safetensors", safetensors_file(tensors_));
  std::vector<std::string> warnings;
  open_model(path_, &warnings);
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("has model.safetensors and model.safetensors.index.json; the first")));
}

TEST_F(HuggingFaceFolder, ReadsShards) {
  EXPECT_EQ(shards_refusal(), "good");
  EXPECT_EQ(read_all(*open_model(path_)).at("h.0.ln_1.weight"),
            std::vector<float>({-1.0F, -0.75F, -0.5F, -0.25F}));
}

TEST_F(HuggingFaceFolder, RefusesAnIndexThatDoesNotMatchTheShards) {
  write_shards();
  const std::map<std::string, std::string> good = index_;
  const std::string name = "transformer.ln_f.bias";
  const auto refusal_with = [&](const auto& change) {
    index_ = good;
    change();
    write_index();
    return model_refusal(path_);
  };
  EXPECT_THAT(refusal_with([&] { index_.erase(name); }), HasSubstr("tensor \"" + name + "\" is in model-0"));
  EXPECT_THAT(
      refusal_with([&] { index_[name] = index_[name] == shard_name(0) ? shard_name(1) : shard_name(0); }),
      HasSubstr("weight_map puts tensor \"" + name + "\" into \"model-0"));
  EXPECT_THAT(
      refusal_with([&] { index_["another"] = shard_name(0); }),
      HasSubstr(
          "weight_map puts tensor \"another\" into \"model-00000-of-00003.safetensors\", which does not"));
  EXPECT_THAT(refusal_with([&] { index_["another"] = "model-00004-of-00003.safetensors"; }),
              HasSubstr("names \"model-00004-of-00003.safetensors\"; there is nothing"));
  EXPECT_THAT(refusal_with([&] { index_.clear(); }),
              HasSubstr("\"weight_map\" is not an object with members"));
  EXPECT_EQ(refusal_with([] {}), "good");
  spill(path_ / "model-00004-of-00003.safetensors", safetensors_file("{}"));
  EXPECT_THAT(refusal_with([] {}),
              HasSubstr("does not name model-00004-of-00003.safetensors, a shard in its folder"));
}

TEST_F(HuggingFaceFolder, RefusesShardsOutsideTheFolder) {
  const ScratchDirectory other;
  const std::string outside = (other.path() / "model.safetensors").string();
  spill(outside, safetensors_file("{}"));
  write_shards();
  for (const std::string& name : {outside, "../" + other.path().filename().string() + "/model.safetensors",
                                  std::string("a/../model-00000-of-00003.safetensors"), std::string(".."),
                                  std::string("."), std::string(""), std::string("a\0b", 3)}) {
    index_["another"] = name;
    write_index();
    EXPECT_THAT(model_refusal(path_), HasSubstr("which is not a file of this folder")) << name;
  }
  fs::create_symlink(outside, path_ / "link.safetensors");
  index_["another"] = "link.safetensors";
  write_index();
  EXPECT_THAT(model_refusal(path_),
              AllOf(HasSubstr("names \"link.safetensors\", a link to"), HasSubstr("outside this")));
}

TEST_F(HuggingFaceFolder, ReadsShardsOfTheHubsCache) {
  write_shards();
  const fs::path blobs = scratch_.path() / "hub" / "blobs";
  const fs::path snapshot = scratch_.path() / "hub" / "snapshots" / "0123";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  for (const char* name : {"config.json", "model.safetensors.index.json"})
    fs::copy(path_ / name, snapshot / name);
  for (std::size_t i = 0; i < 3; ++i) {
    fs::rename(path_ / shard_name(i), blobs / std::to_string(i));
    fs::create_symlink(fs::path("../../blobs") / std::to_string(i), snapshot / shard_name(i));
  }
  EXPECT_EQ(model_refusal(snapshot), "good");
}

TEST_F(HuggingFaceFolder, RefusesABadIndex) {
  write_shards();
  const fs::path index = path_ / "model.safetensors.index.json";
  const auto refusal_of = [&](const std::string& text) {
    spill(index, text);
    return model_refusal(path_);
  };
  EXPECT_THAT(refusal_of("{}"), HasSubstr("index.json: has no \"weight_map\""));
  EXPECT_THAT(refusal_of(R"({"weight_map": []})"), HasSubstr("\"weight_map\" is not an object"));
  EXPECT_THAT(refusal_of(R"({"weight_map": {"a": 1}})"), HasSubstr("\"a\" is not text"));
  EXPECT_THAT(refusal_of(R"({"weight_map": {"a": "x", "a": "y"}})"), HasSubstr("has \"a\" twice"));
  EXPECT_THAT(refusal_of(std::string((std::size_t{4} << 20U) + 1, ' ')), HasSubstr("index.json"));
}

TEST_F(HuggingFaceFolder, ATensorInTwoShardsIsRefused) {
  write_shards();
  std::map<std::string, HandTensor> more = {{"ln_f.bias", tensor({4})}};
  spill(path_ / "more.safetensors", safetensors_file(more));
  index_["ln_f.bias"] = "more.safetensors";
  write_index();
  EXPECT_THAT(model_refusal(path_), HasSubstr("has a tensor twice: "));
}

TEST(ModelFile, IsRecognisedByContent) {
  const ScratchDirectory scratch;
  EXPECT_TRUE(is_model_file(reference_model("fp32")));
  EXPECT_TRUE(is_model_file(reference_model("llmc_bf16.bin")));
  EXPECT_TRUE(is_model_file(reference_model("fp32") / "model.safetensors"));
  EXPECT_FALSE(is_model_file(reference_model("fp32") / "config.json"));
  EXPECT_FALSE(is_model_file(scratch.path()));
  EXPECT_FALSE(is_model_file(scratch.path() / "missing"));
  EXPECT_THAT(model_refusal(scratch.path() / "missing"), HasSubstr("there is nothing"));
  EXPECT_THAT(model_refusal(reference_model("fp32") / "model.safetensors"),
              HasSubstr("is one file of a model; name the folder"));
  // PyTorch's files: a zip archive, as of version 1.6, and a pickle.
  for (const std::string& head :
       {std::string("PK\x03\x04\0\0\0\0", 8) + std::string(22, '\0') + "ckpt/data.pkl",
        std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20"), std::string("\x80\x04\x95")}) {
    const fs::path file = scratch.path() / "x";
    spill(file, head);
    EXPECT_TRUE(is_model_file(file));
    EXPECT_THAT(model_refusal(file), AllOf(HasSubstr("executes code"), HasSubstr("docs/models.md")));
  }
  spill(scratch.path() / "zip", std::string("PK\x03\x04\0\0\0\0", 8) + std::string(22, '\0') + "letter.txt");
  EXPECT_FALSE(is_model_file(scratch.path() / "zip"));
}

}  // namespace
}  // namespace mylos::test
