// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/failure_detector.hpp"

#include <algorithm>

namespace mylos {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::ptrdiff_t collectives_printed = 8;
constexpr std::size_t report_bytes_per_rank = 128 * (collectives_printed + 8);

double seconds(nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

void describe(FixedText& text, const RankFlight::Entry* entry) {
  if (entry == nullptr) return text.add("no operation");
  const OperationRecord& record = entry->record;
  text.add("{} [{}]", record.operation.data(), record.object.data());
  if (record.bytes > 0) text.add(" {} bytes", record.bytes);
}

/// Whether two entries, which may be null, have the same text.
bool is_same(const RankFlight::Entry* a, const RankFlight::Entry* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->record.operation == b->record.operation && a->record.object == b->record.object &&
         a->record.bytes == b->record.bytes;
}

/// The operation that the rank of `flight` is in. A file-system call takes precedence, because other ranks
/// wait for a rank that is in one.
const RankFlight::Entry* shown_operation(const RankFlight& flight) {
  const RankFlight::Entry* io = flight.open_operation(CallKind::io);
  return io != nullptr ? io : flight.open_operation();
}

}  // namespace

bool FailureDetector::look(const std::vector<RankFlight>& node, TimePoint now) {
  constexpr int fewest_looks = 4;
  if (looked_at_)
    clock_ += std::min<nanoseconds>(now - *looked_at_, nanoseconds(limits_.silence) / fewest_looks);
  looked_at_ = now;
  node_ = &node;
  update_sights();
  reason_.clear();
  judge();
  if (reason_.empty()) {
    found_at_.reset();
    return false;
  }
  if (!found_at_) found_at_ = clock_;
  return is_reporter();
}

void FailureDetector::update_sights() {
  if (sights_.size() < node_->size()) {
    Sight first;
    first.beat_at = clock_;
    first.open_since.fill(clock_);
    sights_.resize(node_->size(), first);
    report_ = FixedText(reason_bytes + report_bytes_per_rank * node_->size());
  }
  for (std::size_t i = 0; i < node_->size(); ++i) {
    const RankFlight& flight = (*node_)[i];
    Sight& sight = sights_[i];
    if (flight.heartbeats != sight.heartbeats) {
      sight.heartbeats = flight.heartbeats;
      sight.beat_at = clock_;
    }
    for (std::size_t kind = 0; kind < num_call_kinds; ++kind) {
      const RankFlight::Entry* open = flight.open_operation(static_cast<CallKind>(kind));
      const std::uint64_t number = open != nullptr ? open->record.number : 0;
      if (number == sight.open_number[kind]) continue;
      sight.open_number[kind] = number;
      sight.open_since[kind] = clock_;
    }
  }
}

bool FailureDetector::is_silent(std::size_t i) const {
  return !(*node_)[i].finished && clock_ - sights_[i].beat_at > limits_.silence;
}

void FailureDetector::judge() {
  code_ = ExitCode::watchdog;
  for (std::size_t i = 0; i < node_->size(); ++i) {
    if (!is_silent(i)) continue;
    const RankFlight& flight = (*node_)[i];
    return reason_.add("{} rank {}: pid {}{} has given no sign of life for {:.1f} s",
                       flight.has_died ? "dead" : "stopped", flight.rank, flight.pid,
                       flight.on_other_node ? " on another node" : "", seconds(clock_ - sights_[i].beat_at));
  }
  judge_operations(CallKind::io, limits_.io_timeout, ExitCode::io);
  judge_operations(CallKind::collective, limits_.operation_timeout, ExitCode::watchdog);
  // The rank that the others wait for may be in a file-system call for up to io_timeout.
  judge_operations(CallKind::agreement, limits_.operation_timeout + limits_.io_timeout, ExitCode::watchdog);
}

void FailureDetector::judge_operations(CallKind kind, milliseconds limit, ExitCode code) {
  if (!reason_.empty()) return;
  const std::size_t k = static_cast<std::size_t>(kind);
  const auto late = std::ranges::find_if(sights_, [&](const Sight& sight) {
    return sight.open_number[k] != 0 && clock_ - sight.open_since[k] > limit;
  });
  if (late == sights_.end()) return;
  code_ = code;
  const RankFlight& flight = (*node_)[static_cast<std::size_t>(late - sights_.begin())];
  reason_.add("{}: rank {} has been in ", kind == CallKind::io ? "hanging file system" : "stalled collective",
              flight.rank);
  describe(reason_, flight.open_operation(kind));
  reason_.add(" for more than {:.1f} s", seconds(limit));
  // Lists every distinct operation together with the ranks that are in it.
  for (auto first = node_->begin(); first != node_->end(); ++first) {
    const RankFlight::Entry* own = shown_operation(*first);
    const auto in_it = [&](const RankFlight& other) { return is_same(shown_operation(other), own); };
    if (std::any_of(node_->begin(), first, in_it)) continue;
    reason_.add("; in ");
    describe(reason_, own);
    for (auto other = first; other != node_->end(); ++other) {
      if (in_it(*other)) reason_.add("{}{}", other == first ? ": " : ", ", other->rank);
    }
  }
}

bool FailureDetector::is_reporter() const {
  if (clock_ - *found_at_ > limits_.silence) return true;  // the rank whose turn it was has failed too
  int lowest = own_rank_;
  for (std::size_t i = 0; i < node_->size(); ++i) {
    if (!(*node_)[i].finished && !is_silent(i)) lowest = std::min(lowest, (*node_)[i].rank);
  }
  return lowest == own_rank_;
}

std::string_view FailureDetector::report() {
  report_.clear();
  report_.add("mylos watchdog: {}\n", reason_.view());
  for (std::size_t i = 0; i < node_->size(); ++i) {
    const RankFlight& flight = (*node_)[i];
    report_.add("rank {} (pid {}{}, {}), step {}, {}\n", flight.rank, flight.pid,
                flight.on_other_node ? " on another node" : "",
                flight.finished ? "finished"
                : is_silent(i)  ? "SILENT"
                                : "running",
                flight.step, flight.phase[0] == '\0' ? "no phase yet" : flight.phase.data());
    const auto entries = flight.entries();
    const auto is_collective = [](const RankFlight::Entry& entry) {
      return entry.record.kind == CallKind::collective;
    };
    auto collectives_left = std::ranges::count_if(entries, is_collective);
    auto others_left = std::ssize(entries) - collectives_left;
    for (const RankFlight::Entry& entry : entries) {
      // The last collectives, the last other call, and all operations under way.
      const bool is_late =
          is_collective(entry) ? collectives_left-- <= collectives_printed : others_left-- <= 1;
      if (!is_late && entry.done) continue;
      const auto age = looked_at_->time_since_epoch() - nanoseconds(entry.record.begin_ns);
      report_.add("  #{} ", entry.record.number);
      describe(report_, &entry);
      // The clocks of different nodes differ.
      if (!flight.on_other_node) report_.add(", started {:.1f} s ago", seconds(age));
      report_.add(", {}\n", entry.done ? "done" : "UNDER WAY");
    }
  }
  return report_.view();
}

}  // namespace mylos
