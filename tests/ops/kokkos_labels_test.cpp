// SPDX-License-Identifier: BSD-3-Clause
// The kernels and allocations of operations, and the fences of `synchronize`, carry labels "mylos::...",
// except allocations that Kokkos makes for itself. Once warm, operations neither wait nor allocate.
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <Kokkos_Core.hpp>
#include <gtest/gtest.h>

#include "tests/ops/op_run.hpp"
#include "tests/support/backend_fixture.hpp"

namespace mylos {

namespace {

/// What Kokkos has reported since the last `take`. The callbacks are plain functions, hence one object per
/// process.
struct Events {
  std::vector<std::string> kernels;
  std::vector<std::string> allocations;
  std::vector<std::string> fences;
  std::vector<std::string> regions;  // "" for the end of a region

  static Events& current() {
    static Events events;
    return events;
  }
  static Events take() { return std::exchange(current(), {}); }
};

void on_kernel(const char* name, std::uint32_t, std::uint64_t*) {
  Events::current().kernels.emplace_back(name);
}
void on_fence(const char* name, std::uint32_t, std::uint64_t*) {
  Events::current().fences.emplace_back(name);
}
void on_region(const char* name) {
  Events::current().regions.emplace_back(name);
}
void on_region_end() {
  Events::current().regions.emplace_back();
}
void on_allocation(Kokkos::Tools::SpaceHandle, const char* name, const void*, std::uint64_t) {
  Events::current().allocations.emplace_back(name);
}

// Otherwise Kokkos would wait at every event, for the sake of timing tools.
void on_settings_request(std::uint32_t, Kokkos_Tools_ToolSettings* settings) {
  settings->requires_global_fencing = false;
}

class KokkosLabelsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    namespace tools = Kokkos::Tools::Experimental;
    tools::set_request_tool_settings_callback(on_settings_request);
    tools::set_begin_parallel_for_callback(on_kernel);
    tools::set_begin_parallel_reduce_callback(on_kernel);
    tools::set_begin_parallel_scan_callback(on_kernel);
    tools::set_begin_fence_callback(on_fence);
    tools::set_allocate_data_callback(on_allocation);
    tools::set_push_region_callback(on_region);
    tools::set_pop_region_callback(on_region_end);
    backend();
    Events::take();
  }
  void TearDown() override { Kokkos::Tools::Experimental::pause_tools(); }

  ComputeBackend& backend() { return test_backends().at(GetParam()); }
};

/// Kokkos names what it allocates for itself, such as the scratch of its teams, "Kokkos::...".
void expect_labelled(const std::vector<std::string>& labels, const char* what) {
  for (const std::string& label : std::set<std::string>(labels.begin(), labels.end())) {
    EXPECT_TRUE(label.starts_with("mylos::") || label.starts_with("Kokkos::"))
        << what << " \"" << label << "\"";
  }
}

TEST_P(KokkosLabelsTest, RangesAreRegionsOfTools) {
  backend().begin_range("step");
  backend().begin_range("adamw");
  backend().end_range();
  backend().end_range();
  EXPECT_EQ(Events::take().regions, (std::vector<std::string>{"step", "adamw", "", ""}));
}

TEST_P(KokkosLabelsTest, EveryOperation) {
  std::set<Op> covered;
  std::set<std::string> kernels;
  for (const OpCase& c : op_cases()) {
    if (c.bytes > 1e6) continue;  // to save time
    SCOPED_TRACE(c.name());
    const Contents initial = initial_contents(c);
    OpRun run(c, backend(), initial);
    expect_labelled(Events::take().allocations, "allocation");
    run.run();
    const Events cold = Events::take();
    run.run();
    const Events warm = Events::take();
    run.contents();
    const Events waiting = Events::take();

    for (const std::string& kernel : cold.kernels) {
      EXPECT_TRUE(kernel.starts_with("mylos::")) << "kernel \"" << kernel << "\"";
      kernels.insert(kernel);
    }
    expect_labelled(cold.allocations, "allocation");
    for (const std::string& fence : waiting.fences) {
      EXPECT_TRUE(fence.starts_with("mylos::")) << "fence \"" << fence << "\"";
    }
    EXPECT_FALSE(waiting.fences.empty()) << "synchronize has no fence";
    EXPECT_TRUE(warm.fences.empty()) << "waits at \"" << warm.fences.front() << "\"";
    EXPECT_TRUE(warm.allocations.empty()) << "allocates \"" << warm.allocations.front() << "\" again";
    covered.insert(c.op);
  }
  EXPECT_EQ(covered.size(), std::size_t{Operations::count}) << "an operation has no case";
  EXPECT_GT(kernels.size(), 10U) << "Kokkos did not call back";
}

INSTANTIATE_TEST_SUITE_P(Backends, KokkosLabelsTest, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

}  // namespace

}  // namespace mylos
