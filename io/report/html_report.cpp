// SPDX-License-Identifier: BSD-3-Clause
#include "io/report/html_report.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <initializer_list>
#include <map>
#include <span>
#include <string_view>

#include <fmt/chrono.h>
#include <fmt/core.h>

#include "core/memory/memory_ledger.hpp"
#include "io/report/html_diagram.hpp"
#include "io/report/html_plot.hpp"
#include "io/report/page.hpp"

namespace mylos {

namespace {

using namespace html;

constexpr std::size_t max_launches = 12;    // listed
constexpr std::size_t max_operations = 20;  // that have a separate bar

double median(const Column& values) {
  return quantile_of(values, 0.5);
}

double sum(const Column& values) {
  double total = 0.0;
  for (const double value : values) total += drawable(value) ? value : 0.0;
  return total;
}

/// The number of rows with a value: a column may begin or end in the middle of a run.
double count(const Column& values) {
  return static_cast<double>(std::count_if(values.begin(), values.end(), drawable));
}

double last(const Column& values) {
  const auto it = std::find_if(values.rbegin(), values.rend(), drawable);
  return it == values.rend() ? nan : *it;
}

// The sum and the number of drawable values in a window that moves forward. Two stacks of running sums, so
// that nothing is subtracted: a difference of sums would lose the small values after a large one.
class WindowSum {
 public:
  void push(double value) {
    newer_.push_back({value, add(newer_.empty() ? Sum{} : newer_.back().all, value)});
  }
  void pop() {
    if (older_.empty()) {
      for (; !newer_.empty(); newer_.pop_back()) {
        const double value = newer_.back().value;
        older_.push_back({value, add(older_.empty() ? Sum{} : older_.back().all, value)});
      }
    }
    older_.pop_back();
  }
  double mean() const {
    const Sum a = older_.empty() ? Sum{} : older_.back().all, b = newer_.empty() ? Sum{} : newer_.back().all;
    return a.count + b.count > 0.0 ? (a.sum + b.sum) / (a.count + b.count) : nan;
  }

 private:
  struct Sum {
    double sum = 0.0, count = 0.0;
  };
  struct Entry {
    double value;
    Sum all;  // of this entry and those below it
  };
  static Sum add(Sum sum, double value) {
    return drawable(value) ? Sum{sum.sum + value, sum.count + 1.0} : sum;
  }

  std::vector<Entry> older_, newer_;  // the oldest value is the last of `older_`, the newest that of `newer_`
};

// Centred mean over 1/50 of the rows. The window shrinks towards the start, because the loss falls steeply
// there, and is cut off at the end.
Column smooth(const Column& values) {
  const std::size_t n = values.size(), half = n / 100;
  WindowSum window;
  std::size_t begin = 0, end = 0;
  Column result(n, nan);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t reach = std::min(i, half);
    for (; end < std::min(n, i + reach + 1); ++end) window.push(values[end]);
    for (; begin < i - reach; ++begin) window.pop();
    result[i] = window.mean();
  }
  return result;
}

std::string fixed(double value, int decimals) {
  return drawable(value) ? fmt::format("{:.{}f}", value, decimals) : missing;
}

std::string percent(double fraction) {
  return drawable(fraction) ? fixed(100.0 * fraction, 1) + " %" : missing;
}

std::string memory_size(double bytes) {
  if (!drawable(bytes)) return missing;
  const double gb = bytes / 1e9;
  if (bytes > 0.0 && bytes < 1e5) return "< 0.1 MB";
  if (bytes < 1e8) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.{}f} GB", gb, gb >= 100.0 ? 0 : gb >= 10.0 ? 1 : 3);
}

std::string duration(double seconds) {
  if (!drawable(seconds) || seconds < 0.0) return missing;
  if (seconds < 0.0995) return fmt::format("{:.0f} ms", 1e3 * seconds);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const std::int64_t s = std::llround(std::min(seconds, 1e12));
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
  return fmt::format("{} d {} h", s / 86400, s % 86400 / 3600);
}

std::string utc(double unix_time) {
  if (!(unix_time >= 0.0 && unix_time < 1e11)) return missing;
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(unix_time)));
}

struct Part {
  std::string name;
  double amount;
};

// The classes c0, c1, ... of the style sheet.
constexpr int num_colors = 11;
static_assert(num_colors >= num_memory_categories);

