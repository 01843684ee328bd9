// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/hugging_face_tokenizer.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "io/tokens/byte_characters.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr const char* end_of_text_name = "<|endoftext|>";

/// Larger files are not read. The tokenizer.json that transformers 5 writes for GPT-2 has 3.6 MB; the values
/// of a hostile file may take 90 times its size.
constexpr std::uintmax_t most_file_bytes = std::uintmax_t{4} << 20U;

template <class... Args>
FoundTokenizer none_because(fmt::format_string<Args...> format, Args&&... args) {
  return {.tokenizer = nullptr, .ranks = "", .reason = fmt::format(format, std::forward<Args>(args)...)};
}

/// `value` on one line, for a message.
std::string brief(const Json& value) {
  constexpr std::size_t most = 80;
  std::string text = value.ascii();
  if (text.size() > most) text = text.substr(0, most) + "...";
  return text;
}

bool is_null(const Json& json, std::string_view key) {
  return !json.has(key) || brief(json.at(key)) == "null";
}

/// A vocabulary as the files say it: what stands for each id, and pairs of those that merge, in their order.
struct VocabFiles {
  std::vector<std::pair<std::string, std::int64_t>> entries;
  std::vector<std::pair<std::string, std::string>> merges;
  std::string name;                                  ///< of the entries, for messages
  std::function<std::string(std::size_t)> merge_at;  ///< the name of a merge
  std::unordered_map<std::string_view, std::int64_t> ids;
};

std::vector<std::pair<std::string, std::int64_t>> vocab_entries(const Json& vocab) {
  if (!vocab.is_object()) fail(ExitCode::bad_data, "is not an object");
  std::vector<std::pair<std::string, std::int64_t>> entries;
  for (const auto& [key, value] : vocab.members()) entries.emplace_back(key, vocab.integer(key));
  return entries;
}

/// Throws if the files contradict themselves or each other.
void check_vocab_files(VocabFiles& files) {
  std::unordered_map<std::int64_t, std::string_view> keys;
  for (const auto& [key, id] : files.entries) {
    if (id < 0) fail(ExitCode::bad_data, "{}: {} has the id {}", files.name, brief(key), id);
    if (const auto [other, is_new] = keys.try_emplace(id, key); !is_new)
      fail(ExitCode::bad_data, "{}: {} and {} have the id {}", files.name, brief(other->second), brief(key),
           id);
    files.ids.emplace(key, id);
  }
  for (std::size_t i = 0; i < files.merges.size(); ++i) {
    const auto& [left, right] = files.merges[i];
    for (const std::string& token : {left, right, left + right}) {
      if (!files.ids.contains(token))
        fail(ExitCode::bad_data, "{}: {} lacks {}", files.merge_at(i), files.name, brief(token));
    }
  }
}

/// How the ids differ from the order of the bytes, the merges and <|endoftext|>; empty if they do not.
/// `byte_of` gives the byte of each id.
template <class ByteOf>
std::string difference_of(const VocabFiles& files, const ByteOf& byte_of) {
  const std::size_t single_bytes = characters_of_bytes.size();
  if (files.entries.size() != single_bytes + files.merges.size() + 1) {
    return fmt::format("has {} entries; the 256 bytes, {} merges and {} are {}", files.entries.size(),
                       files.merges.size(), end_of_text_name, single_bytes + files.merges.size() + 1);
  }
  std::string difference;
  const auto differs = [&](const std::string& key, std::size_t id) {
    const auto found = files.ids.find(key);
    if (found == files.ids.end()) {
      difference = fmt::format("has no {}", brief(key));
    } else if (std::cmp_not_equal(found->second, id)) {
      difference = fmt::format("gives {} the id {}, not {}", brief(key), found->second, id);
    }
    return !difference.empty();
  };
  for (std::size_t id = 0; id < single_bytes; ++id) {
    if (differs(encode_utf8(characters_of_bytes[byte_of(id)]), id)) return difference;
  }
  for (std::size_t i = 0; i < files.merges.size(); ++i) {
    if (differs(files.merges[i].first + files.merges[i].second, single_bytes + i)) return difference;
  }
  differs(end_of_text_name, single_bytes + files.merges.size());
  return difference;
}

