// SPDX-License-Identifier: BSD-3-Clause
// JSON lines: a line gives the same text or error in whatever parts it comes; if the library reads an object,
// the text is the library's or is refused for another reason than a syntax error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.hpp"
#include "io/json.hpp"
#include "io/tokens/json_text.hpp"

namespace {

using namespace mylos;

std::string text_of(std::string_view line, std::size_t part, bool& is_good) {
  JsonText json("text");
  std::string text;
  is_good = false;
  try {
    for (std::size_t at = 0; at < line.size(); at += part) json.take(line.substr(at, part), text);
    is_good = json.end();
    return text;
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data) std::abort();
    return error.what();
  }
}

}  // namespace

/// Byte 0 sets the size of the parts.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view line(reinterpret_cast<const char*>(data) + 1, size - 1);
  bool is_good = false;
  bool is_good_in_parts = false;
  const std::string text = text_of(line, line.size() + 1, is_good);
  if (text_of(line, 1U + data[0], is_good_in_parts) != text || is_good != is_good_in_parts) std::abort();
  if (line.find('\0') != std::string_view::npos) return 0;  // the library's reader ends there
  const auto whole = Json::parse_if_whole(line);
  if (!whole || !whole->is_object()) return 0;
  // Unlike mylos, the library accepts a byte order mark and a second "text", and refuses lone surrogates.
  if (is_good ? whole->text("text") != text
              : text.rfind("not JSON:", 0) == 0 ||
                    (text.rfind("not a JSON object", 0) == 0 && line.rfind("\xef\xbb\xbf", 0) != 0 &&
                     text.find("levels") == std::string::npos))
    std::abort();
  return 0;
}
