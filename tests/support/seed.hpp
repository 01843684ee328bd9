// SPDX-License-Identifier: BSD-3-Clause
// How tests make random choices: from a seed that a user can set.
#pragma once

namespace mylos::test {

/// The seed of tests that make random choices: that of the environment variable MYLOS_SEED, else 1. What a
/// choice meets may still differ: checkpoints describe their machine, and a kill comes at another moment.
unsigned seed_of_tests();

}  // namespace mylos::test