FoundTokenizer tokenizer_of_ranks(BpeRanks ranks, const std::string& name) {
  const std::string digest = ranks.digest();
  if (digest != gpt2_digest) {
    return none_because("{} holds {} ranks with the digest {}, not GPT-2's 50256 with {}", name,
                        ranks.tokens().size(), digest, gpt2_digest);
  }
  std::string text = ranks.text();
  return {std::make_shared<BpeTokenizer>(std::move(ranks)), std::move(text), ""};
}

/// The tokenizer of the files; `ranks` gives their ranks if the ids are in the order of GPT-2's.
template <class Ranks>
FoundTokenizer tokenizer_of_files(VocabFiles& files, const Ranks& ranks) {
  check_vocab_files(files);
  if (files.entries.size() > BpeRanks::most_tokens + 1)
    return none_because("{} has {} entries; GPT-2's tokenizer has 50257", files.name, files.entries.size());
  const auto exclamation_mark = files.ids.find("!");
  if (files.merges.empty() && exclamation_mark != files.ids.end() && exclamation_mark->second == '!') {
    const std::string difference = difference_of(files, [](std::size_t id) { return id; });
    if (!difference.empty())
      return none_because("{} is not the tokenizer of bytes: it {}", files.name, difference);
    return {make_tokenizer("bytes"), "", ""};
  }
  const std::string difference = difference_of(files, [](std::size_t id) { return bytes_by_character[id]; });
  if (!difference.empty()) return none_because("{} is not GPT-2's tokenizer: it {}", files.name, difference);
  return tokenizer_of_ranks(ranks(), files.name);
}

/// How the model of a tokenizer.json differs from GPT-2's, besides its vocabulary; empty if it does not.
std::string model_difference(const Json& model) {
  const auto has = [&](std::string_view key) {
    return fmt::format("\"model.{}\" is {}", key, brief(model.at(key)));
  };
  if (model.has("type") && model.text("type") != "BPE") return has("type");
  if (!is_null(model, "dropout") && model.real("dropout") != 0.0) return has("dropout");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!is_null(model, affix) && !model.text(affix).empty()) return has(affix);
  }
  return "";
}

/// How a tokenizer.json changes and cuts a text before the merges in another way than GPT-2's; empty if it
/// does not.
std::string text_difference(const Json& json) {
  if (!is_null(json, "normalizer")) return fmt::format("\"normalizer\" is {}", brief(json.at("normalizer")));
  if (is_null(json, "pre_tokenizer")) return "\"pre_tokenizer\" is null";
  const Json pieces = json.at("pre_tokenizer");
  const bool is_gpt2s = at_place("\"pre_tokenizer\"", [&] {
    return pieces.text("type") == "ByteLevel" && !pieces.boolean("add_prefix_space") &&
           (!pieces.has("use_regex") || pieces.boolean("use_regex"));
  });
  return is_gpt2s ? "" : fmt::format("\"pre_tokenizer\" is {}", brief(pieces));
}

/// The two tokens of a merge, "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_of(const Json& merge) {
  const Json holder = Json::object({{"merge", merge}});
  if (merge.ascii().starts_with('[')) {
    const std::vector<Json> two = holder.elements("merge");
    if (two.size() != 2) fail(ExitCode::bad_data, "holds {} values, not two", two.size());
    const Json pair = Json::object({{"left", two[0]}, {"right", two[1]}});
    return {pair.text("left"), pair.text("right")};
  }
  const std::string text = holder.text("merge");
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    fail(ExitCode::bad_data, "is not two tokens with a space between");
  return {text.substr(0, space), text.substr(space + 1)};
}

/// Whether there is a file, or a link to one, that does not block its readers.
bool is_readable_file(const fs::path& file) {
  std::error_code unknown;
  return fs::is_regular_file(file, unknown);
}

/// Why `file` is not read: it is larger than any of GPT-2's. Empty otherwise.
std::string too_large(const fs::path& file) {
  const std::uintmax_t size = fs::file_size(file);
  if (size <= most_file_bytes) return "";
  return fmt::format("{} has {} bytes, more than any file of GPT-2's tokenizer", file.string(), size);
}

