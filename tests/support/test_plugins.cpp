// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/test_plugins.hpp"

#include <cstdlib>

namespace mylos {

const PluginRegistry& test_plugins() {
  static const PluginRegistry registry = [] {
    const char* build = std::getenv("MYLOS_BUILD");
    if (build == nullptr)
      fail(ExitCode::usage, "set MYLOS_BUILD to the build folder, or run the test by ctest");
    return PluginRegistry::discover({std::filesystem::path(build) / "lib" / "mylos"});
  }();
  return registry;
}

std::unique_ptr<Communicator> open_communicator(std::string_view name, ComputeBackend* compute,
                                                const ParamValues* deck) {
  static const std::unique_ptr<Communicator> bootstrap =
      test_plugins().require(PluginKind::communication, "mpi").create_communicator({});
  const PluginDescriptor& plugin = test_plugins().require(PluginKind::communication, name);
  if (plugin.unusable != nullptr && plugin.unusable() != nullptr)
    fail(ExitCode::usage, "{}", plugin.unusable());
  return plugin.create_communicator(
      {.deck = deck, .bootstrap = bootstrap.get(), .compute = compute, .ledger = nullptr});
}

}  // namespace mylos
