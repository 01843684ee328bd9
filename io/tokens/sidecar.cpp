// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/sidecar.hpp"

#include <vector>

#include "core/base/error.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"

namespace mylos {

namespace fs = std::filesystem;

std::string TokenizerIdentity::text() const {
  return ranks.empty() ? name : fmt::format("{} (ranks {})", name, ranks);
}

fs::path sidecar_path(const fs::path& token_file) {
  return token_file.string() + ".json";
}

void write_sidecar(const fs::path& token_file, const Sidecar& sidecar) {
  std::vector<Json::Member> members = {{"tokenizer", sidecar.tokenizer.name},
                                       {"vocab", sidecar.vocab},
                                       {"tokens", sidecar.tokens},
                                       {"content", sidecar.content},
                                       {"documents", sidecar.documents}};
  if (!sidecar.tokenizer.ranks.empty()) members.emplace_back("ranks", sidecar.tokenizer.ranks);
  write_text_file(sidecar_path(token_file), Json::object(members).dump(2) + "\n");
}

std::optional<Sidecar> read_sidecar(const fs::path& token_file) {
  fs::path file = sidecar_path(token_file);
  std::error_code not_there;
  if (!fs::exists(fs::symlink_status(file, not_there))) file = sidecar_path(follow_links(token_file));
  if (!fs::exists(fs::symlink_status(file, not_there))) return std::nullopt;
  constexpr std::size_t most_bytes = 65536;
  const std::string text = read_text_file(file, most_bytes);
  return at_place(file.string(), [&] {
    const Json json = Json::parse(text);
    return Sidecar{
        .tokenizer = {.name = json.text("tokenizer"), .ranks = json.has("ranks") ? json.text("ranks") : ""},
        .vocab = json.integer("vocab"),
        .tokens = json.integer("tokens"),
        .content = json.text("content"),
        .documents = json.integer("documents")};
  });
}

void check_tokenizer(const fs::path& token_file, const Sidecar& sidecar, const TokenizerIdentity& tokenizer,
                     const fs::path& other_file) {
  if (sidecar.tokenizer == tokenizer) return;
  fail(ExitCode::usage, "{} holds tokens of {}, but {} holds tokens of {}", token_file.string(),
       sidecar.tokenizer.text(), other_file.string(), tokenizer.text());
}

}  // namespace mylos
