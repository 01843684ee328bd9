// SPDX-License-Identifier: BSD-3-Clause
// What is known of a token file besides its tokens: a JSON object in a file beside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mylos {

/// Which tokenizer made some tokens.
struct TokenizerIdentity {
  std::string name;   ///< of tokenizers()
  std::string ranks;  ///< digest of the ranks' canonical form, 32 hexadecimal digits; empty for bytes
  bool operator==(const TokenizerIdentity&) const = default;
  /// "bytes", or "gpt2 (ranks 0123...)".
  std::string text() const;
};

/// `<file>.json` beside a token file: {"tokenizer", "ranks", "vocab", "tokens", "content", "documents"}.
struct Sidecar {
  TokenizerIdentity tokenizer;
  std::int64_t vocab = 0;
  std::int64_t tokens = 0;
  std::string content;         ///< XXH3-128 of all tokens as the file has them, 32 hexadecimal digits
  std::int64_t documents = 0;  ///< whose tokens, or the last of them, are in the file
};

/// The name of the sidecar of `token_file`.
std::filesystem::path sidecar_path(const std::filesystem::path& token_file);

/// Writes the sidecar of `token_file` by a temporary file and a rename. Throws ExitCode::io.
void write_sidecar(const std::filesystem::path& token_file, const Sidecar& sidecar);

/// The sidecar of `token_file`, or none if there is none. Throws ExitCode::bad_data naming the sidecar if it
/// is not what it must be, ExitCode::io if it cannot be read.
std::optional<Sidecar> read_sidecar(const std::filesystem::path& token_file);

/// Throws ExitCode::usage if `token_file`, whose sidecar is `sidecar`, was made by another tokenizer than
/// `tokenizer`, the one that `where` names.
void check_tokenizer(const std::filesystem::path& token_file, const Sidecar& sidecar,
                     const TokenizerIdentity& tokenizer, const std::string& where);

}  // namespace mylos