/// The tokenizer that `read` makes of the texts of `files`, unless they are too large.
template <class Read>
FoundTokenizer read_tokenizer(const std::vector<fs::path>& files, const Read& read) {
  std::vector<std::string> texts;
  for (const fs::path& file : files) {
    if (const std::string reason = too_large(file); !reason.empty()) return none_because("{}", reason);
    texts.push_back(read_text_file(file, most_file_bytes));
  }
  return read(texts);
}

/// What the files beside vocab.json change in the tokenizer of transformers; empty if nothing.
std::string change_beside(const fs::path& folder) {
  if (const fs::path file = folder / "added_tokens.json"; is_readable_file(file)) {
    if (std::string reason = too_large(file); !reason.empty()) return reason;
    const std::string text = read_text_file(file, most_file_bytes);
    const auto entries = at_place(file.string(), [&] { return vocab_entries(Json::parse(text)); });
    for (const auto& [key, id] : entries) {
      if (key != end_of_text_name)
        return fmt::format("{} adds the token {} with the id {}", file.string(), brief(key), id);
    }
  }
  if (const fs::path file = folder / "tokenizer_config.json"; is_readable_file(file)) {
    if (std::string reason = too_large(file); !reason.empty()) return reason;
    const std::string text = read_text_file(file, most_file_bytes);
    return at_place(file.string(), [&]() -> std::string {
      const Json json = Json::parse(text);
      if (!json.is_object()) fail(ExitCode::bad_data, "is not an object");
      if (is_null(json, "add_prefix_space") || !json.boolean("add_prefix_space")) return "";
      return fmt::format("{} has \"add_prefix_space\": true", file.string());
    });
  }
  return "";
}

FoundTokenizer tokenizer_of_tiktoken(const fs::path& file) {
  return read_tokenizer({file}, [&](const std::vector<std::string>& texts) {
    const auto lines = std::ranges::count(texts[0], '\n');
    if (std::cmp_greater(lines, BpeRanks::most_tokens))
      return none_because("{} has {} lines; GPT-2's has 50256", file.string(), lines);
    return tokenizer_of_ranks(BpeRanks::parse_tiktoken(texts[0], file.string()), file.string());
  });
}

std::vector<fs::path> tiktoken_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".tiktoken" && is_readable_file(entry.path()))
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::string json_string(std::string_view text) {
  return Json(text).dump();
}

/// The entries of a vocabulary in the order of their ids, as a JSON object.
std::string vocab_json_text(const Tokenizer& tokenizer) {
  std::string text;
  for (std::int64_t id = 0; id < tokenizer.end_of_text(); ++id) {
    const std::uint16_t token = static_cast<std::uint16_t>(id);
    text += fmt::format("{}: {}, ", json_string(characters_of(tokenizer.decode({&token, 1}))), id);
  }
  return fmt::format("{{{}{}: {}}}", text, json_string(end_of_text_name), tokenizer.end_of_text());
}

/// The merges of `ranks` in their order: "a b".
std::vector<std::string> merges_of(const BpeRanks& ranks) {
  constexpr std::size_t single_bytes = 256;
  const std::vector<std::string>& tokens = ranks.tokens();
  std::array<std::uint16_t, single_bytes> byte_tokens{};
  for (std::size_t id = 0; id < single_bytes; ++id)
    byte_tokens[static_cast<unsigned char>(tokens[id][0])] = static_cast<std::uint16_t>(id);
  // The merges of lower ranks turn the bytes of a token into the two tokens that merge into it.
  BpeMerges lower(byte_tokens);
  std::vector<std::string> merges;
  std::vector<std::uint16_t> parts;
  for (std::size_t id = single_bytes; id < tokens.size(); ++id) {
    parts.resize(tokens[id].size());
    require(lower.merge(tokens[id], parts.data()) == parts.data() + 2, "a token merges two of lower rank");
    lower.add(parts[0], parts[1], static_cast<std::uint16_t>(id));
    merges.push_back(characters_of(tokens[parts[0]]) + " " + characters_of(tokens[parts[1]]));
  }
  return merges;
}

