// SPDX-License-Identifier: BSD-3-Clause
#include "io/report/html_plot.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include <fmt/core.h>

#include "core/base/statistics.hpp"
#include "io/utf8.hpp"

namespace mylos::html {

const Column& column(const MetricsTable& table, const std::string& name) {
  static const Column none;
  const auto it = table.find(name);
  return it == table.end() ? none : it->second;
}

double quantile_of(const Column& values, double fraction) {
  Column kept;
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept), drawable);
  return kept.empty() ? nan : mylos::quantile(std::move(kept), fraction);
}

std::string escape(std::string_view text) {
  std::string out;
  constexpr std::pair<char, std::string_view> entities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}};
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const auto [point, bytes] = decode_utf8(at, end);
    const auto* entity = std::ranges::find(entities, *at, &std::pair<char, std::string_view>::first);
    if (entity != std::end(entities)) {
      out += entity->second;
    } else if (bytes == 0 || (point | 1U) == 0xffffU) {  // XML has no U+FFFE and U+FFFF
      out += encode_utf8(0xfffd);
    } else if (static_cast<unsigned char>(*at) >= 0x20 || *at == '\n' || *at == '\t') {
      out.append(at, bytes);
    }
    at += std::max(bytes, 1U);
  }
  return out;
}

std::string data_element(const Json& data) {
  std::string out = R"(<script type="application/json">)";
  for (const char c : data.ascii()) {
    if (c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + "</script>";
}

std::string short_number(double value) {
  if (!drawable(value)) return missing;
  constexpr std::string_view suffixes[] = {"", "k", "M", "G", "T"};
  std::size_t thousands = 0;
  while (std::abs(value) >= (thousands == 0 ? 9999.5 : 999.5) && thousands + 1 < std::size(suffixes)) {
    value /= 1000.0;
    ++thousands;
  }
  return thousands == 0 ? fmt::format("{:.4g}", value) : fmt::format("{:.3g}{}", value, suffixes[thousands]);
}

std::string grouped(double value) {
  if (!(std::abs(value) < 1e15)) return missing;
  std::string digits = fmt::format("{}", std::llround(value));
  for (std::ptrdiff_t i = std::ssize(digits) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

// An axis of a plot: its range and its ticks.
struct Axis {
  double low = 0.0;
  double high = 1.0;
  bool log = false;
  Column ticks;

  // 0 at `low`, 1 at `high`.
  double position(double value) const {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};

namespace {

constexpr std::size_t max_points = 600;  // per curve; also limits the marks of restarts and skipped steps

// Ticks at multiples of 1, 2 or 5 times a power of ten. With `whole` the axis begins and ends at a tick.
Axis linear_axis(double low, double high, bool whole) {
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) {
    const double pad = low == 0.0 ? 1.0 : 0.1 * std::abs(low);
    low -= pad;
    high += pad;
  }
  const double raw = (high - low) / 5.0, decade = std::pow(10.0, std::floor(std::log10(raw))),
               digit = raw / decade;
  const double step = decade * (digit < 1.5 ? 1.0 : digit < 3.5 ? 2.0 : digit < 7.5 ? 5.0 : 10.0);
  const double first = whole ? std::floor(low / step + 1e-9) : std::ceil(low / step - 1e-9);
  const double final = whole ? std::ceil(high / step - 1e-9) : std::floor(high / step + 1e-9);
  Axis axis{whole ? first * step : low, whole ? final * step : high, false, {}};
  for (double k = first; k <= final; k += 1.0) axis.ticks.push_back(k * step);
  return axis;
}

// An axis that begins and ends at 1, 2 or 5 times a power of ten; beyond three decades only powers of ten
// have ticks.
Axis log_axis(double low, double high) {
  Axis axis{0.0, 0.0, true, {}};
  const int first = static_cast<int>(std::floor(std::log10(low))),
            final = static_cast<int>(std::ceil(std::log10(high)));
  for (int k = first; k <= final; ++k) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double tick = digit * std::pow(10.0, k);
      if (axis.low == 0.0 || tick <= low) axis.low = tick;
      if (axis.high < high) axis.high = tick;
      if (digit == 1.0 ? k % ((final - first) / 8 + 1) == 0 : final - first <= 3) axis.ticks.push_back(tick);
    }
  }
  std::erase_if(axis.ticks, [&](double tick) { return tick < axis.low || tick > axis.high; });
  return axis;
}

std::string tick_label(double tick, const Axis& axis) {
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  if (tick == 0.0) return "0";
  if (largest >= 9999.5) return short_number(tick);
  if (std::abs(largest) < 9.99e-3 || (axis.log && tick < 1e-3)) {
    const auto exponent = static_cast<int>(std::floor(std::log10(std::abs(tick)) + 1e-9));
    return fmt::format("{:.3g}e{}", tick / std::pow(10.0, exponent), exponent);
  }
  if (axis.log || axis.ticks.size() < 2) return fmt::format("{:.4g}", tick);
  const double step = axis.ticks[1] - axis.ticks[0];
  return fmt::format("{:.{}f}", tick, std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9))));
}

