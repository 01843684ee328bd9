// SPDX-License-Identifier: BSD-3-Clause
// Console: the terminal output of a run. Only one rank prints.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "app/train/progress_line.hpp"

namespace mylos {

enum class ProgressStyle : std::uint8_t {
  automatic,  ///< live on a terminal, plain elsewhere
  live,       ///< one line with a bar, redrawn in place
  plain,      ///< a new line every few seconds
  none,
};

/// Parses "auto", "live", "plain" or "none"; throws ExitCode::usage for any other word.
ProgressStyle progress_style(const std::string& word);

struct StepRecord;

/// Thread-safe.
class Console {
 public:
  Console(bool active, ProgressStyle style);

  /// Prints `text` on its own line.
  void line(const std::string& text);
  /// Prints `text` on stderr, after "warning: ".
  void warn(const std::string& text);
  void step(const StepRecord& record);

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;
  bool active_;
  ProgressStyle style_;
  ProgressLine bar_{stdout};
  Clock::time_point last_{};
  Clock::time_point start_{};
  std::int64_t first_step_ = -1;
};

}  // namespace mylos
