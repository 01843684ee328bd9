// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/tensorboard.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/base/error.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr const char* train_name = "train";
constexpr const char* eval_name = "eval";

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// TensorBoard shows the tags that have the same text before "/" together. Columns whose names begin with one
/// of these are shown under it: time_forward as time/forward.
constexpr std::array<std::string_view, 7> prefixes = {"time_",   "rank_time_", "idle_time_", "wait_",
                                                      "memory_", "payload_",   "epochs_"};

/// Other columns that are shown together.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> groups = {{
    {"learning_rate", "optimizer"},
    {"gradient_norm", "optimizer"},
    {"skipped", "optimizer"},
    {"loss_scale", "optimizer"},
    {"tokens_per_second", "speed"},
    {"mfu", "speed"},
    {"hfu", "speed"},
    {"communication_calls", "payload"},
    {"communication_bytes", "payload"},
    {"balance_loss", "routers"},
    {"router_z_loss", "routers"},
    {"dropped_share", "routers"},
    {"largest_load", "routers"},
    {"predictor_loss", "routers"},
    {"predicted_share", "routers"},
    {"predictor_hits", "routers"},
}};

/// The tag of a column of `steps`, `eval` or `choices`; "" for columns that are not shown: the step, and the
/// loads of single experts, of which there may be thousands.
std::string tag_of(const std::string& table, const std::string& column) {
  if (column == "step" || column.starts_with("load_")) return "";
  if (table == "choices") return "choices/" + column;
  for (const auto& [name, group] : groups)
    if (column == name) return fmt::format("{}/{}", group, column);
  for (const std::string_view prefix : prefixes) {
    if (column.starts_with(prefix))
      return fmt::format("{}/{}", prefix.substr(0, prefix.size() - 1), column.substr(prefix.size()));
  }
  return column;
}

bool is_shown(const std::string& table) {
  return table == "steps" || table == "eval" || table == "choices";
}

/// Writes a row of `table` into `file`.
void write_row(EventFile& file, const std::string& table, const MetricsRow& row, double time) {
  MetricsRow values;
  std::int64_t step = 0;
  for (const auto& [column, value] : row) {
    if (column == "step") step = static_cast<std::int64_t>(value);
    if (std::string tag = tag_of(table, column); !tag.empty()) values.emplace_back(std::move(tag), value);
  }
  file.scalars(step, time, values);
}

void write_deck(EventFile& file, std::int64_t step, double time, const std::string& deck) {
  file.text(step, time, "deck", fmt::format("~~~\n{}\n~~~\n", deck));
}

/// When each step of a run ended, from the times of its launches and steps.
std::map<double, double> times_of(const MetricsTable& launches, const MetricsTable& steps) {
  const auto column = [](const MetricsTable& table, const char* name, std::size_t rows) {
    const auto found = table.find(name);
    return found == table.end() ? std::vector<double>(rows, 0.0) : found->second;
  };
  const std::vector<double> begins = column(launches, "step", 0);
  const std::vector<double> launched = column(launches, "unix_time", begins.size());
  const std::vector<double> numbers = column(steps, "step", 0);
  const std::vector<double> seconds = column(steps, "time_step", numbers.size());
  std::map<double, double> times;
  std::size_t previous = 0;  // number of launches until the one of the row before
  double time = 0.0;
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    // A row is of the last launch that began before its step: later launches would have replaced it.
    std::size_t launch = begins.size();
    while (launch > 0 && begins[launch - 1] >= numbers[row]) --launch;
    if (launch != previous) time = launch > 0 ? launched[launch - 1] : 0.0;
    previous = launch;
    if (!std::isnan(seconds[row])) time += seconds[row];
    times[numbers[row]] = time;
  }
  return times;
}

/// Writes the rows of a table that was read. NaN stands for a value that a row lacks, except in columns that
/// every row has.
void write_table(EventFile& file, const std::string& name, const MetricsTable& table,
                 const std::map<double, double>& times) {
  const auto steps = table.find("step");
  if (steps == table.end()) return;
  for (std::size_t i = 0; i < steps->second.size(); ++i) {
    MetricsRow row;
    for (const auto& [column, values] : table) {
      if (!std::isnan(values[i]) || column == "loss" || column == "gradient_norm")
        row.emplace_back(column, values[i]);
    }
    const auto after = times.upper_bound(steps->second[i]);
    write_row(file, name, row, after == times.begin() ? 0.0 : std::prev(after)->second);
  }
}

}  // namespace

