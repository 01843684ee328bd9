// SPDX-License-Identifier: BSD-3-Clause
// The tokenizer files of model folders: written and found again, those of transformers, other tokenizers,
// malformed files. The folders in tests/reference/tokenizers are from make_tokenizer_folders.py.
#include "io/tokens/hugging_face_tokenizer.hpp"

#include <algorithm>
#include <cstdlib>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "io/json.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/io/small_ranks.hpp"

namespace mylos::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// The merges of the folder `small`.
const Merges few_merges = {{"t", "h"}, {"th", "e"}, {" ", "the"}, {"a", "a"}, {"aa", "aa"}, {"\xc3", "\xa9"}};

fs::path tokenizer_folder(const std::string& name) {
  return fs::path(std::getenv("MYLOS_SOURCE")) / "tests/reference/tokenizers" / name;
}

/// The name of the tokenizer in `folder`, the reason if it has none, or the error.
std::string finding(const auto& find) {
  try {
    const FoundTokenizer found = find();
    EXPECT_EQ(found.reason.empty(), found.tokenizer != nullptr);
    return found.tokenizer ? found.tokenizer->identity().name : "none: " + found.reason;
  } catch (const Error& error) {
    return fmt::format("error {}: {}", static_cast<int>(error.code()), error.what());
  }
}

std::string finding_in(const fs::path& folder) {
  return finding([&] { return find_tokenizer(folder); });
}

std::string finding_in_json(const std::string& text) {
  return finding([&] { return tokenizer_of_json(text, "tokenizer.json"); });
}

std::string finding_in_vocab(const std::string& vocab, const std::string& merges) {
  return finding([&] { return tokenizer_of_vocab(vocab, "vocab.json", merges, "merges.txt"); });
}

/// `text` with `to` instead of `from`, which it contains once.
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(text.find(from, at + 1), std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// The files that mylos writes for some tokenizer.
class WrittenFiles {
 public:
  explicit WrittenFiles(const Tokenizer& tokenizer) { write_tokenizer_files(path(), tokenizer, 1024); }

  const fs::path& path() const { return folder_.path(); }
  std::string text(const char* name) const { return slurp(path() / name); }
  Json json(const char* name) const { return Json::parse(text(name)); }
  void keep_only(const std::vector<std::string>& names) const {
    for (const fs::directory_entry& entry : fs::directory_iterator(path())) {
      if (std::ranges::find(names, entry.path().filename().string()) == names.end()) fs::remove(entry.path());
    }
  }

 private:
  ScratchDirectory folder_;
};

std::string not_gpt2(const std::string& digest) {
  return fmt::format(" holds 262 ranks with the digest {}, not GPT-2's 50256 with ", digest);
}

TEST(HuggingFaceTokenizer, BytesComeBack) {
  const auto bytes = make_tokenizer("bytes");
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json",
                                 "special_tokens_map.json"},
        {"vocab.json", "merges.txt"},
        {"tokenizer.json"}}) {
    const WrittenFiles files(*bytes);
    files.keep_only(names);
    const FoundTokenizer found = find_tokenizer(files.path());
    ASSERT_TRUE(found.tokenizer) << found.reason;
    EXPECT_EQ(found.tokenizer->identity(), bytes->identity());
    EXPECT_EQ(found.ranks, "");
    EXPECT_EQ(found.tokenizer->encode("h\xc3\xa9"), bytes->encode("h\xc3\xa9"));
  }
}

TEST(HuggingFaceTokenizer, TheIdsOfBytesAreTheirValues) {
  const WrittenFiles files(*make_tokenizer("bytes"));
  const Json vocab = files.json("vocab.json");
  EXPECT_EQ(vocab.members().size(), 257U);
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(vocab.integer(shown(std::string(1, static_cast<char>(byte)))), byte);
  EXPECT_EQ(vocab.integer("<|endoftext|>"), 256);
  EXPECT_EQ(files.text("merges.txt"), "#version: 0.2\n");
  const Json json = files.json("tokenizer.json");
  EXPECT_EQ(json.at("model").at("vocab").dump(), vocab.dump());
  EXPECT_TRUE(json.at("model").elements("merges").empty());
  EXPECT_EQ(json.elements("added_tokens")[0].integer("id"), 256);
}

