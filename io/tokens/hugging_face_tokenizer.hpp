// SPDX-License-Identifier: BSD-3-Clause
// The tokenizer files of a model folder, as Hugging Face's libraries and tiktoken write them, in and out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "io/tokens/tokenizer.hpp"

namespace mylos {

/// What the tokenizer files of a model say.
struct FoundTokenizer {
  /// Empty if the files are not those of a tokenizer that mylos has: the model takes and gives tokens then.
  std::shared_ptr<const Tokenizer> tokenizer;
  /// The tokenizer's merge ranks as a tiktoken file, for a run's own copy; empty if it has none.
  std::string ranks;
  /// If `tokenizer` is empty, the reason, for a message: "gpt2/vocab.json has 50265 entries, ...".
  std::string reason;
};

/// The tokenizer of a model folder: GPT-2's, or that of bytes, whose 257 ids are the bytes' values and 256
/// for <|endoftext|>. It comes from `vocab.json` and `merges.txt`, else from `tokenizer.json`, else from the
/// only `*.tiktoken` file. `tokenizer.json`, `added_tokens.json` and `tokenizer_config.json` beside the
/// former must not contradict: transformers prefers what they say. Files that are well formed but of another
/// tokenizer, and files that are absent, give a reason. Throws ExitCode::bad_data, naming the file and the
/// key or line, if a file is malformed or contradicts itself or, of the two, the other; ExitCode::io if a
/// file cannot be read.
FoundTokenizer find_tokenizer(const std::filesystem::path& folder);

/// The tokenizer of a `tokenizer.json` or of the two other files, from their texts; errors and reasons give
/// the names. Merges in a `tokenizer.json` are texts, "a b", or pairs, ["a", "b"]. Its post-processor and
/// decoder are not looked at: they do not change the tokens of plain text.
FoundTokenizer tokenizer_of_json(const std::string& text, const std::string& name);
FoundTokenizer tokenizer_of_vocab(const std::string& vocab_text, const std::string& vocab_name,
                                  const std::string& merges_text, const std::string& merges_name);

/// Writes the files from which transformers makes `tokenizer`, that of bytes or a BpeTokenizer, with
/// <|endoftext|> as its only special token, into a folder: `vocab.json`, `merges.txt`, `tokenizer.json`,
/// `tokenizer_config.json` and `special_tokens_map.json`. `context` is the longest input of the model, in
/// tokens. The files are on disk on return. Throws ExitCode::io.
void write_tokenizer_files(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                           std::int64_t context);

}  // namespace mylos