// A horizontal bar, divided into parts proportional to their amounts, in the colours in turn.
void write_bar(std::string& out, const std::string& title, std::span<const Part> parts, double total) {
  out += fmt::format(R"(<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" )"
                     R"(aria-label="{0}"><title>{0}</title><desc>The table below has the values.</desc>)",
                     title);
  double left = 0.0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double width = 1000.0 * parts[i].amount / total;
    out += fmt::format(R"(<rect x="{:.2f}" width="{:.2f}" height="10" class="c{}">)", left, width,
                       i % num_colors);
    out += fmt::format("<title>{}: {:.1f} %</title></rect>", escape(parts[i].name), width / 10.0);
    left += width;
  }
  out += "</svg>\n";
}

// Cells are plain text; with `color` the first one shows the colour of the bar's part.
void write_row(std::string& out, std::initializer_list<std::string> cells, int color = -1) {
  out += "<tr>";
  for (const std::string& cell : cells) {
    const bool first = &cell == cells.begin();
    out += first ? R"(<th scope="row">)" : "<td>";
    if (first && color >= 0) out += fmt::format(R"(<i class="c{}"></i>)", color % num_colors);
    out += escape(cell) + (first ? "</th>" : "</td>");
  }
  out += "</tr>\n";
}

void write_tiles(std::string& out, const ReportData& data) {
  const MetricsTable& steps = data.steps;
  const auto tile = [&](std::string_view name, const std::string& value, const std::string& note) {
    out += fmt::format(R"(<div><dt>{}</dt><dd>{}</dd><dd class="note">{}</dd></div>)", name, value,
                       value == missing ? "" : note);
  };
  const auto spread = [&](const std::string& name) {
    const double low = quantile_of(column(steps, name), 0.05), high = quantile_of(column(steps, name), 0.95);
    return drawable(low) ? fmt::format("{} to {} in 90 % of steps", short_number(low), short_number(high))
                         : "";
  };
  const Column &losses = column(data.evaluations, "loss"), &eval_steps = column(data.evaluations, "step");
  const double best = quantile_of(losses, 0.0);
  const auto best_at = static_cast<std::size_t>(std::ranges::find(losses, best) - losses.begin());
  const std::size_t restarts = std::max<std::size_t>(column(data.launches, "step").size(), 1) - 1;
  const double skipped = sum(column(steps, "skipped"));
  const double peak = quantile_of(column(steps, "memory_peak_max"), 1.0);

  out += R"(<section class="card wide" aria-label="Summary"><dl class="tiles">)";
  const Column& training = column(steps, "loss");
  // A run that ended with a loss that is not finite has no other final loss.
  const bool has_diverged = !training.empty() && !std::isfinite(training.back());
  tile("Final training loss", has_diverged ? "not finite" : fixed(last(smooth(training)), 3),
       fmt::format("last step {}", fixed(training.empty() ? nan : training.back(), 3)));
  tile("Best validation loss", fixed(best, 3),
       best_at < std::min(losses.size(), eval_steps.size())
           ? fmt::format("at step {}", grouped(eval_steps[best_at]))
           : "");
  tile("Tokens per second", short_number(median(column(steps, "tokens_per_second"))),
       spread("tokens_per_second"));
  const double executed = median(column(steps, "hfu"));
  tile("Model FLOPs utilisation", percent(median(column(steps, "mfu"))),
       drawable(executed) ? fmt::format("median of steps; executed {}", percent(executed))
                          : "median of steps");
  tile("Wall time", duration(column(steps, "time_step").empty() ? nan : sum(column(steps, "time_step"))),
       restarts == 0   ? "of all steps, one launch"
       : restarts == 1 ? "of all steps, 1 restart"
                       : fmt::format("of all steps, {} restarts", restarts));
  tile("Steps", grouped(last(column(steps, "step"))),
       skipped > 0.0 ? fmt::format("{} skipped", grouped(skipped)) : "none skipped");
  tile("Tokens seen", short_number(last(column(steps, "tokens"))), "");
  tile("Peak memory", memory_size(peak), "largest rank");

  const Column& sizes = column(data.checkpoints, "bytes");
  const double write_time = median(column(data.checkpoints, "time_write"));
  const double restore_time = last(column(data.launches, "time_restore"));
  const double launch_time = last(column(data.launches, "time_launch"));
  tile("Checkpoints", sizes.empty() ? missing : grouped(count(sizes)), memory_size(last(sizes)) + " each");
  tile("Time per checkpoint", duration(median(column(data.checkpoints, "time_stall"))),
       fmt::format("training waits, {} to write", duration(write_time)));
  tile(restarts == 0 ? "Time to start" : "Time to resume", duration(launch_time),
       restore_time > 0.0 ? fmt::format("{} of it for the checkpoint", duration(restore_time))
                          : "launch to first step");
  out += "</dl></section>\n";
}

