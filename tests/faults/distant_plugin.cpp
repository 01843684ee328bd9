// SPDX-License-Identifier: BSD-3-Clause
// Plugin "distant": a DistantBackend for the mylos executable. At the end it prints how often the device was
// idle.
#include <cstdio>
#include <memory>

#include "core/plugin.hpp"
#include "tests/support/distant_backend.hpp"

namespace mylos {
namespace {

ComputeBackend* create(const ComputeArgs& args) {
  return std::make_unique<DistantBackend>(*args.next).release();
}
void destroy(ComputeBackend* backend) {
  const std::unique_ptr<ComputeBackend> owner(backend);
  fmt::print(stderr, "the distant device was idle {} times\n",
             static_cast<const DistantBackend&>(*backend).device().num_idle());
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "distant",
    .summary = "for tests: works late, on memory that the host cannot reach",
    .preference = 0,
    .create_compute = create,
    .destroy_compute = destroy,
};

}  // namespace mylos