TEST(HuggingFaceTokenizer, MergesFollowFromRanks) {
  const WrittenFiles files(BpeTokenizer(ranks_of(few_merges)));
  const MergesFiles expected = files_of(few_merges);
  EXPECT_EQ(files.text("merges.txt"), expected.merges);
  EXPECT_EQ(files.json("vocab.json").dump(), Json::parse(expected.vocab).dump());
  const Json model = files.json("tokenizer.json").at("model");
  EXPECT_EQ(model.at("vocab").dump(), Json::parse(expected.vocab).dump());
  EXPECT_EQ(model.at("merges").dump(), R"(["t h","th e","Ġ the","a a","aa aa","Ã ©"])");
  const std::string digest = ranks_of(few_merges).digest();
  EXPECT_EQ(BpeRanks::read(files.path()).digest(), digest);
  EXPECT_THAT(finding_in(files.path()),
              StartsWith("none: " + (files.path() / "vocab.json").string() + not_gpt2(digest)));
  files.keep_only({"tokenizer.json"});
  EXPECT_THAT(finding_in(files.path()),
              StartsWith("none: " + (files.path() / "tokenizer.json").string() + not_gpt2(digest)));
}

TEST(HuggingFaceTokenizer, ConfigurationForTransformers) {
  const WrittenFiles files(*make_tokenizer("bytes"));
  const Json config = files.json("tokenizer_config.json");
  EXPECT_EQ(config.text("tokenizer_class"), "GPT2Tokenizer");
  EXPECT_EQ(config.integer("model_max_length"), 1024);
  EXPECT_FALSE(config.boolean("add_prefix_space"));
  EXPECT_FALSE(config.boolean("clean_up_tokenization_spaces"));
  const Json special = files.json("special_tokens_map.json");
  for (const char* key : {"bos_token", "eos_token", "unk_token"}) {
    EXPECT_EQ(config.text(key), "<|endoftext|>");
    EXPECT_EQ(special.text(key), "<|endoftext|>");
  }
  const Json json = files.json("tokenizer.json");
  const Json added = json.elements("added_tokens")[0];
  EXPECT_EQ(added.text("content"), "<|endoftext|>");
  EXPECT_TRUE(added.boolean("special"));
  EXPECT_FALSE(json.at("pre_tokenizer").boolean("add_prefix_space"));
  EXPECT_EQ(json.at("decoder").text("type"), "ByteLevel");
}

TEST(HuggingFaceTokenizer, AsTransformersSavesThem) {
  EXPECT_EQ(finding_in(tokenizer_folder("bytes")), "bytes");
  // With merges as pairs.
  EXPECT_THAT(finding_in(tokenizer_folder("small")), HasSubstr(not_gpt2(ranks_of(few_merges).digest())));
}

