// SPDX-License-Identifier: BSD-3-Clause
// How tests make random choices: from a seed that a user can set.
#pragma once

namespace mylos::test {

/// The seed of tests that make random choices: that of the environment variable MYLOS_SEED, else 1, so that
/// the tests of one commit make the same choices everywhere.
unsigned seed_of_tests();

}  // namespace mylos::test
