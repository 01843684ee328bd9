// SPDX-License-Identifier: BSD-3-Clause
// What was built: version and git hash.
#pragma once

#include <string>

namespace mylos {

const char* version();
/// Returns the commit as `git describe --always --dirty` named it when CMake configured the build, or
/// "unknown" outside a checkout.
const char* git_hash();
/// Returns the compiler: "GNU 12.2.0".
const char* compiler();
/// Returns version and commit: "0.1.0 (1a2b3c4d5e6f)".
std::string code_version();

}  // namespace mylos
