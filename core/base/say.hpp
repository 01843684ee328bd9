// SPDX-License-Identifier: BSD-3-Clause
// say: output that may be lost.
#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace mylos {

/// Prints text that the job does not depend on. Ignores errors of the stream; never throws.
template <class... Args>
void say(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    const std::string text = fmt::format(format, std::forward<Args>(args)...);
    std::fwrite(text.data(), 1, text.size(), stream);
    std::fflush(stream);
  } catch (const std::exception&) {
    return;  // out of memory for a line of text, so a report would fail as well
  }
}

}  // namespace mylos
