// SPDX-License-Identifier: BSD-3-Clause
// Exit codes and the exceptions that carry them.
#pragma once

#include <exception>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace mylos {

/// How a process ends. The value is its exit code. Once a training run has started, the value is also written
/// to `status.json`.
enum class ExitCode : int {
  done = 0,
  usage = 2,       ///< command line, deck or plugin cannot be used, or the run may not start
  numerical = 17,  ///< skipped steps, differing replicas, non-finite values or a loss above `eval --max-loss`
  bad_data = 65,   ///< a token file, checkpoint or other input is invalid
  internal = 70,   ///< a broken invariant, out of memory, or a failure of a library or device
  io = 74,         ///< reading or writing failed or hung
  preempted = 75,  ///< stopped by a signal or the wall-clock limit
  watchdog =
      76,  ///< a rank hung or died, a collective or computation stalled, or ranks differ in their calls
};

/// An error that ends the run with `code`. If a file, deck key or data set is at fault, the message names it.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// An error that all ranks throw together. Its message names the lowest rank that failed, unless all ranks
/// failed.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// Returns `exception` as an Error: itself if it is one; out of memory and threads that cannot be started as
/// ExitCode::internal; other errors of the system as ExitCode::io; anything else as an internal error.
Error error_of(const std::exception& exception);

/// Throws `Error(code)` with a message formatted by fmt.
template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Returns work(). If it throws an Error, throws ExitCode::bad_data with `place` before the Error's message.
auto at_place(const std::string& place, const auto& work) {
  try {
    return work();
  } catch (const Error& error) {
    fail(ExitCode::bad_data, "{}: {}", place, error.what());
  }
}

/// Checks a precondition that only a defect in mylos can break. If `condition` is false, throws
/// ExitCode::internal with the source location.
inline void require(bool condition, const char* what,
                    std::source_location where = std::source_location::current()) {
  if (!condition) {
    fail(ExitCode::internal, "{}:{}: broken precondition: {}", where.file_name(), where.line(), what);
  }
}

}  // namespace mylos
