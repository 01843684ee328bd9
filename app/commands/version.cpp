// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/version.hpp"

#include <cstdio>

#include "app/commands/commands.hpp"
#include "app/launch/mpi_version.hpp"
#include "core/base/processor.hpp"
#include "core/plugin.hpp"
#include "io/io_thread.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {};
}

/// Libraries that only plugins use are named with their plugins.
int run(const CommandLine& line) {
  const PluginRegistry plugins = PluginRegistry::discover(plugin_search_path(line.text("plugin-path")));
  std::string text = fmt::format("mylos {}\n", version());
  const auto add = [&](const char* what, const std::string& value) {
    text += fmt::format("{:<10} {}\n", what, value);
  };
  add("commit", git_hash());
  add("compiler", compiler());
  add("processor", processor_text(processor_needs) + " or better");
  add("MPI", mpi_version());
  add("HDF5", hdf5_version());
  for (const PluginInfo& plugin : plugins.all()) {
    const PluginDescriptor* d = plugin.descriptor;
    std::string value = d == nullptr ? plugin.path.string() : d->name;
    if (d != nullptr && *d->kokkos_version != '\0') value += fmt::format(", Kokkos {}", d->kokkos_version);
    if (d != nullptr && *d->libraries != '\0') value += fmt::format(", {}", d->libraries);
    if (plugin.problem.empty()) {
      value += ": usable";
    } else {
      value += fmt::format(": {}: {}", d == nullptr ? "cannot be loaded" : "not usable here", plugin.problem);
    }
    add("plugin", value);
  }
  if (plugins.all().empty()) add("plugin", "none found");
  fmt::print("{}", text);
  return 0;
}

}  // namespace

const Command version_command{.name = "version",
                              .arguments = "",
                              .summary = "show the versions of mylos, of its libraries and of its plugins",
                              .options = options,
                              .run = run,
                              .max_arguments = 0,
                              .processes = Processes::first};

}  // namespace mylos
