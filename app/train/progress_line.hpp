// SPDX-License-Identifier: BSD-3-Clause
// ProgressLine: a line of a terminal that is redrawn in place.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace mylos {

class ProgressLine {
 public:
  /// No use in redrawing it more often.
  static constexpr std::chrono::milliseconds redraw_interval{200};

  explicit ProgressLine(std::FILE* stream) : stream_(stream) {}

  bool is_on_terminal() const;
  /// The columns of the terminal. If the stream is not a terminal, as under most launchers, $COLUMNS, or 80
  /// if that is not set.
  int columns() const;

  /// Draws `text` instead of what is drawn, cut to the columns: a line that wraps cannot be redrawn.
  void draw(const std::string& text);
  /// Removes what is drawn, if anything is, so that other text can follow.
  void clear();
  /// Keeps what is drawn, and goes to the next line.
  void keep();

 private:
  std::FILE* stream_;
  bool is_drawn_ = false;
};

/// "ETA 1:02:03" for what is left, if it goes on as what is done has gone in `seconds`; "ETA -:--" if nothing
/// is done.
std::string eta_text(double seconds, double done, double left);

}  // namespace mylos
