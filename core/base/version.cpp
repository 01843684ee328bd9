// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/version.hpp"

namespace mylos {

const char* version() {
  return MYLOS_VERSION;
}
const char* git_hash() {
  return MYLOS_GIT_HASH;
}
const char* compiler() {
  return MYLOS_COMPILER;
}
std::string code_version() {
  return std::string(version()) + " (" + git_hash() + ")";
}

}  // namespace mylos
