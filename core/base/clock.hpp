// SPDX-License-Identifier: BSD-3-Clause
// Clock: the time that durations and limits are measured with, which a test may drive. What is only shown or
// traced keeps std::chrono::steady_clock. Durations in seconds, and as text.
#pragma once

#include <chrono>
#include <string>

namespace mylos {

/// The monotonic clock, with the same time points as std::chrono::steady_clock. If MYLOS_CLOCK names a file,
/// the time is that file's content instead: nanoseconds as a 64-bit integer, which another process may
/// change at any moment. For tests of when a time begins and what it interrupts: no time passes unless the
/// test says so.
class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using time_point = std::chrono::steady_clock::time_point;

  /// The first call throws ExitCode::usage if MYLOS_CLOCK names a file that cannot be used.
  static time_point now();
  /// The value of MYLOS_CLOCK; empty if time passes by itself.
  static const char* driver();
};

constexpr double in_seconds(std::chrono::duration<double> duration) {
  return duration.count();
}

inline double seconds_since(Clock::time_point begin) {
  return in_seconds(Clock::now() - begin);
}

/// A duration as a clock shows it, in whole seconds: "2:03", "1:02:03". "0:00" if it is negative.
std::string clock_text(double seconds);

}  // namespace mylos
