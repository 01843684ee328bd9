// SPDX-License-Identifier: BSD-3-Clause
// Metadata of a token file: a JSON object in a file next to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mylos {

/// The tokenizer that produced some tokens.
struct TokenizerIdentity {
  std::string name;   ///< a name from `tokenizers`
  std::string ranks;  ///< digest of the ranks' canonical form, 32 hexadecimal digits; empty for bytes
  bool operator==(const TokenizerIdentity&) const = default;
  /// "bytes", or "gpt2 (ranks 0123...)".
  std::string text() const;
};

/// `<file>.json` next to a token file: {"tokenizer", "ranks" (unless empty), "vocab", "tokens", "content",
/// "documents"}.
struct Sidecar {
  TokenizerIdentity tokenizer;
  std::int64_t vocab = 0;
  std::int64_t tokens = 0;
  std::string content;         ///< XXH3-128 of all tokens as stored in the file, 32 hexadecimal digits
  std::int64_t documents = 0;  ///< number of documents that end in the file
};

/// The name of the sidecar of `token_file`.
std::filesystem::path sidecar_path(const std::filesystem::path& token_file);

/// Writes the sidecar of `token_file` through a temporary file and a rename. Throws ExitCode::io.
void write_sidecar(const std::filesystem::path& token_file, const Sidecar& sidecar);

/// The sidecar of `token_file` or, if that is a link without one, of its target; empty if there is none.
/// Throws ExitCode::bad_data naming the sidecar if it is malformed, ExitCode::io if it cannot be read.
std::optional<Sidecar> read_sidecar(const std::filesystem::path& token_file);

/// Throws ExitCode::usage if `token_file`, whose sidecar is `sidecar`, was not produced by `tokenizer`, which
/// produced `other_file`.
void check_tokenizer(const std::filesystem::path& token_file, const Sidecar& sidecar,
                     const TokenizerIdentity& tokenizer, const std::filesystem::path& other_file);

}  // namespace mylos