void write_plots(std::string& out, const ReportData& data) {
  const MetricsTable& steps = data.steps;
  const Column &at = column(steps, "step"), &loss = column(steps, "loss");
  const Column& eval_at = column(data.evaluations, "step");
  const std::pair run{std::fmin(quantile_of(at, 0.0), quantile_of(eval_at, 0.0)),
                      std::fmax(quantile_of(at, 1.0), quantile_of(eval_at, 1.0))};

  const bool crop = loss.size() > 200;  // the fall of the first steps would flatten the rest
  Plot losses("Loss", crop ? "nats per token, fitted to the last 95 % of steps" : "nats per token");
  if (crop) losses.fit_from(run.first + 0.05 * (run.second - run.first));
  losses.curve("training, each step", 0, Plot::Look::thin, at, loss);
  losses.curve("training, smoothed", 0, Plot::Look::line, at, smooth(loss));
  losses.curve("validation", 1, Plot::Look::dots, eval_at, column(data.evaluations, "loss"));
  losses.write(out, run, data.launches, Plot::Size::wide);

  if (const Column& answered_at = column(data.choices, "step"); !answered_at.empty()) {
    Plot answers("Multiple choice", "fraction of questions");
    answers.curve("accuracy", 0, Plot::Look::dots, answered_at, column(data.choices, "accuracy"));
    answers.curve("normalised accuracy", 1, Plot::Look::dots, answered_at,
                  column(data.choices, "normalised_accuracy"));
    answers.from_zero();
    answers.write(out, run, data.launches, Plot::Size::wide);
  }

  Plot rate("Learning rate", "step size");
  rate.curve("learning rate", 2, Plot::Look::line, at, column(steps, "learning_rate"));
  rate.from_zero();
  rate.write(out, run, data.launches, Plot::Size::third);

  const Column& speed = column(steps, "tokens_per_second");
  Plot throughput("Throughput", "tokens per second");
  throughput.curve("each step", 4, Plot::Look::thin, at, speed);
  throughput.curve("smoothed", 4, Plot::Look::line, at, smooth(speed));
  throughput.from_zero();
  throughput.write(out, run, data.launches, Plot::Size::third);

  const Column& norm = column(steps, "gradient_norm");
  Plot gradient("Gradient norm", "2-norm of the whole gradient, unclipped");
  gradient.curve("each step", 3, Plot::Look::thin, at, norm);
  gradient.curve("smoothed", 3, Plot::Look::line, at, smooth(norm));
  gradient.skipped(at, column(steps, "skipped"));
  gradient.maybe_log();
  gradient.write(out, run, data.launches, Plot::Size::third);

  const Column& scale = column(steps, "loss_scale");
  if (quantile_of(scale, 0.0) < quantile_of(scale, 1.0)) {
    Plot scales("Loss scale", "factor of the loss, halved if a gradient overflows");
    scales.curve("after each step", 2, Plot::Look::line, at, scale);
    scales.skipped(at, column(steps, "skipped"));
    scales.maybe_log();
    scales.write(out, run, data.launches, Plot::Size::wide);
  }

  constexpr std::string_view wait = "wait_";
  Plot waits("Waiting for communication", "seconds per step by axis, slowest rank, smoothed");
  int num_waits = 0;
  for (const auto& [name, seconds] : steps) {
    if (!name.starts_with(wait)) continue;
    waits.curve(escape(name.substr(wait.size())), num_waits++ % num_colors, Plot::Look::line, at,
                smooth(seconds));
  }
  waits.from_zero();
  if (num_waits > 0) waits.write(out, run, data.launches, Plot::Size::wide);

  if (const Column& largest = column(steps, "largest_load"); !largest.empty()) {
    Plot loads("Largest load of an expert", "times the mean load of its layer");
    loads.curve("each step", 5, Plot::Look::thin, at, largest);
    loads.curve("smoothed", 5, Plot::Look::line, at, smooth(largest));
    loads.from_zero();
    loads.write(out, run, data.launches, Plot::Size::third);
    Plot balance("Balance loss", "sum over layers, unweighted; 1 per layer if loads are equal");
    balance.curve("smoothed", 1, Plot::Look::line, at, smooth(column(steps, "balance_loss")));
    balance.write(out, run, data.launches, Plot::Size::third);
    Plot dropped("Dropped", "fraction of the pairs of token and expert");
    dropped.curve("smoothed", 3, Plot::Look::line, at, smooth(column(steps, "dropped_share")));
    dropped.from_zero();
    dropped.write(out, run, data.launches, Plot::Size::third);
  }
  if (const Column& hits = column(steps, "predictor_hits"); !hits.empty()) {
    Plot depths("Routed blocks", "fraction of tokens");
    depths.curve("predicted to be taken", 0, Plot::Look::line, at, smooth(column(steps, "predicted_share")));
    depths.curve("predicted rightly", 1, Plot::Look::line, at, smooth(hits));
    depths.from_zero();
    depths.write(out, run, data.launches, Plot::Size::wide);
  }
}

