// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/watchdog.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

Watchdog::Watchdog(FlightRecorder& recorder, const WatchdogLimits& limits,
                   std::function<void(const std::string&)> on_failure)
    : recorder_(recorder),
      limits_(limits),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Watchdog::~Watchdog() {
  recorder_.finish();
  thread_.request_stop();
  wake_.notify_all();
}

void Watchdog::run(const std::stop_token& stop) {
  std::optional<Clock::time_point> found_at;
  Clock::time_point previous = Clock::now();
  while (!stop.stop_requested()) {
    const Clock::time_point now = Clock::now();
    recorder_.beat();
    // After a long gap this process was itself stopped, and what it remembers of the others is too old to
    // judge by.
    if (now - previous > limits_.silence / 2) {
      sights_.clear();
      found_at.reset();
    }
    previous = now;
    look(now);
    if (const std::string reason = judge(now); !reason.empty()) {
      if (!found_at) found_at = now;
      if (is_reporter(now, *found_at)) {
        print(reason, now);
        on_failure_(reason);
        return;
      }
    } else {
      found_at.reset();
    }
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, limits_.heartbeat, [] { return false; });
  }
}

void Watchdog::look(Clock::time_point now) {
  node_ = recorder_.read_node();
  if (sights_.empty()) sights_.resize(node_.size(), {0, now, 0, now});
  for (std::size_t i = 0; i < node_.size(); ++i) {
    Sight& sight = sights_[i];
    if (node_[i].heartbeats != sight.heartbeats) {
      sight.heartbeats = node_[i].heartbeats;
      sight.beat_at = now;
    }
    const RankFlight::Entry* open = node_[i].open_operation();
    const std::uint64_t number = open != nullptr ? open->record.number : 0;
    if (number != sight.open_number) {
      sight.open_number = number;
      sight.open_since = now;
    }
  }
}

bool Watchdog::silent(std::size_t i, Clock::time_point now) const {
  return !node_[i].finished && now - sights_[i].beat_at > limits_.silence;
}

std::string Watchdog::judge(Clock::time_point now) const {
  for (std::size_t i = 0; i < node_.size(); ++i) {
    if (!silent(i, now)) continue;
    return fmt::format("{} rank {}: pid {} has given no sign of life for {:.1f} s",
                       has_died(node_[i]) ? "dead" : "stopped", node_[i].rank, node_[i].pid,
                       seconds(now - sights_[i].beat_at));
  }
  for (std::size_t i = 0; i < node_.size(); ++i) {
    if (sights_[i].open_number == 0 || now - sights_[i].open_since <= limits_.operation_timeout) continue;
    std::map<std::string, std::vector<int>> doing;
    for (const RankFlight& flight : node_) {
      const RankFlight::Entry* open = flight.open_operation();
      doing[open != nullptr ? describe(open->record) : "no operation"].push_back(flight.rank);
    }
    std::string reason =
        fmt::format("stalled collective: rank {} has been in {} for more than {:.1f} s", node_[i].rank,
                    describe(node_[i].open_operation()->record), seconds(limits_.operation_timeout));
    for (const auto& [what, ranks] : doing)
      reason += fmt::format("; in {}: {}", what, fmt::join(ranks, ", "));
    return reason;
  }
  return {};
}

bool Watchdog::is_reporter(Clock::time_point now, Clock::time_point found_at) const {
  if (now - found_at > limits_.silence) return true;  // the one whose turn it was has failed too
  for (std::size_t i = 0; i < node_.size(); ++i) {
    if (!node_[i].finished && !silent(i, now)) return node_[i].rank == recorder_.rank();
  }
  return false;
}

void Watchdog::print(const std::string& reason, Clock::time_point now) const {
  std::string text = fmt::format("mylos watchdog: {}\n", reason);
  const auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < node_.size(); ++i) {
    const RankFlight& flight = node_[i];
    fmt::format_to(out, "rank {} (pid {}, {}), step {}, {}\n", flight.rank, flight.pid,
                   flight.finished  ? "finished"
                   : silent(i, now) ? "SILENT"
                                    : "running",
                   flight.step, flight.phase.empty() ? "no phase yet" : flight.phase);
    const std::size_t count = std::min(flight.operations.size(), operations_printed);
    for (auto entry = flight.operations.end() - static_cast<std::ptrdiff_t>(count);
         entry != flight.operations.end(); ++entry) {
      const auto age = now.time_since_epoch() - std::chrono::nanoseconds(entry->record.begin_ns);
      fmt::format_to(out, "  #{} {}, begun {:.1f} s ago, {}\n", entry->record.number, describe(entry->record),
                     seconds(age), entry->done ? "done" : "UNDER WAY");
    }
  }
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace mylos
