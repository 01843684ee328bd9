// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/step/operations_report.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/statistics.hpp"

namespace mylos {

namespace {

/// Medians over the traced steps of a configuration. Each median is taken separately, so the medians need not
/// add up to the step's.
class ProfileMedians {
 public:
  explicit ProfileMedians(const std::vector<StepProfile>& profiles) : profiles_(profiles) {
    operations_ = profiles.front().operations;
    for (OperationTime& operation : operations_) {
      operation.seconds = median([&](const StepProfile& profile) {
        return sum(profile, [&](const OperationTime& other) { return other.label == operation.label; });
      });
    }
    std::ranges::stable_sort(operations_, std::ranges::greater(), &OperationTime::seconds);
  }

  /// Longest first.
  const std::vector<OperationTime>& operations() const { return operations_; }
  double step() const { return median(&StepProfile::seconds); }
  double all_of(TraceKind kind) const {
    return median([&](const StepProfile& profile) {
      return sum(profile, [&](const OperationTime& operation) { return operation.kind == kind; });
    });
  }
  double other() const {
    return median([](const StepProfile& profile) { return profile.seconds - profile.covered(); });
  }
  double coverage() const {
    return median([](const StepProfile& profile) { return profile.covered() / profile.seconds; });
  }

 private:
  template <class Value>
  double median(Value value) const {
    std::vector<double> values(profiles_.size());
    std::ranges::transform(profiles_, values.begin(), value);
    return mylos::median(std::move(values));
  }

  template <class Predicate>
  static double sum(const StepProfile& profile, Predicate belongs) {
    double seconds = 0.0;
    for (const OperationTime& operation : profile.operations)
      seconds += belongs(operation) ? operation.seconds : 0.0;
    return seconds;
  }

  const std::vector<StepProfile>& profiles_;
  std::vector<OperationTime> operations_;
};

}  // namespace

std::string operations_table(const ReportRow& row) {
  const std::vector<StepProfile>& profiles = row.measurement.profiles;
  const ProfileMedians medians(profiles);
  const double step = medians.step();
  const auto line = [&](std::string_view name, double seconds, const std::string& calls = "") {
    return fmt::format("{:<44} {:>10.3f} {:>7.2f} {:>7}\n", name, 1e3 * seconds, 100.0 * seconds / step,
                       calls);
  };
  std::string text = fmt::format(
      "Time by operation, {}: rank 0, medians of {} traced step{} of {:.2f} ms, {:.3f} of an untraced one\n\n"
      "{:<44} {:>10} {:>7} {:>7}\n",
      row.configuration.name, profiles.size(), profiles.size() == 1 ? "" : "s", 1e3 * step,
      step / row.measurement.step_seconds(), "", "ms", "%", "calls");
  for (const OperationTime& operation : medians.operations())
    text += line(operation.label, operation.seconds, fmt::format("{}", operation.calls));
  text += line("other", medians.other()) + "\n";
  for (const TraceKind kind : {TraceKind::operation, TraceKind::communication, TraceKind::data})
    text += line(fmt::format("all of {}", name_of(kind)), medians.all_of(kind));
  return text + line("covered", medians.coverage() * step);
}

std::string operations_csv(const std::vector<ReportRow>& rows) {
  std::string text = "configuration,operation,kind,calls,ms,share\n";
  for (const ReportRow& row : rows) {
    const ProfileMedians medians(row.measurement.profiles);
    const auto line = [&](std::string_view label, std::string_view kind, std::int64_t calls, double seconds) {
      text += fmt::format("{},{},{},{},{:.4f},{:.5f}\n", row.configuration.name, label, kind, calls,
                          1e3 * seconds, seconds / medians.step());
    };
    for (const OperationTime& operation : medians.operations())
      line(operation.label, name_of(operation.kind), operation.calls, operation.seconds);
    line("other", "other", 0, medians.other());
    line(whole_step, name_of(TraceKind::phase), 1, medians.step());
  }
  return text;
}

}  // namespace mylos
