// SPDX-License-Identifier: BSD-3-Clause
// Plot: curves over the steps of a run as a card of the HTML report. Also formats the report's numbers, text
// and data.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.hpp"
#include "io/metrics/metrics.hpp"

namespace mylos::html {

using Column = std::vector<double>;
using Points = std::vector<std::pair<double, double>>;

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Shown if a number is unknown.
inline constexpr const char* missing = "–";

/// Whether a drawing can place `value`: finite, and small enough that differences do not overflow.
inline bool drawable(double value) {
  return std::abs(value) < 1e30;
}

/// The column `name` of a table, empty if the table lacks it.
const Column& column(const MetricsTable& table, const std::string& name);

/// The quantile `fraction` of the drawable values; NaN if no value is drawable.
double quantile_of(const Column& values, double fraction);

/// `text` for use between tags and in attributes in double quotes. Characters below U+0020 except tab and
/// newline are dropped; U+FFFD replaces U+FFFE, U+FFFF and each byte that is not UTF-8.
std::string escape(std::string_view text);

/// The element with `data` for the page's script. Its text holds no <, > and &, so nothing in `data` ends it.
std::string data_element(const Json& data);

/// At most 4 digits and a suffix for the power of 1000: 950, 12.3k, 4.19M.
std::string short_number(double value);

/// A whole number in groups of three digits: 12,345,678.
std::string grouped(double value);

struct Axis;

/// A card with curves over the step. Text and marks are placed in per cent of the SVG element, so letters
/// keep their size at any width; only the curves, which the page's script draws, are in a stretched viewBox.
/// The page's style sets the margins.
class Plot {
 public:
  enum class Look { line, thin, dots };
  enum class Size { third, wide };

  Plot(std::string title, std::string unit) : title_(std::move(title)), unit_(std::move(unit)) {}

  /// For curves added later: values before `step` may leave the frame; they widen a linear axis only if their
  /// curve has no others.
  void fit_from(double step) { fit_from_ = step; }
  /// Adds `values` over `steps` in colour 0 to 7, thinned to at most 600 points that keep the extremes of
  /// every interval.
  void curve(const std::string& name, int color, Look look, const Column& steps, const Column& values);
  /// Marks the steps whose flag is set.
  void skipped(const Column& steps, const Column& flags);
  /// Makes a linear axis of values that are not negative include zero.
  void from_zero() { low_ = std::fmin(low_, 0.0); }
  /// Makes the axis logarithmic if the values are positive and span more than a factor of 30: a linear axis
  /// would press most of them against its lower end.
  void maybe_log() { log_ = lowest_ > 0.0 && highest_ > 30.0 * lowest_; }

  /// Appends the card. `run` holds the first and last step of the run; `launches` after the first are drawn
  /// as restarts.
  void write(std::string& out, std::pair<double, double> run, const MetricsTable& launches, Size size) const;

 private:
  struct Curve {
    std::string name;
    int color;
    Look look;
    Points points;
  };

  void write_keys(std::string& out, bool restarts) const;
  void write_axes(std::string& out, const Axis& x, const Axis& y) const;
  Json data(const Axis& x, const Axis& y) const;
  void write_skipped(std::string& out, const Axis& x) const;

  std::string title_;
  std::string unit_;
  std::vector<Curve> curves_;
  Column skipped_;
  double fit_from_ = -std::numeric_limits<double>::infinity();
  double low_ = nan;  // range of a linear axis
  double high_ = nan;
  double lowest_ = nan;  // range of all values, and of a logarithmic axis
  double highest_ = nan;
  bool log_ = false;
};

}  // namespace mylos::html
