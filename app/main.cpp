// SPDX-License-Identifier: BSD-3-Clause
// mylos: one executable with subcommands.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string_view>

#include "app/commands/commands.hpp"
#include "core/base/error.hpp"

namespace {

/// Whether this process speaks for its job: rank 0 of whichever launcher started it, or no launcher at all.
bool speaks() {
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(name);
    if (rank != nullptr && std::string_view(rank) != "0") return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return mylos::run_command(argc, argv);
  } catch (const mylos::Error& error) {
    if (speaks()) fmt::print(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    if (speaks()) fmt::print(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::io);
  } catch (const std::exception& error) {
    fmt::print(stderr, "mylos: internal error: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::internal);
  }
}
