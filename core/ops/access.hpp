// SPDX-License-Identifier: BSD-3-Clause
// Access: what an operation does to its operands.
#pragma once

#include <cstdint>

namespace mylos {

/// What an operation does to an operand.
enum class Access : std::uint8_t {
  read,
  write,    ///< overwrites the old content
  update,   ///< adds to the old content, or changes it
  scratch,  ///< content is arbitrary before and after
};

constexpr Access access_of(bool accumulate) {
  return accumulate ? Access::update : Access::write;
}

/// Calls visit(name, tensor, access) for each operand. Names and tensors alternate in the arguments.
void visit_all(const auto& visit, Access access, const char* name, auto& tensor, auto&... others) {
  visit(name, tensor, access);
  if constexpr (sizeof...(others) > 0) visit_all(visit, access, others...);
}

}  // namespace mylos