std::string tokenizer_json_text(const Tokenizer& tokenizer, const std::vector<std::string>& merges) {
  const Json added = Json::object({{"id", std::int64_t{tokenizer.end_of_text()}},
                                   {"content", end_of_text_name},
                                   {"single_word", false},
                                   {"lstrip", false},
                                   {"rstrip", false},
                                   {"normalized", false},
                                   {"special", true}});
  const Json byte_level = Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}});
  const Json model = Json::object({{"type", "BPE"},
                                   {"dropout", {}},
                                   {"unk_token", {}},
                                   {"continuing_subword_prefix", ""},
                                   {"end_of_word_suffix", ""},
                                   {"fuse_unk", false},
                                   {"byte_fallback", false},
                                   {"ignore_merges", false}});
  const Json post_processor = Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}});
  const Json rest = Json::object({{"version", "1.0"},
                                  {"truncation", {}},
                                  {"padding", {}},
                                  {"added_tokens", Json::array({added})},
                                  {"normalizer", {}},
                                  {"pre_tokenizer", byte_level},
                                  {"post_processor", post_processor},
                                  {"decoder", byte_level}});
  // The members in an order that readers in one pass expect; the vocabulary in the order of its ids.
  const auto open = [](const Json& object) {
    std::string text = object.dump();
    text.pop_back();
    return text;
  };
  std::vector<std::string> texts;
  texts.reserve(merges.size());
  for (const std::string& merge : merges) texts.push_back(json_string(merge));
  return fmt::format("{}, \"model\": {}, \"vocab\": {}, \"merges\": [{}]}}}}\n", open(rest), open(model),
                     vocab_json_text(tokenizer), join(texts, ", "));
}

}  // namespace

FoundTokenizer tokenizer_of_vocab(const std::string& vocab_text, const std::string& vocab_name,
                                  const std::string& merges_text, const std::string& merges_name) {
  VocabFiles files;
  files.name = vocab_name;
  files.entries = at_place(vocab_name, [&] { return vocab_entries(Json::parse(vocab_text)); });
  std::vector<std::size_t> lines;
  for (std::size_t number = 0; std::string_view line : lines_of(merges_text)) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      fail(ExitCode::bad_data, "{}:{}: a line is two tokens with a space between", merges_name, number);
    files.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    lines.push_back(number);
  }
  files.merge_at = [&](std::size_t merge) { return fmt::format("{}:{}", merges_name, lines[merge]); };
  return tokenizer_of_files(
      files, [&] { return BpeRanks::parse_merges(vocab_text, vocab_name, merges_text, merges_name); });
}

FoundTokenizer tokenizer_of_json(const std::string& text, const std::string& name) {
  VocabFiles files;
  files.name = name;
  files.merge_at = [&](std::size_t merge) { return fmt::format("{}: model.merges[{}]", name, merge); };
  std::string difference;
  std::vector<Json> added;
  Json model;
  at_place(name, [&] {
    const Json json = Json::parse(text);
    if (!json.is_object()) fail(ExitCode::bad_data, "is not an object");
    model = json.at("model");
    if (!model.is_object()) fail(ExitCode::bad_data, "\"model\" is not an object");
    difference = at_place("\"model\"", [&] { return model_difference(model); });
    if (difference.empty()) difference = text_difference(json);
    if (!is_null(json, "added_tokens")) added = json.elements("added_tokens");
  });
  if (!difference.empty()) return none_because("{} is not GPT-2's tokenizer: {}", name, difference);
  files.entries = at_place(name + ": model.vocab", [&] { return vocab_entries(model.at("vocab")); });
  const std::vector<Json> merges = at_place(name + ": model", [&] {
    model = model.without("vocab");
    return model.elements("merges");
  });
  for (std::size_t i = 0; i < merges.size(); ++i)
    files.merges.push_back(at_place(files.merge_at(i), [&] { return merge_of(merges[i]); }));
  for (std::size_t i = 0; i < added.size(); ++i) {
    const auto [content, id] = at_place(fmt::format("{}: added_tokens[{}]", name, i), [&] {
      return std::pair(added[i].text("content"), added[i].integer("id"));
    });
    if (content != end_of_text_name)
      return none_because("{} is not GPT-2's tokenizer: it adds the token {} with the id {}", name,
                          brief(content), id);
    const auto known =
        std::ranges::find(files.entries, content, &std::pair<std::string, std::int64_t>::first);
    if (known == files.entries.end()) {
      files.entries.emplace_back(content, id);
    } else if (known->second != id) {
      fail(ExitCode::bad_data, "{}: added_tokens[{}]: \"{}\" has the id {}; in the vocabulary it has {}",
           name, i, content, id, known->second);
    }
  }
  return tokenizer_of_files(files, [&] {
    std::vector<Json::Member> vocab(files.entries.begin(), files.entries.end());
    std::string lines;
    for (const auto& [left, right] : files.merges) lines += left + " " + right + "\n";
    return BpeRanks::parse_merges(Json::object(vocab).dump(), name, lines, name + ": model.merges");
  });
}