TEST(HuggingFaceTokenizer, Gpt2sComeBack) {
  const char* data = std::getenv("MYLOS_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "needs MYLOS_TEST_DATA";
  const fs::path ranks = fs::path(data) / "gpt2.tiktoken";
  const auto gpt2 = make_tokenizer("gpt2=" + ranks.string());
  const ScratchDirectory tiktoken;
  fs::create_symlink(ranks, tiktoken.path() / "any.tiktoken");
  const WrittenFiles all(*gpt2);
  const WrittenFiles vocab(*gpt2);
  vocab.keep_only({"vocab.json", "merges.txt"});
  const WrittenFiles json(*gpt2);
  json.keep_only({"tokenizer.json"});
  for (const fs::path& folder : {all.path(), vocab.path(), json.path(), tiktoken.path()}) {
    const FoundTokenizer found = find_tokenizer(folder);
    ASSERT_TRUE(found.tokenizer) << found.reason;
    EXPECT_EQ(found.tokenizer->identity(), gpt2->identity());
    EXPECT_EQ(found.tokenizer->encode("It is its own."), gpt2->encode("It is its own."));
    EXPECT_TRUE(found.ranks == BpeRanks::read(ranks).text());
  }
  // The two kinds of files of one folder are of different tokenizers.
  const WrittenFiles bytes(*make_tokenizer("bytes"));
  fs::copy_file(bytes.path() / "tokenizer.json", vocab.path() / "tokenizer.json");
  EXPECT_EQ(finding_in(vocab.path()),
            fmt::format("none: {0}/vocab.json is the tokenizer gpt2 (ranks {1}), {0}/tokenizer.json is bytes",
                        vocab.path().string(), gpt2->identity().ranks));
}

TEST(HuggingFaceTokenizer, AFolderWithoutOne) {
  const ScratchDirectory scratch;
  const fs::path& folder = scratch.path();
  const std::string no_more = ", no tokenizer.json and no .tiktoken file";
  fs::create_directory(folder / "tokenizer.json");
  fs::create_symlink("nowhere", folder / "a.tiktoken");
  EXPECT_EQ(finding_in(folder), "none: " + folder.string() + " has no vocab.json and merges.txt" + no_more);
  spill(folder / "vocab.json", "{}");
  EXPECT_EQ(finding_in(folder), "none: " + folder.string() + " has vocab.json without merges.txt" + no_more);
  fs::rename(folder / "vocab.json", folder / "merges.txt");
  EXPECT_EQ(finding_in(folder), "none: " + folder.string() + " has merges.txt without vocab.json" + no_more);
  spill(folder / "b.tiktoken", ranks_of(few_merges).text());
  EXPECT_EQ(finding_in(folder).find("none: " + (folder / "b.tiktoken").string() + " holds 262 ranks"), 0U);
  spill(folder / "c.tiktoken", "");
  EXPECT_EQ(finding_in(folder), "none: " + folder.string() + " has 2 .tiktoken files");
}

TEST(HuggingFaceTokenizer, ATiktokenFile) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "x.tiktoken";
  spill(file, ranks_of(few_merges).text() + "IQ==\n");
  EXPECT_THAT(finding_in(scratch.path()), StartsWith("error 65: " + file.string() + ":263: "));
  std::string many;
  for (int line = 0; line < 70000; ++line) many += fmt::format("IQ== {}\n", line);
  spill(file, many);
  EXPECT_EQ(finding_in(scratch.path()), "none: " + file.string() + " has 70000 lines; GPT-2's has 50256");
}

TEST(HuggingFaceTokenizer, LargeFilesAreNotRead) {
  constexpr std::size_t size = (std::size_t{4} << 20U) + 1;
  for (const char* name :
       {"vocab.json", "merges.txt", "tokenizer.json", "added_tokens.json", "tokenizer_config.json"}) {
    const WrittenFiles files(*make_tokenizer("bytes"));
    spill(files.path() / name, std::string(size, ' '));
    EXPECT_EQ(finding_in(files.path()),
              fmt::format("none: {} has {} bytes, more than any file of GPT-2's tokenizer",
                          (files.path() / name).string(), size));
  }
}

TEST(HuggingFaceTokenizer, FilesBesideTheVocabulary) {
  const WrittenFiles files(*make_tokenizer("bytes"));
  const fs::path added = files.path() / "added_tokens.json";
  spill(added, R"({"<|endoftext|>": 256})");
  EXPECT_EQ(finding_in(files.path()), "bytes");
  spill(added, R"({"<|endoftext|>": 256, "[PAD]": 257})");
  EXPECT_EQ(finding_in(files.path()),
            "none: " + added.string() + " adds the token \"[PAD]\" with the id 257");
  for (const char* malformed : {"", "[]", R"({"[PAD]": "257"})", R"({"[PAD]": 1, "[PAD]": 2})"}) {
    spill(added, malformed);
    EXPECT_THAT(finding_in(files.path()), StartsWith("error 65: " + added.string() + ": ")) << malformed;
  }
  fs::remove(added);

  const fs::path config = files.path() / "tokenizer_config.json";
  spill(config, R"({"add_prefix_space": null})");
  EXPECT_EQ(finding_in(files.path()), "bytes");
  spill(config, R"({"add_prefix_space": true})");
  EXPECT_EQ(finding_in(files.path()), "none: " + config.string() + " has \"add_prefix_space\": true");
  for (const char* malformed : {"{", "[]", R"({"add_prefix_space": 1})"}) {
    spill(config, malformed);
    EXPECT_THAT(finding_in(files.path()), StartsWith("error 65: " + config.string() + ": ")) << malformed;
  }
  fs::remove(config);

  // transformers prefers tokenizer.json.
  const fs::path json = files.path() / "tokenizer.json";
  spill(json, with(files.text("tokenizer.json"), "\"normalizer\":null", R"("normalizer":{"type":"NFC"})"));
  EXPECT_EQ(finding_in(files.path()),
            "none: " + json.string() + " is not GPT-2's tokenizer: \"normalizer\" is {\"type\":\"NFC\"}");
  spill(json, "{");
  EXPECT_THAT(finding_in(files.path()), StartsWith("error 65: " + json.string() + ": "));
}

