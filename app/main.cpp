// SPDX-License-Identifier: BSD-3-Clause
// mylos: one executable with subcommands.
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>
#include <unistd.h>

#include "app/commands/commands.hpp"
#include "app/mpi_runtime.hpp"
#include "core/base/error.hpp"
#include "core/base/say.hpp"
#include "io/file_util.hpp"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit then returns an error
  try {
    const int code = mylos::run_command(argc, argv);
    std::fflush(nullptr);
    // Exit handlers are skipped: they may hang, and the watchdog no longer runs.
    _exit(code);
  } catch (const mylos::Error& error) {
    if (mylos::launched_rank() == 0) mylos::say(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::system_error& error) {
    if (mylos::launched_rank() == 0) mylos::say(stderr, "mylos: {}\n", mylos::message_of(error));
    return static_cast<int>(mylos::ExitCode::io);
  } catch (const std::exception& error) {
    mylos::say(stderr, "mylos: internal error: {}\n", error.what());
    return static_cast<int>(mylos::ExitCode::internal);
  }
}
