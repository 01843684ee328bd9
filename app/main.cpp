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

/// Whether this process prints errors for its job: it is rank 0 of its launcher, or no launcher started it.
bool prints_errors() {
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    const char* rank = std::getenv(name);
    if (rank != nullptr && std::string_view(rank) != "0") return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit returns an error instead
  try {
    const int code = mylos::run_command(argc, argv);
    std::fflush(nullptr);
    // Exit handlers are skipped: they may hang, and the watchdog no longer runs.
    _exit(code);
  } catch (const mylos::Error& error) {
    if (prints_errors()) mylos::say(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::system_error& error) {
    if (prints_errors()) mylos::say(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::io);
  } catch (const std::exception& error) {
    mylos::say(stderr, "mylos: internal error: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::internal);
  }
}
