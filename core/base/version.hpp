// SPDX-License-Identifier: BSD-3-Clause
// What was built: version and git hash.
#pragma once

#include <string>

namespace mylos {

const char* version();
/// The commit from which CMake configured the build, with "-dirty" if the tree differed from it; "unknown"
/// outside a checkout.
const char* git_hash();
/// Both: "0.1.0 (1a2b3c4)".
std::string code_version();

}  // namespace mylos