/// The mean load of each expert over the last tenth of the steps, by layer.
std::map<int, std::map<int, double>> loads_by_layer(const MetricsTable& steps) {
  std::map<int, std::map<int, double>> loads;
  for (const auto& [name, values] : steps) {
    int layer = 0;
    int expert = 0;
    if (std::sscanf(name.c_str(), "load_%d_%d", &layer, &expert) != 2 || values.empty()) continue;
    const std::size_t rows = (values.size() + 9) / 10;
    const Column late(values.end() - static_cast<std::ptrdiff_t>(rows), values.end());
    loads[layer][expert] = sum(late) / std::max(1.0, count(late));
  }
  return loads;
}

void write_loads(std::string& out, const ReportData& data) {
  const auto loads = loads_by_layer(data.steps);
  if (loads.empty()) return;
  out += R"(<section class="card wide"><h2>Loads of experts</h2><table class="bars loads"><thead><tr>)"
         R"(<th scope="col">layer</th><th class="of">experts</th><th scope="col">smallest</th>)"
         R"(<th scope="col">largest</th></tr></thead><tbody>)"
         "\n";
  for (const auto& [layer, of_experts] : loads) {
    const auto by_load = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [least, most] = std::ranges::minmax_element(of_experts, by_load);
    out += fmt::format(R"(<tr><th scope="row">h.{}</th><td class="of"><svg class="track" viewBox="0 0 {} 1" )"
                       R"(preserveAspectRatio="none" role="img" aria-label="Loads of h.{}">)",
                       layer, of_experts.size(), layer);
    for (int i = 0; const auto& [expert, load] : of_experts) {
      out += fmt::format(R"(<rect x="{}" width="1" height="1" class="c0" fill-opacity="{:.3f}">)"
                         R"(<title>expert {}: {:.2f}</title></rect>)",
                         i++, std::clamp(load / 2.0, 0.0, 1.0), expert, load);
    }
    out += fmt::format("</svg></td><td>{:.2f}</td><td>{:.2f}</td></tr>\n", least->second, most->second);
  }
  out += R"(</tbody></table><p class="note">Times the mean load of the layer, over the last tenth of the )"
         R"(steps; darkest from 2 on.</p></section>)"
         "\n";
}

// A bar and a table of bytes by name; `of` and `amount` are the headings of the first two columns.
void write_bytes(std::string& out, const std::string& title, std::string_view of, std::string_view amount,
                 std::span<const std::pair<std::string, double>> bytes_by_name) {
  std::vector<Part> parts;
  double total = 0.0;
  for (const auto& [name, bytes] : bytes_by_name) {
    if (!drawable(bytes) || bytes <= 0.0) continue;
    parts.push_back({name, bytes});
    total += bytes;
  }
  if (parts.empty()) {
    out += R"(<p class="note">No values recorded.</p>)";
    return;
  }
  write_bar(out, title, parts, total);
  out += fmt::format(R"(<table><thead><tr><th scope="col">{}</th><th scope="col">{}</th>)"
                     R"(<th scope="col">share</th></tr></thead><tbody>)",
                     of, amount);
  for (int i = 0; const Part& part : parts) {
    write_row(out, {part.name, memory_size(part.amount), percent(part.amount / total)}, i++);
  }
  write_row(out, {"total", memory_size(total), ""});
  out += "</tbody></table>";
}

// A note with the columns `prefix` min, median and max of /steps, each as `text` shows it.
void write_ranks(std::string& out, const MetricsTable& steps, std::string_view what,
                 const std::string& prefix, const auto& text) {
  if (column(steps, prefix + "max").empty()) return;
  const auto of = [&](const char* which) { return text(column(steps, prefix + which)); };
  out += fmt::format(R"(<p class="note">{}: {} min, {} median, {} max.</p>)", what, of("min"), of("median"),
                     of("max"));
}

