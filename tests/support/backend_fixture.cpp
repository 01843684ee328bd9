// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/backend_fixture.hpp"

#include <memory>

#include "core/base/error.hpp"

namespace mylos {

namespace {

std::unique_ptr<ComputeBackends>& slot() {
  static std::unique_ptr<ComputeBackends> backends;
  return backends;
}

// Kokkos must be finalised before the libraries that it uses are torn down at exit.
class Teardown : public testing::Environment {
 public:
  void TearDown() override { slot().reset(); }
};
const testing::Environment* const teardown = testing::AddGlobalTestEnvironment(new Teardown);

}  // namespace

ComputeBackends& test_backends(int num_threads) {
  static const int first_request = num_threads;
  require(num_threads == first_request, "the same number of threads in each call");
  if (!slot()) slot() = std::make_unique<ComputeBackends>(num_threads);
  return *slot();
}

}  // namespace mylos
