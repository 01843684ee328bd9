// SPDX-License-Identifier: BSD-3-Clause
// mylos: one executable with subcommands.
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <unistd.h>

#include "app/commands/commands.hpp"
#include "app/launch/last_resort.hpp"
#include "app/launch/launcher.hpp"
#include "core/base/error.hpp"
#include "core/base/say.hpp"

namespace {

/// Occupies the standard streams that are closed, which the next files would become, by something that cannot
/// be used: otherwise what is printed would be written into these files.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0)
      static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

int run(int argc, char** argv) {
  try {
    return mylos::run_command(argc, argv);
  } catch (const std::exception& exception) {
    const mylos::Error error = mylos::error_of(exception);
    const bool is_foreseen = dynamic_cast<const mylos::Error*>(&exception) != nullptr;
    if (!is_foreseen || mylos::launched_rank() == 0) mylos::say(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  mylos::catch_library_failures();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit then returns an error
  const int code = run(argc, argv);
  std::fflush(nullptr);
  // Exit handlers are skipped: they may hang, and the watchdog no longer runs.
  _exit(code);
}
