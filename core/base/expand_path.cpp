// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/expand_path.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <pwd.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace mylos {

namespace {

/// What the beginning of a path stands for, and the rest of the path.
struct Expansion {
  std::string value;
  std::string_view rest;
};

bool is_name(std::string_view text) {
  const auto belongs = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::ranges::all_of(text, belongs);
}

Expansion expand_home(std::string_view path) {
  const std::size_t end = std::min(path.find('/'), path.size());
  const std::string user(path.substr(1, end - 1));
  const char* home = user.empty() ? std::getenv("HOME") : nullptr;
  if (home == nullptr || *home == '\0') {
    const passwd* entry = user.empty() ? ::getpwuid(::getuid()) : ::getpwnam(user.c_str());
    home = entry != nullptr ? entry->pw_dir : nullptr;
  }
  if (home == nullptr) {
    if (user.empty()) fail(ExitCode::usage, "{}: the variable HOME is not set", path);
    fail(ExitCode::usage, "{}: there is no user \"{}\"; a name that begins with ~ is written ./{}", path,
         user, path);
  }
  return {home, path.substr(end)};
}

Expansion expand_variable(std::string_view path) {
  const bool has_braces = path.starts_with("${");
  const std::size_t begin = has_braces ? 2 : 1;
  std::size_t end = begin;
  while (end < path.size() && is_name(path.substr(begin, end + 1 - begin))) ++end;
  const std::string name(path.substr(begin, end - begin));
  const bool is_closed = !has_braces || path.substr(end).starts_with('}');
  if (name.empty() || !is_closed) {
    fail(ExitCode::usage,
         "{}: a variable is written $NAME or ${{NAME}}; a name that begins with $ is written ./{}", path,
         path);
  }
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0')
    fail(ExitCode::usage, "{}: the variable {} is not set{}", path, name,
         value != nullptr ? " to anything" : "");
  return {value, path.substr(end + (has_braces ? 1 : 0))};
}

Expansion expand(std::string_view path) {
  if (path.starts_with('~')) return expand_home(path);
  if (path.starts_with('$')) return expand_variable(path);
  return {"", path};
}

}  // namespace

std::string expand_path(std::string_view path) {
  const Expansion expansion = expand(path);
  return expansion.value + std::string(expansion.rest);
}

std::string expand_glob(std::string_view pattern) {
  const Expansion expansion = expand(pattern);
  return quote_glob(expansion.value) + std::string(expansion.rest);
}

std::string quote_glob(std::string_view name) {
  std::string quoted;
  for (const char c : name) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) quoted += '\\';
    quoted += c;
  }
  return quoted;
}

}  // namespace mylos