// The nearest number of so many digits, which has a short text.
Json rounded(double value, int digits) {
  const std::string text = fmt::format("{:.{}g}", value, digits);
  double nearest = value;
  std::from_chars(text.data(), text.data() + text.size(), nearest);
  const bool is_whole = std::abs(nearest) < 1e15 && nearest == std::trunc(nearest);
  return is_whole ? Json(static_cast<std::int64_t>(nearest)) : Json(nearest);
}

// At most max_points points that include the smallest and the largest value of every interval; NaN is a gap.
Points thin_out(const Column& x, const Column& y) {
  const std::size_t n = std::min(x.size(), y.size());
  Points points;
  const std::size_t buckets = n <= max_points ? n : max_points / 2;
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t begin = bucket * n / buckets, end = (bucket + 1) * n / buckets;
    std::size_t low = n, high = n;
    for (std::size_t i = begin; i < end; ++i) {
      if (!drawable(x[i]) || !drawable(y[i])) continue;
      if (low == n || y[i] < y[low]) low = i;
      if (high == n || y[i] > y[high]) high = i;
    }
    if (low == n) {
      if (drawable(x[begin])) points.emplace_back(x[begin], nan);
      continue;
    }
    points.emplace_back(x[std::min(low, high)], y[std::min(low, high)]);
    if (low != high) points.emplace_back(x[std::max(low, high)], y[std::max(low, high)]);
  }
  return points;
}

void write_restarts(std::string& out, const Axis& x, const MetricsTable& launches, bool label) {
  const Column &steps = column(launches, "step"), &ranks = column(launches, "ranks");
  double labelled = -1.0;
  for (std::size_t i = 1; i < std::min(steps.size(), max_points); ++i) {
    const double at = x.position(steps[i]);
    if (!(at >= 0.0 && at <= 1.0)) continue;
    const std::string what =
        i < ranks.size() ? fmt::format("restart on {} rank{}", grouped(ranks[i]), ranks[i] == 1.0 ? "" : "s")
                         : "restart";
    out += fmt::format(R"(<line class="launch" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%">)", 100.0 * at);
    out += fmt::format("<title>{}, step {}</title></line>\n", what, grouped(steps[i]));
    if (!label || at < labelled + 0.15) continue;
    labelled = at;
    out += fmt::format(R"(<text class="restart {}" x="{:.2f}%" dy="-.45em">{}</text>)",
                       at < 0.9 ? "mid" : "end", 100.0 * at, what);
  }
}

}  // namespace

void Plot::curve(const std::string& name, int color, Look look, const Column& steps, const Column& values) {
  Points points = thin_out(steps, values);
  if (std::none_of(points.begin(), points.end(), [](const auto& p) { return drawable(p.second); })) return;
  Column fitted;
  for (std::size_t i = 0; i < std::min(steps.size(), values.size()); ++i) {
    if (steps[i] >= fit_from_ && drawable(values[i])) fitted.push_back(values[i]);
  }
  if (fitted.empty()) fitted = values;
  // The most extreme 1 % of a long raw curve may leave the frame: a single spike would flatten the rest.
  const bool trim = look == Look::thin && fitted.size() > 200;
  low_ = std::fmin(low_, quantile_of(fitted, trim ? 0.005 : 0.0));
  high_ = std::fmax(high_, quantile_of(fitted, trim ? 0.995 : 1.0));
  lowest_ = std::fmin(lowest_, quantile_of(values, 0.0));
  highest_ = std::fmax(highest_, quantile_of(values, 1.0));
  curves_.push_back({name, color, look, std::move(points)});
}

void Plot::skipped(const Column& steps, const Column& flags) {
  for (std::size_t i = 0; i < std::min(steps.size(), flags.size()); ++i) {
    if (flags[i] > 0.0 && drawable(steps[i])) skipped_.push_back(steps[i]);
  }
}

