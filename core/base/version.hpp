// SPDX-License-Identifier: BSD-3-Clause
// What was built: version and git hash.
#pragma once

namespace mylos {

const char* version();
/// The commit that was configured, with "-dirty" where the tree differed; "unknown" outside a checkout.
const char* git_hash();

}  // namespace mylos
