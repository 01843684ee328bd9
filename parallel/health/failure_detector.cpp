// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/failure_detector.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "core/base/joined.hpp"

namespace mylos {

namespace {

constexpr std::size_t operations_printed = 8;

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

bool has_died(const RankFlight& flight) {
  return kill(flight.pid, 0) != 0 && errno == ESRCH;
}

std::string describe(const OperationRecord& record) {
  return fmt::format("{} [{}] {} bytes", record.operation.data(), record.axis.data(), record.bytes);
}

}  // namespace

std::string FailureDetector::look(std::vector<RankFlight> node, TimePoint now) {
  if (now - now_ > limits_.silence / 2) {
    sights_.clear();
    found_at_.reset();
  }
  node_ = std::move(node);
  now_ = now;
  update_sights();
  std::string reason = judge();
  if (reason.empty()) {
    found_at_.reset();
    return "";
  }
  if (!found_at_) found_at_ = now;
  return is_reporter() ? reason : "";
}

void FailureDetector::update_sights() {
  if (sights_.empty()) sights_.resize(node_.size(), {0, now_, 0, now_});
  for (std::size_t i = 0; i < node_.size(); ++i) {
    Sight& sight = sights_[i];
    if (node_[i].heartbeats != sight.heartbeats) {
      sight.heartbeats = node_[i].heartbeats;
      sight.beat_at = now_;
    }
    const RankFlight::Entry* open = node_[i].open_operation();
    const std::uint64_t number = open != nullptr ? open->record.number : 0;
    if (number != sight.open_number) {
      sight.open_number = number;
      sight.open_since = now_;
    }
  }
}

bool FailureDetector::is_silent(std::size_t i) const {
  return !node_[i].finished && now_ - sights_[i].beat_at > limits_.silence;
}

std::string FailureDetector::judge() const {
  for (std::size_t i = 0; i < node_.size(); ++i) {
    if (!is_silent(i)) continue;
    return fmt::format("{} rank {}: pid {} has given no sign of life for {:.1f} s",
                       has_died(node_[i]) ? "dead" : "stopped", node_[i].rank, node_[i].pid,
                       seconds(now_ - sights_[i].beat_at));
  }
  for (std::size_t i = 0; i < node_.size(); ++i) {
    if (sights_[i].open_number == 0 || now_ - sights_[i].open_since <= limits_.operation_timeout) continue;
    std::map<std::string, std::vector<int>> doing;
    for (const RankFlight& flight : node_) {
      const RankFlight::Entry* open = flight.open_operation();
      doing[open != nullptr ? describe(open->record) : "no operation"].push_back(flight.rank);
    }
    std::string reason =
        fmt::format("stalled collective: rank {} has been in {} for more than {:.1f} s", node_[i].rank,
                    describe(node_[i].open_operation()->record), seconds(limits_.operation_timeout));
    for (const auto& [what, ranks] : doing) reason += fmt::format("; in {}: {}", what, joined(ranks, ", "));
    return reason;
  }
  return {};
}

bool FailureDetector::is_reporter() const {
  if (now_ - *found_at_ > limits_.silence) return true;  // the one whose turn it was has failed too
  for (std::size_t i = 0; i < node_.size(); ++i) {
    if (!node_[i].finished && !is_silent(i)) return node_[i].rank == own_rank_;
  }
  return false;
}

std::string FailureDetector::report(const std::string& reason) const {
  std::string text = fmt::format("mylos watchdog: {}\n", reason);
  const auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < node_.size(); ++i) {
    const RankFlight& flight = node_[i];
    fmt::format_to(out, "rank {} (pid {}, {}), step {}, {}\n", flight.rank, flight.pid,
                   flight.finished ? "finished"
                   : is_silent(i)  ? "SILENT"
                                   : "running",
                   flight.step, flight.phase.empty() ? "no phase yet" : flight.phase);
    const std::size_t count = std::min(flight.operations.size(), operations_printed);
    for (auto entry = flight.operations.end() - static_cast<std::ptrdiff_t>(count);
         entry != flight.operations.end(); ++entry) {
      const auto age = now_.time_since_epoch() - std::chrono::nanoseconds(entry->record.begin_ns);
      fmt::format_to(out, "  #{} {}, begun {:.1f} s ago, {}\n", entry->record.number, describe(entry->record),
                     seconds(age), entry->done ? "done" : "UNDER WAY");
    }
  }
  return text;
}

}  // namespace mylos
