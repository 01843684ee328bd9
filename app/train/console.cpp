// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/console.hpp"

#include <algorithm>
#include <cstdio>
#include <poll.h>
#include <unistd.h>

#include "app/train/step_record.hpp"
#include "core/base/clock.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/say.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace {

constexpr std::chrono::seconds line_interval{5};
constexpr int most_bar_width = 24;
constexpr int wide_terminal = 100;

std::string rate(double tokens_per_second) {
  if (tokens_per_second >= 1e6) return fmt::format("{:.2f}M tok/s", tokens_per_second / 1e6);
  if (tokens_per_second >= 1e3) return fmt::format("{:.1f}k tok/s", tokens_per_second / 1e3);
  return fmt::format("{:.0f} tok/s", tokens_per_second);
}

}  // namespace

ProgressStyle progress_style(const std::string& word) {
  if (word == "auto") return ProgressStyle::automatic;
  if (word == "live") return ProgressStyle::live;
  if (word == "plain") return ProgressStyle::plain;
  if (word == "none") return ProgressStyle::none;
  fail(ExitCode::usage, "--progress={} must be auto, live, plain or none", word);
}

Console::Console(bool active, ProgressStyle style) : active_(active), style_(style) {
  if (style_ == ProgressStyle::automatic)
    style_ = bar_.is_on_terminal() ? ProgressStyle::live : ProgressStyle::plain;
}

namespace {

/// Waits until a stream takes a line. Returns false if a signal asks the run to end before: nobody reads it.
bool takes_output(int stream) {
  try {
    wait_until_ready(stream, POLLOUT, "the console");
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void Console::line(const std::string& text) {
  if (!active_) return;
  const std::lock_guard lock(mutex_);
  if (!takes_output(STDOUT_FILENO)) return;
  bar_.clear();
  say(stdout, "{}\n", text);
}

void Console::warn(const std::string& text) {
  if (!active_) return;
  const std::lock_guard lock(mutex_);
  if (!takes_output(STDOUT_FILENO) || !takes_output(STDERR_FILENO)) return;
  bar_.clear();
  say(stderr, "warning: {}\n", text);
}

void Console::step(const StepRecord& s) {
  if (!active_ || style_ == ProgressStyle::none) return;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const StepScalars& scalars = s.scalars;
  const bool skipped = scalars.skip != 0;
  if (first_step_ < 0) {
    first_step_ = s.step;
    start_ = now;
  }
  const bool live = style_ == ProgressStyle::live;
  const bool last = s.step == s.steps;
  const bool due = live ? now - last_ >= ProgressLine::redraw_interval : now - last_ >= line_interval;
  if (!due && !last && !skipped && s.step != first_step_) return;
  if (!takes_output(STDOUT_FILENO)) return;
  last_ = now;

  const std::string eta = eta_text(in_seconds(now - start_), static_cast<double>(s.step - first_step_),
                                   static_cast<double>(s.steps - s.step));
  std::string text = fmt::format("loss {:>7}", decimals(scalars.loss, 4));
  const int columns = bar_.columns();
  if (!live || skipped || columns >= wide_terminal)
    text += fmt::format("  norm {:8.3g}  lr {:.2e}", scalars.gradient_norm, scalars.learning_rate);
  text += fmt::format("  {:>12}  MFU {:4.1f} %  {}", rate(s.tokens_per_second), 100.0 * s.mfu, eta);
  if (skipped) text += "  SKIPPED";
  const int width = static_cast<int>(std::to_string(s.steps).size());
  if (!live || skipped) {
    bar_.clear();
    say(stdout, "step {:>{}}/{}  {}\n", s.step, width, s.steps, text);
  } else {
    std::string bar = fmt::format(" {:>{}}/{}  {}", s.step, width, s.steps, text);
    const int bar_width = std::clamp(columns - static_cast<int>(bar.size()) - 3, 0, most_bar_width);
    const auto filled = static_cast<std::size_t>(bar_width * s.step / std::max<std::int64_t>(s.steps, 1));
    const auto empty = static_cast<std::size_t>(bar_width) - filled;
    bar = fmt::format("[{}{}]{}", std::string(filled, '='), std::string(empty, ' '), bar);
    bar_.draw(bar);
    if (last) bar_.keep();
  }
}

}  // namespace mylos