void write_memory(std::string& out, const ReportData& data) {
  out += R"(<section class="card half"><h2>Memory by category</h2>)";
  write_bytes(out, "Memory by category", "held by rank 0", "memory", data.memory_bytes);
  write_ranks(out, data.steps, "Peak of a rank", "memory_peak_",
              [](const Column& bytes) { return memory_size(quantile_of(bytes, 1.0)); });
  out += "</section>\n";
}

void write_phases(std::string& out, const ReportData& data) {
  const Column& whole = column(data.steps, "time_step");
  std::vector<Part> parts;
  double total = 0.0;
  for (const char* phase :
       {"data", "forward", "backward", "communication", "optimizer", "checkpoint", "evaluation"}) {
    parts.push_back({phase, std::max(0.0, sum(column(data.steps, fmt::format("time_{}", phase))))});
    total += parts.back().amount;
  }
  // Phases are maxima over ranks, so their sum may exceed the step's time.
  parts.push_back({"other", std::max(0.0, sum(whole) - total)});
  total += parts.back().amount;

  out += R"(<section class="card half"><h2>Time per phase</h2>)";
  if (total <= 0.0) {
    out += R"(<p class="note">No values recorded.</p></section>)";
    return;
  }
  write_bar(out, "Time per phase", parts, total);
  out += R"(<table><thead><tr><th scope="col">ms, slowest rank</th><th scope="col">median</th>)"
         R"(<th scope="col">mean</th><th scope="col">share</th></tr></thead><tbody>)";
  for (int i = 0; const Part& part : parts) {
    const Column& times = column(data.steps, "time_" + part.name);
    const double num_times = count(part.name == "other" ? whole : times);
    write_row(out,
              {part.name, fixed(1e3 * median(times), 1), fixed(1e3 * part.amount / num_times, 1),
               percent(part.amount / total)},
              i++);
  }
  write_row(out, {"step", fixed(1e3 * median(whole), 1), fixed(1e3 * sum(whole) / count(whole), 1), ""});
  out += "</tbody></table>";
  write_ranks(out, data.steps, "Step of a rank, ms", "rank_time_",
              [](const Column& seconds) { return fixed(1e3 * median(seconds), 1); });
  out += "</section>\n";
}

void write_traffic(std::string& out, const ReportData& data) {
  constexpr std::string_view prefix = "payload_";
  std::vector<std::pair<std::string, double>> bytes;
  for (const auto& [name, of_steps] : data.steps) {
    if (!name.starts_with(prefix)) continue;
    std::string axis_and_operation = name.substr(prefix.size());
    std::ranges::replace(axis_and_operation, '_', ' ');
    bytes.emplace_back(axis_and_operation, quantile_of(of_steps, 0.5));
  }
  if (bytes.empty()) return;
  out += R"(<section class="card wide"><h2>Communication of a step</h2>)";
  write_bytes(out, "Communication of a step", "axis and operation, rank 0", "payload", bytes);
  out += R"(<p class="note">Median of steps. Payload is the buffer of an all_reduce, the input of a )"
         R"(reduce_scatter and the output of an all_gather.</p></section>)"
         "\n";
}

// A table row: a horizontal bar with length relative to `longest`, and the amounts. The number of calls is
// blank if it is 0.
void write_operation(std::string& out, const OperationTime& operation, int color, double longest,
                     double step) {
  out += fmt::format(R"(<tr><th scope="row">{}</th><td class="of"><svg class="track" aria-hidden="true">)"
                     R"(<rect width="{:.2f}%" height="100%" class="c{}"/></svg></td>)"
                     R"(<td>{} ms</td><td>{}</td><td class="calls">{}</td></tr>)"
                     "\n",
                     escape(operation.label), 100.0 * operation.seconds / longest, color,
                     fixed(1e3 * operation.seconds, 2), percent(operation.seconds / step),
                     operation.calls > 0 ? grouped(static_cast<double>(operation.calls)) : "");
}