void Plot::write(std::string& out, std::pair<double, double> run, const MetricsTable& launches,
                 Size size) const {
  const char* width = size == Size::wide ? "wide" : "third";
  out += fmt::format(R"(<section class="card {}"><h2>{}<b class="at"></b></h2>)", width, title_);
  if (curves_.empty()) {
    out += "<p class=\"note\">No values recorded.</p></section>\n";
    return;
  }
  const Axis x = linear_axis(run.first, run.second, false);
  const Axis y = log_ ? log_axis(lowest_, highest_) : linear_axis(low_, high_, true);
  write_keys(out, column(launches, "step").size() > 1);
  out += fmt::format(R"(<svg class="plot" role="img" aria-label="{} over steps">)", title_);
  out += fmt::format("<title>{0}</title><desc>{0} ({1}), steps {2} to {3}.</desc>", title_, unit_,
                     grouped(run.first), grouped(run.second));
  out += "<rect class=\"hit\" width=\"100%\" height=\"100%\"/>\n";
  write_axes(out, x, y);
  write_restarts(out, x, launches, size == Size::wide);
  out +=
      R"(<svg class="frame-clip" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%"/>)"
      R"(<g class="dots"/>)"
      "\n";
  write_skipped(out, x);
  out += "<line class=\"cursor\" y1=\"0\" y2=\"100%\"/></svg>\n" + data_element(data(x, y)) + "</section>\n";
}

void Plot::write_keys(std::string& out, bool restarts) const {
  out += R"(<ul class="keys">)";
  for (std::size_t i = 0; i < curves_.size(); ++i) {
    const char* mark = curves_[i].look == Look::dots   ? "dot"
                       : curves_[i].look == Look::thin ? "stroke pale"
                                                       : "stroke";
    out +=
        fmt::format(R"(<li><i class="{} c{}"></i>{}<b></b></li>)", mark, curves_[i].color, curves_[i].name);
  }
  if (!skipped_.empty()) {
    out += fmt::format(R"(<li><i class="tick"></i>skipped steps: {}</li>)", skipped_.size());
  }
  if (restarts) out += R"(<li><i class="dash"></i>restart</li>)";
  out += "</ul>\n";
}

void Plot::write_axes(std::string& out, const Axis& x, const Axis& y) const {
  for (const double tick : y.ticks) {
    const double at = 100.0 * (1.0 - y.position(tick));
    out += fmt::format(R"(<line class="grid" x2="100%" y1="{0:.2f}%" y2="{0:.2f}%"/>)", at);
    out +=
        fmt::format(R"(<text class="end" dx="-8" y="{:.2f}%" dy=".35em">{}</text>)", at, tick_label(tick, y));
  }
  for (const double tick : x.ticks) {
    if (tick != std::round(tick)) continue;
    out += fmt::format(R"(<text class="mid" x="{:.2f}%" y="100%" dy="1.6em">{}</text>)",
                       100.0 * x.position(tick), tick_label(tick, x));
  }
  out += R"(<line class="frame" x2="100%" y1="100%" y2="100%"/>)";
  out += R"(<text class="end" x="100%" y="100%" dy="3em">step</text>)";
  out += fmt::format("<text dx=\"-40\" dy=\"-1.7em\">{}</text>\n", unit_);
}

Json Plot::data(const Axis& x, const Axis& y) const {
  std::vector<Json> curves;
  for (const Curve& curve : curves_) {
    std::vector<Json> steps;
    std::vector<Json> values;
    for (const auto& [step, value] : curve.points) {
      steps.push_back(rounded(step, 9));
      values.push_back(rounded(value, 6));
    }
    const char* look = curve.look == Look::dots ? "dots" : curve.look == Look::thin ? "thin" : "line";
    curves.push_back(Json::object({{"color", curve.color},
                                   {"look", look},
                                   {"steps", Json::array(steps)},
                                   {"values", Json::array(values)}}));
  }
  return Json::object({{"x", Json::array({x.low, x.high})},
                       {"y", Json::array({y.low, y.high})},
                       {"log", y.log},
                       {"curves", Json::array(curves)}});
}

void Plot::write_skipped(std::string& out, const Axis& x) const {
  const std::size_t stride = skipped_.size() / max_points + 1;
  for (std::size_t i = 0; i < skipped_.size(); i += stride) {
    out += fmt::format(R"(<line class="skip" x1="{0:.2f}%" x2="{0:.2f}%" y2="10">)",
                       100.0 * x.position(skipped_[i]));
    out += fmt::format("<title>step {} skipped</title></line>\n", grouped(skipped_[i]));
  }
}

}  // namespace mylos::html