FoundTokenizer find_tokenizer(const fs::path& folder) {
  const fs::path vocab = folder / "vocab.json";
  const fs::path merges = folder / "merges.txt";
  const fs::path json = folder / "tokenizer.json";
  std::optional<FoundTokenizer> found;
  if (is_readable_file(vocab) && is_readable_file(merges)) {
    found = read_tokenizer({vocab, merges}, [&](const std::vector<std::string>& texts) {
      return tokenizer_of_vocab(texts[0], vocab.string(), texts[1], merges.string());
    });
    if (!found->tokenizer) return *found;
  }
  if (is_readable_file(json)) {
    const FoundTokenizer other = read_tokenizer({json}, [&](const std::vector<std::string>& texts) {
      return tokenizer_of_json(texts[0], json.string());
    });
    if (found && other.tokenizer && other.tokenizer->identity() != found->tokenizer->identity()) {
      return none_because("{} is the tokenizer {}, {} is {}", vocab.string(),
                          found->tokenizer->identity().text(), json.string(),
                          other.tokenizer->identity().text());
    }
    if (!found || !other.tokenizer) found = other;
  }
  if (!found) {
    const std::vector<fs::path> files = tiktoken_files(folder);
    if (files.empty()) {
      return none_because("{} has {}, no tokenizer.json and no .tiktoken file", folder.string(),
                          is_readable_file(vocab)    ? "vocab.json without merges.txt"
                          : is_readable_file(merges) ? "merges.txt without vocab.json"
                                                     : "no vocab.json and merges.txt");
    }
    if (files.size() > 1) return none_because("{} has {} .tiktoken files", folder.string(), files.size());
    return tokenizer_of_tiktoken(files[0]);
  }
  if (found->tokenizer) {
    if (const std::string change = change_beside(folder); !change.empty()) return none_because("{}", change);
  }
  return *found;
}

void write_tokenizer_files(const fs::path& folder, const Tokenizer& tokenizer, std::int64_t context) {
  std::vector<std::string> merges;
  if (tokenizer_kind(tokenizer.identity().name).has_ranks) {
    const auto* byte_pairs = dynamic_cast<const BpeTokenizer*>(&tokenizer);
    require(byte_pairs != nullptr, "a tokenizer with ranks is a BpeTokenizer");
    merges = merges_of(byte_pairs->ranks());
  }
  std::string merges_text = "#version: 0.2\n";
  for (const std::string& merge : merges) merges_text += merge + "\n";
  write_text_file(folder / "vocab.json", vocab_json_text(tokenizer) + "\n");
  write_text_file(folder / "merges.txt", merges_text);
  write_text_file(folder / "tokenizer.json", tokenizer_json_text(tokenizer, merges));
  const std::vector<Json::Member> special = {
      {"bos_token", end_of_text_name}, {"eos_token", end_of_text_name}, {"unk_token", end_of_text_name}};
  std::vector<Json::Member> config = special;
  config.insert(config.end(), {{"add_bos_token", false},
                               {"add_prefix_space", false},
                               {"clean_up_tokenization_spaces", false},
                               {"errors", "replace"},
                               {"model_max_length", context},
                               {"tokenizer_class", "GPT2Tokenizer"}});
  write_text_file(folder / "tokenizer_config.json", Json::object(config).dump(2) + "\n");
  write_text_file(folder / "special_tokens_map.json", Json::object(special).dump(2) + "\n");
}

}  // namespace mylos
