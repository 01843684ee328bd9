// SPDX-License-Identifier: BSD-3-Clause
#include "io/report/html_diagram.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "io/report/html_plot.hpp"

namespace mylos::html {

namespace {

// Geometry in pixels. The style sheet gives the labels beside the drawing the same heights.
constexpr int heading_height = 26;
constexpr int row_height = 34;
constexpr int bar_height = 24;
constexpr int bar_top = 5;  // within the row
constexpr int axis_height = 22;
constexpr int letter_width = 8;
constexpr double least_width = 480.0;
constexpr double most_width = 16000.0;

struct WorkLook {
  std::string_view name;
  int color;
  std::string_view lines;  ///< of the pattern, a path in a square of 6 x 6
};

constexpr std::array<WorkLook, num_work_kinds> looks = {{
    {"forward", 0, ""},
    {"backward", 1, "M-1 1L1 -1M0 6L6 0M5 7L7 5"},
    {"backward, gradients of inputs", 2, "M-1 5L1 7M0 0L6 6M5 -1L7 1"},
    {"backward, gradients of weights", 3, "M0 3H6M3 0V6"},
    {"reduction of gradients", 4, "M1.5 0V6M4.5 0V6"},
    {"update", 6, "M0 1.5H6M0 4.5H6"},
    {"reading samples, posting messages", 7, "M0 0L6 6M0 6L6 0"},
    {"waiting for other ranks", 7, ""},
}};

const WorkLook& look_of(WorkKind kind) {
  return looks[static_cast<std::size_t>(kind)];
}

/// Nanoseconds as milliseconds.
std::string milliseconds(std::int64_t time) {
  return fmt::format("{:.{}f}", 1e-6 * static_cast<double>(time), time < 100'000'000 ? 2 : 1);
}

std::string idle_share(const DiagramRow& row, std::int64_t whole) {
  if (whole <= 0) return missing;
  const double busy = static_cast<double>(row.busy) / static_cast<double>(whole);
  return fmt::format("{:.1f} %", 100.0 * std::max(0.0, 1.0 - busy));
}

std::string ratio(std::int64_t time, std::int64_t to) {
  return to <= 0 ? missing : fmt::format("{:.2f}", static_cast<double>(time) / static_cast<double>(to));
}

/// A pass in a schedule file's form: "F3", with several chunks per stage "1F3"; if steps overlap with the
/// version of the weights, "F3:41".
std::string pass_name(const WorkSpan& span, bool names_chunk) {
  std::string text = names_chunk ? std::to_string(span.chunk) : "";
  text += letter_of(span.kind);
  text += std::to_string(span.micro_batch);
  return span.version < 0 ? text : fmt::format("{}:{}", text, span.version);
}

class DiagramCard {
 public:
  DiagramCard(std::string& out, const StepDiagram& diagram, std::int64_t step)
      : out_(out), diagram_(diagram), step_(step) {
    std::vector<double> seconds;  // of passes
    std::size_t longest = 1;
    for_each_span([&](const WorkSpan& span) {
      kinds_.insert(span.kind);
      names_chunks_ = names_chunks_ || span.chunk >= diagram.num_stages;
      names_versions_ = names_versions_ || span.version >= 0;
    });
    for_each_span([&](const WorkSpan& span) {
      if (!is_pass(span.kind)) return;
      seconds.push_back(static_cast<double>(span.end - span.begin));
      longest = std::max(longest, pass_name(span, names_chunks_).size());
    });
    // Three quarters of the passes have room for their names.
    const double short_pass = quantile_of(seconds, 0.25);
    const double wanted = static_cast<double>(letter_width * longest + 6) * range() / short_pass;
    width_ = wanted > least_width ? std::min(wanted, most_width) : least_width;
  }

  void write() {
    out_ += R"(<section class="card wide"><h2>Schedule of the pipeline</h2>)";
    write_figures();
    write_legend();
    out_ += R"(<div class="lanes" tabindex="0" role="group" aria-label="Schedule, simulated and traced">)";
    write_labels();
    write_drawing();
    out_ += "</div>\n";
    write_notes();
    write_tables();
    out_ += "</section>\n";
  }

