// SPDX-License-Identifier: BSD-3-Clause
// Tokenizer files of model folders: any text either gives a tokenizer, or the reason why not, or is refused
// as bad data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.hpp"
#include "io/json.hpp"
#include "io/tokens/byte_characters.hpp"
#include "io/tokens/hugging_face_tokenizer.hpp"

namespace {

using mylos::FoundTokenizer;

void check(const FoundTokenizer& found) {
  if (found.reason.empty() != (found.tokenizer != nullptr)) std::abort();
  if (found.reason.size() > 1000 || !found.ranks.empty()) std::abort();  // no input is as long as GPT-2's
}

/// The entries of the single bytes: otherwise, few generated inputs would contain all of them.
std::string byte_entries(bool by_value) {
  std::string text;
  for (std::size_t id = 0; id < 256; ++id) {
    const auto byte = by_value ? static_cast<unsigned char>(id) : mylos::bytes_by_character[id];
    const std::string bytes(1, static_cast<char>(byte));
    text += mylos::Json(mylos::characters_of(bytes)).dump() + ":" + std::to_string(id) + ",";
  }
  return text;
}

}  // namespace

/// Byte 0 selects the kind of file and what stands before the input. vocab.json and merges.txt have a zero
/// byte between them; merges may be the input's second part in tokenizer.json, too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string gpt2_bytes = byte_entries(false);
  static const std::string values = byte_entries(true);
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t end = text.find('\0');
  const std::string first = text.substr(0, end);
  const std::string second = end == std::string::npos ? "" : text.substr(end + 1);
  const std::string& bytes = (data[0] & 1U) != 0 ? gpt2_bytes : values;
  try {
    switch (data[0] >> 1U & 3U) {
      case 0:
        check(mylos::tokenizer_of_json(text, "json"));
        break;
      case 1:
        check(mylos::tokenizer_of_vocab(first, "vocab", second, "merges"));
        break;
      case 2:
        check(mylos::tokenizer_of_vocab("{" + bytes + first + "}", "vocab", second, "merges"));
        break;
      default:
        check(mylos::tokenizer_of_json(R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)"
                                       R"("model":{"vocab":{)" +
                                           bytes + first + R"(},"merges":[)" + second + "]}}",
                                       "json"));
    }
  } catch (const mylos::Error& error) {
    if (error.code() != mylos::ExitCode::bad_data) std::abort();
  }
  return 0;
}