void write_operations(std::string& out, const ReportData& data) {
  const StepProfile& profile = data.profile;
  if (profile.operations.empty()) return;
  constexpr int rest_color = 7;
  const auto color_of = [](TraceKind kind) { return static_cast<int>(kind) - 1; };
  std::span<const OperationTime> shown = profile.operations;
  std::span<const OperationTime> few;
  if (shown.size() > max_operations) {
    few = shown.subspan(max_operations);
    shown = shown.first(max_operations);
  }
  OperationTime others{.label = fmt::format("{} others", few.size())};
  for (const OperationTime& operation : few) {
    others.calls += operation.calls;
    others.seconds += operation.seconds;
  }
  const OperationTime rest{.label = "not covered",
                           .seconds = std::max(0.0, profile.seconds - profile.covered())};
  const double longest = std::max({shown.front().seconds, others.seconds, rest.seconds});

  out += fmt::format(R"(<section class="card wide"><h2>Time by operation</h2><ul class="keys">)"
                     R"(<li>step {} of rank 0: {} ms, {} covered</li>)",
                     grouped(static_cast<double>(profile.step)), fixed(1e3 * profile.seconds, 1),
                     percent(profile.covered() / profile.seconds));
  for (const auto& [kind, name] : {std::pair{TraceKind::operation, "compute"},
                                   std::pair{TraceKind::communication, "communication, not hidden"},
                                   std::pair{TraceKind::data, "data"}}) {
    if (std::ranges::find(profile.operations, kind, &OperationTime::kind) == profile.operations.end())
      continue;
    out += fmt::format(R"(<li><i class="c{}"></i>{}</li>)", color_of(kind), name);
  }
  out += R"(</ul><table class="bars"><thead><tr><th></th><th class="of"></th><th scope="col">time</th>)"
         R"(<th scope="col">share</th><th scope="col" class="calls">calls</th></tr></thead><tbody>)"
         "\n";
  for (const OperationTime& operation : shown)
    write_operation(out, operation, color_of(operation.kind), longest, profile.seconds);
  if (!few.empty()) write_operation(out, others, rest_color, longest, profile.seconds);
  write_operation(out, rest, rest_color, longest, profile.seconds);
  out += "</tbody></table></section>\n";
}

void write_facts(std::string& out, const ReportData& data) {
  out += "<section class=\"card wide\"><h2>Run and machine</h2>\n<table class=\"facts\"><tbody>\n";
  for (const auto& [name, value] : data.facts) {
    if (name != "status") write_row(out, {name, value});
  }
  const MetricsTable& launches = data.launches;
  const Column& steps = column(launches, "step");
  const auto entry = [&](const std::string& name, std::size_t i) {
    return i < column(launches, name).size() ? column(launches, name)[i] : nan;
  };
  for (std::size_t i = 0; i < std::min(steps.size(), max_launches); ++i) {
    const auto counted = [&](const char* column, const char* noun) {
      const double number = entry(column, i);
      return fmt::format("{} {}{}", grouped(number), noun, number == 1.0 ? "" : "s");
    };
    write_row(out, {fmt::format("launch {}", i + 1),
                    fmt::format("{}, at step {}, {}, {} each", utc(entry("unix_time", i)), grouped(steps[i]),
                                counted("ranks", "rank"), counted("threads", "thread"))});
  }
  if (steps.size() > max_launches) {
    write_row(out, {"", fmt::format("and {} more", steps.size() - max_launches)});
  }
  out += "</tbody></table></section>\n";
}

}  // namespace

std::string html_report(const ReportData& data) {
  std::string out;
  out +=
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n<title>";
  out += escape(data.title) + " – mylos</title>\n<style>\n" + std::string(report_style) +
         "</style></head>\n<body>\n<header><h1>" + escape(data.title) + "</h1>";
  for (const auto& [name, value] : data.facts) {
    if (name == "status") out += R"(<span class="pill">)" + escape(value) + "</span>";
  }
  out +=
      "</header>\n<noscript><p class=\"note\">JavaScript, which draws the curves, is off.</p></noscript>\n";
  out += "<main>\n";
  write_tiles(out, data);
  write_plots(out, data);
  write_memory(out, data);
  write_phases(out, data);
  write_traffic(out, data);
  write_loads(out, data);
  write_diagram(out, data.diagram, data.profile.step);
  write_operations(out, data);
  write_facts(out, data);
  out += R"(<details class="card wide"><summary>Input deck</summary><pre>)" + escape(data.deck_text) +
         "</pre></details>\n</main>\n";
  // The marks are comments of JavaScript; between them, XML takes < and & as they are.
  out += "<script>//<![CDATA[\n" + std::string(report_script) + "//]]></script></body></html>\n";
  return out;
}

}  // namespace mylos