 private:
  void for_each_span(const auto& visit) const {
    for (const auto* rows : {&diagram_.simulation, &diagram_.ranks}) {
      for (const DiagramRow& row : *rows) std::ranges::for_each(row.spans, visit);
    }
  }
  double range() const { return static_cast<double>(diagram_.shown); }
  double percent(std::int64_t time) const { return 100.0 * static_cast<double>(time) / range(); }

  std::string label_of(const DiagramRow& row) const {
    if (row.rank < 0 || diagram_.num_ranks == diagram_.num_stages) return fmt::format("stage {}", row.stage);
    return fmt::format("stage {}, rank {}", row.stage, row.rank);
  }

  void write_figures() {
    out_ += fmt::format(
        R"(<ul class="keys"><li>step {}: simulated {} ms</li><li>traced {} ms, {} times as long</li>)"
        R"(<li>its last pass ends at {} ms, {} times</li></ul>)",
        grouped(static_cast<double>(step_)), milliseconds(diagram_.simulated), milliseconds(diagram_.traced),
        ratio(diagram_.traced, diagram_.simulated), milliseconds(diagram_.passes),
        ratio(diagram_.passes, diagram_.simulated));
  }

  void write_legend() {
    out_ += "\n<ul class=\"keys\">";
    for (const WorkKind kind : kinds_) {
      const WorkLook& look = look_of(kind);
      out_ += fmt::format(R"(<li><svg class="swatch" aria-hidden="true"><g class="spans {}" fill="{}">)",
                          classes(kind), fill(kind));
      out_ += R"(<rect x=".5" y=".5" width="95%" height="90%"/></g></svg>)";
      out_ += kind == WorkKind::wait ? std::string(look.name)
                                     : fmt::format("<b>{}</b> {}", letter_of(kind), look.name);
      out_ += "</li>";
    }
    out_ += "</ul>\n";
  }

  static std::string classes(WorkKind kind) {
    return kind == WorkKind::wait ? "waits" : fmt::format("c{}", look_of(kind).color);
  }
  static std::string fill(WorkKind kind) {
    return kind == WorkKind::wait ? "none" : fmt::format("url(#work-{})", letter_of(kind));
  }

  void write_labels() {
    out_ += "<ol aria-hidden=\"true\">";
    const auto write = [&](const char* what, const std::vector<DiagramRow>& rows, std::int64_t whole) {
      out_ += fmt::format(R"(<li class="of">{}</li>)", what);
      for (const DiagramRow& row : rows)
        out_ += fmt::format("<li><b>{}</b>idle {}</li>", label_of(row), idle_share(row, whole));
    };
    write("simulated", diagram_.simulation, diagram_.simulated);
    write("traced", diagram_.ranks, diagram_.traced);
    out_ += "</ol>\n";
  }

  int height_of(const std::vector<DiagramRow>& rows) const {
    return heading_height + row_height * static_cast<int>(rows.size());
  }

  void write_drawing() {
    const int bottom = height_of(diagram_.simulation) + height_of(diagram_.ranks);
    out_ += fmt::format(R"(<svg role="img" style="flex:1 0 {:.0f}px;height:{}px">)", width_,
                        bottom + axis_height);
    out_ +=
        "<title>Schedule, simulated and traced</title><desc>The table below has the values.</desc>\n<defs>";
    for (const WorkKind kind : kinds_) write_pattern(kind);
    out_ += "</defs>\n";
    write_axis(bottom);
    write_rows(diagram_.simulation, heading_height);
    write_rows(diagram_.ranks, height_of(diagram_.simulation) + heading_height);
    if (diagram_.simulated <= diagram_.shown) {
      out_ += fmt::format(R"(<line class="launch" x1="{0:.3f}%" x2="{0:.3f}%" y1="{1}" y2="{2}">)",
                          percent(diagram_.simulated), heading_height, bottom);
      out_ += "<title>end of the simulation</title></line>\n";
    }
    out_ += "</svg>";
  }

  void write_pattern(WorkKind kind) {
    if (kind == WorkKind::wait) return;
    const WorkLook& look = look_of(kind);
    out_ +=
        fmt::format(R"(<pattern id="work-{}" class="c{}" width="6" height="6" patternUnits="userSpaceOnUse">)"
                    R"(<rect width="6" height="6" fill="currentColor" fill-opacity="{}"/>)",
                    letter_of(kind), look.color, look.lines.empty() ? ".35" : ".12");
    if (!look.lines.empty())
      out_ += fmt::format(R"(<path d="{}" stroke="currentColor" stroke-opacity=".6"/>)", look.lines);
    out_ += "</pattern>\n";
  }