namespace {

/// The events of a run's metrics.
class History {
 public:
  History(IoThread& io, const RunPaths& paths)
      : paths_(paths),
        steps_(read_metrics(io, paths.metrics(), "steps")),
        evaluations_(read_metrics(io, paths.metrics(), "eval")),
        choices_(read_metrics(io, paths.metrics(), "choices")),
        launches_(read_metrics(io, paths.metrics(), "launches")),
        times_(times_of(launches_, steps_)) {}

  /// Whether every launch so far wrote its events.
  bool is_written() const {
    const auto found = launches_.find("tensorboard");
    return found != launches_.end() && std::ranges::all_of(found->second, [](double v) { return v == 1.0; });
  }
  bool has_evaluations() const { return !evaluations_.empty() || !choices_.empty(); }
  fs::path write_training(const fs::path& folder) const {
    return write(folder / train_name, [&](EventFile& file) {
      if (std::error_code unknown; fs::exists(paths_.resolved_deck(), unknown))
        write_deck(file, 1, begin(), read_text_file(paths_.resolved_deck()));
      write_table(file, "steps", steps_, times_);
    });
  }
  fs::path write_evaluations(const fs::path& folder) const {
    return write(folder / eval_name, [&](EventFile& file) {
      write_table(file, "eval", evaluations_, times_);
      write_table(file, "choices", choices_, times_);
    });
  }

 private:
  double begin() const { return times_.empty() ? unix_time() : times_.begin()->second; }

  /// Writes a file into `folder`; if that is the run's own, it replaces the others.
  fs::path write(const fs::path& folder, const auto& write_all) const {
    const std::vector<fs::path> earlier = event_files(folder);
    EventFile file(folder, 1, begin());
    try {
      write_all(file);
    } catch (...) {
      std::error_code ignored;
      fs::remove(file.path(), ignored);
      throw;
    }
    if (is_same_file(folder.parent_path(), paths_.tensorboard())) {
      for (const fs::path& other : earlier) remove_file(other);
    }
    return file.path();
  }

  RunPaths paths_;
  MetricsTable steps_, evaluations_, choices_, launches_;
  std::map<double, double> times_;  // by step
};

}  // namespace

TensorBoard::TensorBoard(IoThread& io, const RunPaths& paths, FirstSteps first, const std::string& deck,
                         Warn warn)
    : io_(io), folder_(paths.tensorboard()), first_(first), warn_(std::move(warn)) {
  queue([this, paths, deck] {
    const bool has_evaluations = !event_files(folder_ / eval_name).empty();
    if (first_.training > 1) {
      const History history(io_, paths);
      if (!history.is_written() || event_files(folder_ / train_name).empty()) history.write_training(folder_);
      if (history.has_evaluations() || has_evaluations) history.write_evaluations(folder_);
    }
    train_.emplace(folder_ / train_name, first_.training, unix_time());
    write_deck(*train_, first_.training, unix_time(), deck);
    if (has_evaluations) eval_.emplace(folder_ / eval_name, first_.evaluation, unix_time());
  });
}

TensorBoard::~TensorBoard() {
  io_.run([] {});
}

void TensorBoard::append(const std::string& table, const MetricsRow& row) {
  if (!is_shown(table)) return;
  queue([this, table, row, time = unix_time()] {
    if (table == "steps") return write_row(*train_, table, row, time);
    if (!eval_) eval_.emplace(folder_ / eval_name, first_.evaluation, time);
    write_row(*eval_, table, row, time);
  });
}

void TensorBoard::queue(std::function<void()> work) {
  io_.submit([this, work = std::move(work)] {
    if (has_failed_) return;
    try {
      work();
    } catch (const std::exception& error) {
      has_failed_ = true;
      warn_(
          fmt::format("no more events for TensorBoard in this launch: {}; mylos report --tensorboard makes "
                      "them from the metrics",
                      error_of(error).what()));
    }
  });
}

std::vector<fs::path> write_events(IoThread& io, const RunPaths& paths, const fs::path& folder) {
  const History history(io, paths);
  std::vector<fs::path> written = {history.write_training(folder)};
  if (history.has_evaluations() || !event_files(folder / eval_name).empty())
    written.push_back(history.write_evaluations(folder));
  return written;
}

}  // namespace mylos
