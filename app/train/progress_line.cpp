// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/progress_line.hpp"

#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/base/clock.hpp"
#include "core/base/say.hpp"

namespace mylos {

bool ProgressLine::is_on_terminal() const {
  return ::isatty(::fileno(stream_)) != 0;
}

int ProgressLine::columns() const {
  constexpr int usual = 80;
  winsize size{};
  if (::ioctl(::fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int width = columns != nullptr ? std::atoi(columns) : 0;
  return width > 0 ? width : usual;
}

void ProgressLine::draw(const std::string& text) {
  say(stream_, "\r\033[K{}", text.substr(0, static_cast<std::size_t>(columns()) - 1));
  is_drawn_ = true;
}

void ProgressLine::clear() {
  if (is_drawn_) say(stream_, "\r\033[K");
  is_drawn_ = false;
}

void ProgressLine::keep() {
  if (is_drawn_) say(stream_, "\n");
  is_drawn_ = false;
}

std::string eta_text(double seconds, double done, double left) {
  return "ETA " + (done > 0.0 ? clock_text(seconds / done * left) : "-:--");
}

}  // namespace mylos