TEST(HuggingFaceTokenizer, OtherTokenizersInJson) {
  const std::string good = slurp(tokenizer_folder("small") / "tokenizer.json");
  const std::string one_line = Json::parse(good).dump();
  ASSERT_THAT(finding_in_json(one_line), HasSubstr("262 ranks"));
  const std::string pieces =
      R"("pre_tokenizer":{"add_prefix_space":false,"trim_offsets":true,"type":"ByteLevel","use_regex":true})";
  struct Case {
    std::string from, to, reason;
  };
  for (const auto& [from, to, reason] : {
           Case{R"("type":"BPE")", R"("type":"Unigram")", R"("model.type" is "Unigram")"},
           Case{R"("dropout":null)", R"("dropout":0.1)", R"("model.dropout" is 0.1)"},
           Case{R"("end_of_word_suffix":"")", R"("end_of_word_suffix":"</w>")",
                R"("model.end_of_word_suffix" is "</w>")"},
           Case{R"("continuing_subword_prefix":"")", R"("continuing_subword_prefix":"##")",
                R"("model.continuing_subword_prefix" is "##")"},
           Case{R"("normalizer":null)", R"("normalizer":{"type":"Lowercase"})",
                R"("normalizer" is {"type":"Lowercase"})"},
           Case{pieces, R"("pre_tokenizer":null)", R"("pre_tokenizer" is null)"},
           Case{pieces, R"("rest":0)", R"("pre_tokenizer" is null)"},
           Case{pieces, R"("pre_tokenizer":{"add_prefix_space":true,"type":"ByteLevel"})",
                R"("pre_tokenizer" is {"add_prefix_space":true,"type":"ByteLevel"})"},
           Case{pieces, R"("pre_tokenizer":{"add_prefix_space":false,"type":"ByteLevel","use_regex":false})",
                R"("pre_tokenizer" is {"add_prefix_space":false,"type":"ByteLevel","use_regex":false})"},
           Case{pieces, R"("pre_tokenizer":{"type":"Whitespace"})",
                R"("pre_tokenizer" is {"type":"Whitespace"})"},
           Case{R"("content":"<|endoftext|>")", R"("content":"[PAD]")",
                R"(it adds the token "[PAD]" with the id 262)"},
           Case{R"("aaaa":260,)", R"("aaaa":300,)", R"(it gives "aaaa" the id 300, not 260)"},
           Case{R"("!":0,)", R"("!":300,)", R"(it gives "!" the id 300, not 0)"},
           Case{R"("!":0,)", "", "it has 262 entries; the 256 bytes, 6 merges and <|endoftext|> are 263"},
           Case{R"("!":0,)", R"("!!":0,)", R"(it has no "!")"},
           Case{R"(,["aa","aa"])", "",
                "it has 263 entries; the 256 bytes, 5 merges and <|endoftext|> are 262"},
       }) {
    EXPECT_EQ(finding_in_json(with(one_line, from, to)),
              "none: tokenizer.json is not GPT-2's tokenizer: " + reason);
  }
  // Keys that do not matter for the tokens of plain text.
  for (const auto& [from, to] : {std::pair{R"("type":"BPE",)", ""},
                                 {R"("dropout":null)", R"("dropout":0.0)"},
                                 {R"("end_of_word_suffix":"")", R"("end_of_word_suffix":null)"},
                                 {R"("fuse_unk":false)", R"("fuse_unk":true)"},
                                 {R"("truncation":null)", R"("truncation":{"max_length":5})"},
                                 {R"("<|endoftext|>":262,)", ""},  // an added token
                                 {R"(["t","h"])", R"("t h")"}})
    EXPECT_EQ(finding_in_json(with(one_line, from, to)), finding_in_json(one_line)) << from;
}

TEST(HuggingFaceTokenizer, MalformedJson) {
  const std::string one_line = Json::parse(slurp(tokenizer_folder("small") / "tokenizer.json")).dump();
  const std::string name = "error 65: tokenizer.json: ";
  EXPECT_THAT(finding_in_json(""), StartsWith(name));
  EXPECT_THAT(finding_in_json(one_line.substr(0, one_line.size() / 2)), StartsWith(name));
  EXPECT_EQ(finding_in_json("[]"), name + "is not an object");
  EXPECT_EQ(finding_in_json("{}"), name + "has no \"model\"");
  EXPECT_EQ(finding_in_json(R"({"model":[]})"), name + "\"model\" is not an object");
  const std::string pieces = R"("type":"ByteLevel","use_regex":true},"truncation")";
  struct Case {
    std::string from, to, problem;
  };
  for (const auto& [from, to, problem] : {
           Case{R"("type":"BPE")", R"("type":1)", R"("model": "type" is not text)"},
           Case{R"("dropout":null)", R"("dropout":"no")", R"("model": "dropout" is not a number)"},
           Case{R"("end_of_word_suffix":"")", R"("end_of_word_suffix":0)",
                R"("model": "end_of_word_suffix" is not text)"},
           Case{pieces, R"("use_regex":true},"truncation")", R"("pre_tokenizer": has no "type")"},
           Case{pieces, R"("type":"ByteLevel","use_regex":1},"truncation")",
                R"("pre_tokenizer": "use_regex" is not true or false)"},
           Case{R"("id":262)", R"("id":261)",
                R"(added_tokens[0]: "<|endoftext|>" has the id 261; in the vocabulary it has 262)"},
           Case{R"("id":262)", R"("id":"262")", R"(added_tokens[0]: "id" is not an integer)"},
           Case{R"("content":"<|endoftext|>")", R"("text":"")", R"(added_tokens[0]: has no "content")"},
           Case{R"("added_tokens":[)", R"("added_tokens":3,"rest":[)", R"("added_tokens" is not an array)"},
           Case{R"("vocab":{)", R"("words":{)", R"(model.vocab: has no "vocab")"},
           Case{R"("vocab":{)", R"("vocab":[],"rest":{)", R"(model.vocab: is not an object)"},
           Case{R"("aaaa":260,)", R"("aaaa":"260",)", R"(model.vocab: "aaaa" is not an integer)"},
           Case{R"("aaaa":260,)", R"("aaaa":260.5,)", R"(model.vocab: "aaaa" is not an integer)"},
           Case{R"("aaaa":260,)", R"("aaaa":-1,)", R"("aaaa" has the id -1)"},
           Case{R"("aaaa":260,)", R"("aaaa":261,)", R"("aaaa" and "\u00c3\u00a9" have the id 261)"},
           Case{R"("aaaa":260,)", "", R"(model.merges[4]: tokenizer.json lacks "aaaa")"},
           Case{R"("merges":[)", R"("rest":[)", R"(model: has no "merges")"},
           Case{R"("merges":[)", R"("merges":{},"rest":[)", R"(model: "merges" is not an array)"},
           Case{R"(["t","h"])", R"(["t","h","e"])", "model.merges[0]: holds 3 values, not two"},
           Case{R"(["t","h"])", R"(["t",1])", R"(model.merges[0]: "right" is not text)"},
           Case{R"(["t","h"])", "7", R"(model.merges[0]: "merge" is not text)"},
           Case{R"(["t","h"])", R"("th")", "model.merges[0]: is not two tokens with a space between"},
           Case{R"(["t","h"])", R"("t h e")", "model.merges[0]: is not two tokens with a space between"},
           Case{R"(["t","h"])", R"(["t","hh"])", R"(model.merges[0]: tokenizer.json lacks "hh")"},
           Case{R"(["aa","aa"])", R"(["a","aaa"])", R"(model.merges[4]: tokenizer.json lacks "aaa")"},
       })
    EXPECT_EQ(finding_in_json(with(one_line, from, to)), name + problem);
  // The merges of lower ranks make other tokens of "Ġthe".
  const std::string other =
      with(with(with(one_line, R"(["Ġ","the"])", R"(["Ġth","e"])"), R"(["a","a"])", R"(["Ġ","th"])"),
           R"("aa":259)", R"("Ġth":259)");
  EXPECT_THAT(
      finding_in_json(with(with(other, R"(,["aa","aa"])", R"(,["a","a"])"), R"("aaaa":260)", R"("aa":260)")),
      StartsWith("error 65: tokenizer.json: model.merges:3: "));
}

TEST(HuggingFaceTokenizer, OtherVocabularies) {
  const auto [vocab, merges] = files_of(few_merges);
  ASSERT_THAT(finding_in_vocab(vocab, merges), HasSubstr("262 ranks"));
  EXPECT_EQ(finding_in_vocab(vocab, merges.substr(merges.find('\n') + 1)), finding_in_vocab(vocab, merges));
  const std::string other = "none: vocab.json is not GPT-2's tokenizer: it ";
  EXPECT_EQ(finding_in_vocab(vocab, "#version: 0.2\n"),
            other + "has 263 entries; the 256 bytes, 0 merges and <|endoftext|> are 257");
  // Two ids are swapped.
  EXPECT_EQ(
      finding_in_vocab(with(with(vocab, "\"th\":256", "\"th\":257"), "\"the\":257", "\"the\":256"), merges),
      other + R"(gives "th" the id 257, not 256)");
  EXPECT_EQ(finding_in_vocab(with(vocab, "<|endoftext|>", "</s>"), merges),
            other + R"(has no "<|endoftext|>")");
  // Bytes in GPT-2's order, and bytes of which one has another id.
  const MergesFiles bytes = files_of({});
  EXPECT_THAT(finding_in_vocab(bytes.vocab, ""), HasSubstr("vocab.json holds 256 ranks"));
  const std::string values = WrittenFiles(*make_tokenizer("bytes")).text("vocab.json");
  EXPECT_EQ(finding_in_vocab(values, ""), "bytes");
  EXPECT_EQ(finding_in_vocab(with(values, R"("A": 65)", R"("A": 257)"), ""),
            R"(none: vocab.json is not the tokenizer of bytes: it gives "A" the id 257, not 65)");
  EXPECT_EQ(finding_in_vocab(with(values, R"("A": 65)", R"("A": 65, "AA": 257)"), ""),
            "none: vocab.json is not the tokenizer of bytes: it has 258 entries; the 256 bytes, 0 merges and "
            "<|endoftext|> are 257");
  std::string many = "{";
  for (int id = 0; id < 70000; ++id) many += fmt::format("\"{0}\":{0},", id);
  many.back() = '}';
  EXPECT_EQ(finding_in_vocab(many, ""), "none: vocab.json has 70000 entries; GPT-2's tokenizer has 50257");
}

TEST(HuggingFaceTokenizer, MalformedVocabularies) {
  const auto [vocab, merges] = files_of(few_merges);
  const std::string name = "error 65: vocab.json: ";
  for (const char* text : {"", "{", "{} {}", "\"\"", "{\"\xff\": 0}"})
    EXPECT_THAT(finding_in_vocab(text, merges), StartsWith(name)) << text;
  EXPECT_EQ(finding_in_vocab("[0]", merges), name + "is not an object");
  EXPECT_EQ(finding_in_vocab(with(vocab, "\"th\":256", "\"th\":null"), merges),
            name + "\"th\" is not an integer");
  EXPECT_EQ(finding_in_vocab(with(vocab, "\"th\":256", "\"th\":257"), merges),
            name + "\"th\" and \"the\" have the id 257");
  EXPECT_EQ(finding_in_vocab(with(vocab, "\"th\":256", "\"th\":-256"), merges),
            name + "\"th\" has the id -256");
  EXPECT_THAT(finding_in_vocab(with(vocab, "\"th\":256", "\"th\":256,\"\\u0074h\":256"), merges),
              AllOf(StartsWith(name), HasSubstr("th")));
  const std::string line = "error 65: merges.txt:";
  for (const char* text : {"th", "t h e", "t  h"}) {
    EXPECT_EQ(finding_in_vocab(vocab, with(merges, "t h\n", std::string(text) + "\n")),
              line + "2: a line is two tokens with a space between");
  }
  EXPECT_EQ(finding_in_vocab(vocab, with(merges, "aa aa\n", "aa aaa\n")),
            line + "6: vocab.json lacks \"aaa\"");
  EXPECT_EQ(finding_in_vocab(vocab, merges + "e e\n"), line + "8: vocab.json lacks \"ee\"");
  EXPECT_EQ(finding_in_vocab(with(vocab, "\"th\":256,", ""), merges), line + "2: vocab.json lacks \"th\"");
}

}  // namespace
}  // namespace mylos::test