  void write_axis(int bottom) {
    const double pixels = 90.0;  // at least, from tick to tick
    const double raw = 1e-6 * range() * pixels / width_;
    const double decade = std::pow(10.0, std::floor(std::log10(raw)));
    const double digit = raw / decade;
    const double tick = decade * (digit <= 1.0 ? 1.0 : digit <= 2.0 ? 2.0 : digit <= 5.0 ? 5.0 : 10.0);
    const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(tick) + 1e-9)));
    for (int i = 0; i * tick <= 1e-6 * range(); ++i) {
      const double at = 100.0 * i * tick / (1e-6 * range());
      out_ += fmt::format(R"(<line class="grid" x1="{0:.3f}%" x2="{0:.3f}%" y2="{1}"/>)", at, bottom + 6);
      if (at > 100.0 - 100.0 * 60.0 / width_) continue;
      out_ += fmt::format(R"(<text x="{:.3f}%" dx="3" y="{}">{:.{}f}{}</text>)", at, bottom + 16, i * tick,
                          decimals, i == 0 ? " ms" : "");
    }
    out_ += "\n";
  }

  void write_rows(const std::vector<DiagramRow>& rows, int top) {
    for (const DiagramRow& row : rows) {
      for (const WorkKind kind : kinds_) write_spans(row, kind, top + bar_top);
      top += row_height;
    }
  }

  void write_spans(const DiagramRow& row, WorkKind kind, int top) {
    if (std::ranges::find(row.spans, kind, &WorkSpan::kind) == row.spans.end()) return;
    out_ += fmt::format(R"(<g class="spans {}" fill="{}">)", classes(kind), fill(kind));
    for (const WorkSpan& span : row.spans) {
      if (span.kind != kind) continue;
      const double x = percent(span.begin);
      const double width = percent(std::min(span.end, diagram_.shown)) - x;
      out_ += fmt::format(
          R"(<rect x="{:.3f}%" y="{}" width="{:.3f}%" height="{}"><title>{}, {} to {} ms</title></rect>)", x,
          top, width, bar_height, title_of(span), milliseconds(span.begin), milliseconds(span.end));
      const std::string text = text_of(span, 0.01 * width * width_);
      if (!text.empty())
        out_ += fmt::format(R"(<text x="{:.3f}%" y="{}">{}</text>)", x + width / 2, top + 16, text);
    }
    out_ += "</g>\n";
  }

  std::string title_of(const WorkSpan& span) const {
    std::string text(look_of(span.kind).name);
    if (!is_pass(span.kind)) return text;
    text += fmt::format(", micro-batch {}", span.micro_batch);
    if (names_chunks_) text += fmt::format(", chunk {}", span.chunk);
    return span.version < 0 ? text : text + fmt::format(", version {} of the weights", span.version);
  }

  /// What fits into `pixels`.
  std::string text_of(const WorkSpan& span, double pixels) const {
    if (span.kind == WorkKind::wait) return "";
    std::vector<std::string> texts;
    if (is_pass(span.kind)) {
      texts = {pass_name(span, names_chunks_), pass_name(span, false), std::to_string(span.micro_batch)};
    } else {
      texts = {std::string(1, letter_of(span.kind))};
    }
    for (const std::string& text : texts) {
      if (pixels >= static_cast<double>(letter_width * text.size() + 2)) return text;
    }
    return "";
  }

  void write_notes() {
    out_ +=
        R"(<p class="note">Simulated: each pass takes the median times of its units in this step; reading, )"
        R"(reductions and the update take no time. Idle: the share of the whole in which a rank waits or has )"
        R"(no work.)";
    out_ += names_chunks_ ? " 2F3: micro-batch 3 forward through chunk 2." : " F3: micro-batch 3 forward.";
    if (names_versions_)
      out_ +=
          " F3:41: with version 41 of the weights. The traced step runs alone: startup, steady state, drain.";
    const bool has_all = diagram_.num_ranks == std::ssize(diagram_.ranks);
    if (!has_all) {
      out_ += fmt::format(
          " {} of {} ranks are drawn: the first of {}.", diagram_.ranks.size(), diagram_.num_ranks,
          diagram_.num_stages > std::ssize(diagram_.ranks) ? "each of the first stages" : "each stage");
    }
    if (diagram_.shown < std::max(diagram_.simulated, diagram_.traced)) {
      out_ += fmt::format(" Only the first {} of {} ms are drawn and in the table of passes.",
                          milliseconds(diagram_.shown),
                          milliseconds(std::max(diagram_.simulated, diagram_.traced)));
    }
    out_ += "</p>\n";
  }

  using PassKey = std::tuple<int, int, WorkKind, int>;  // stage, chunk, kind, micro-batch
  struct PassRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  static PassKey key_of(const DiagramRow& row, const WorkSpan& span) {
    return {row.stage, span.chunk, span.kind, span.micro_batch};
  }

  const DiagramRow* simulated(int stage) const {
    const auto found = std::ranges::find(diagram_.simulation, stage, &DiagramRow::stage);
    return found == diagram_.simulation.end() ? nullptr : &*found;
  }

  void write_tables() {
    out_ += R"(<details><summary>The schedule as a table</summary><div class="scroll"><table><thead><tr>)";
    for (const char* heading :
         {"rank", "passes", "busy, ms: simulated", "traced", "idle: simulated", "traced"})
      out_ += fmt::format(R"(<th scope="col">{}</th>)", heading);
    out_ += "</tr></thead><tbody>\n";
    for (const DiagramRow& row : diagram_.ranks) {
      const DiagramRow* other = simulated(row.stage);
      out_ += fmt::format(
          R"(<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>)",
          label_of(row), row.passes, other == nullptr ? missing : milliseconds(other->busy),
          milliseconds(row.busy), other == nullptr ? missing : idle_share(*other, diagram_.simulated),
          idle_share(row, diagram_.traced));
    }
    out_ += "</tbody></table></div>\n";
    write_passes();
    out_ += "</details>";
  }

  void write_passes() {
    out_ += R"(<div class="scroll"><table><thead><tr>)";
    for (const char* heading : {"rank", "pass", "micro-batch", "chunk", "simulated, ms", "traced, ms"})
      out_ += fmt::format(R"(<th scope="col">{}</th>)", heading);
    out_ += "</tr></thead><tbody>\n";
    std::map<PassKey, PassRange> times;
    for (const DiagramRow& row : diagram_.simulation) {
      for (const WorkSpan& span : row.spans) times[key_of(row, span)] = {span.begin, span.end};
    }
    for (const DiagramRow& row : diagram_.ranks) write_passes(row, times);
    out_ += "</tbody></table></div>";
  }

  void write_passes(const DiagramRow& row, const std::map<PassKey, PassRange>& simulated) {
    std::map<PassKey, PassRange> pieces;  // from the first to the last one of a pass
    std::vector<const WorkSpan*> passes;
    for (const WorkSpan& span : row.spans) {
      if (!is_pass(span.kind)) continue;
      const auto [place, is_new] = pieces.try_emplace(key_of(row, span), PassRange{span.begin, span.end});
      place->second.end = span.end;
      if (is_new) passes.push_back(&span);
    }
    for (const WorkSpan* pass : passes) {
      const auto text = [&](const std::map<PassKey, PassRange>& times) {
        const auto found = times.find(key_of(row, *pass));
        return found == times.end()
                   ? std::string(missing)
                   : milliseconds(found->second.begin) + " to " + milliseconds(found->second.end);
      };
      out_ += fmt::format(
          R"(<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>)"
          "\n",
          label_of(row), look_of(pass->kind).name, pass->micro_batch, pass->chunk, text(simulated),
          text(pieces));
    }
  }

  std::string& out_;
  const StepDiagram& diagram_;
  std::int64_t step_;
  std::set<WorkKind> kinds_;   // that are drawn
  bool names_chunks_ = false;  // a stage has several
  bool names_versions_ = false;
  double width_ = least_width;
};

}  // namespace

void write_diagram(std::string& out, const StepDiagram& diagram, std::int64_t step) {
  if (diagram.ranks.empty() || diagram.shown <= 0) return;
  DiagramCard(out, diagram, step).write();
}

}  // namespace mylos::html
