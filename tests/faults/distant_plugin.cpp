// SPDX-License-Identifier: BSD-3-Clause
// Plugin "distant": a DistantBackend for the mylos executable. At the end it prints how often the device was
// idle.
#include <cstdio>
#include <memory>

#include "core/plugin.hpp"
#include "tests/support/distant_backend.hpp"

namespace mylos {
namespace {

class ReportingBackend final : public DistantBackend {
 public:
  using DistantBackend::DistantBackend;
  ~ReportingBackend() override {
    fmt::print(stderr, "the distant device was idle {} times\n", device().num_idle());
  }
};

std::unique_ptr<ComputeBackend> create(const ComputeArgs& args) {
  return std::make_unique<ReportingBackend>(*args.next);
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "distant",
    .summary = "for tests: works late, on memory that the host cannot reach",
    .preference = 0,
    .create_compute = create,
};

}  // namespace mylos
