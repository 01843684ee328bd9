// SPDX-License-Identifier: BSD-3-Clause
// Lists of kinds: the named choices of a deck key, one constant per kind.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/join.hpp"

namespace mylos {

/// Returns the kind with this name. Throws ExitCode::internal if there is none: the check of the deck should
/// have rejected the name.
template <class Kind>
const Kind& find_kind(std::span<const Kind* const> kinds, std::string_view name) {
  for (const Kind* kind : kinds) {
    if (kind->name == name) return *kind;
  }
  fail(ExitCode::internal, "no kind is called \"{}\"", name);
}

/// Returns "a|b|c", the choices of a deck key.
template <class Kind>
std::string choices_of(std::span<const Kind* const> kinds) {
  std::vector<std::string_view> names;
  for (const Kind* kind : kinds) names.emplace_back(kind->name);
  return join(names, "|");
}

/// Returns "a: what it is; b: what it is", for the deck's reference.
template <class Kind>
std::string docs_of(std::span<const Kind* const> kinds) {
  std::vector<std::string> texts;
  for (const Kind* kind : kinds) texts.push_back(fmt::format("{}: {}", kind->name, kind->doc));
  return join(texts, "; ");
}

}  // namespace mylos
