// SPDX-License-Identifier: BSD-3-Clause
// mylos: one executable with subcommands.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <system_error>
#include <unistd.h>

#include "app/commands/commands.hpp"
#include "core/base/error.hpp"
#include "core/base/say.hpp"

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
  std::signal(SIGXFSZ, SIG_IGN);  // a file that reaches its limit is an error of the write
  try {
    const int code = mylos::run_command(argc, argv);
    std::fflush(nullptr);
    // What is left to do at exit could only hang, when nobody watches any more.
    _exit(code);
  } catch (const mylos::Error& error) {
    if (speaks()) mylos::say(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::system_error& error) {
    if (speaks()) mylos::say(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::io);
  } catch (const std::exception& error) {
    mylos::say(stderr, "mylos: internal error: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::internal);
  }
}
