// SPDX-License-Identifier: BSD-3-Clause
// The compute backends of a test program: created at first use, destroyed after the last test.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/compute_backends.hpp"

namespace mylos {

/// The backends of this process, created by the first call; each call must request the same `num_threads`.
ComputeBackends& test_backends(int num_threads = 2);

/// For INSTANTIATE_TEST_SUITE_P: names each test after its backend.
inline std::string backend_test_name(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace mylos
