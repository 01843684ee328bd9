// SPDX-License-Identifier: BSD-3-Clause
// What Python does with text, which must be UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mylos::python {

/// The size of `text` without white space at its end, in bytes. White space is what str.isspace says, which
/// includes U+001C to U+001F.
std::size_t size_without_spaces(std::string_view text);
/// str.strip: without white space at both ends.
std::string_view strip(std::string_view text);
/// str.replace: from left to right; what was put in is not searched again. `from` is not empty.
std::string replace(std::string_view text, std::string_view from, std::string_view to);
/// str.capitalize: the first character in title case, all others in lower case, also those that become
/// several characters, and with the final sigma.
std::string capitalize(std::string_view text);
/// len
std::int64_t length(std::string_view text);

}  // namespace mylos::python
