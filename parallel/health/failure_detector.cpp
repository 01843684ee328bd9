// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/failure_detector.hpp"

#include <algorithm>

#include "core/base/clock.hpp"

namespace mylos {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::ptrdiff_t communication_printed = 8;
constexpr std::size_t report_bytes_per_rank = 192 * (communication_printed + 8);

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

/// The operation that the rank of `flight` is in. A file-system call takes precedence, then a computation,
/// because other ranks wait for a rank that is in one.
const RankFlight::Entry* shown_operation(const RankFlight& flight) {
  for (const CallKind kind : {CallKind::io, CallKind::computation}) {
    if (const RankFlight::Entry* open = flight.open_operation(kind)) return open;
  }
  return flight.open_operation();
}

std::string_view failure_of(CallKind kind) {
  switch (kind) {
    case CallKind::io:
      return "hanging file system";
    case CallKind::computation:
      return "stalled computation";
    case CallKind::message:
      return "stalled message";
    default:
      return "stalled collective";
  }
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
  return is_turn();
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
    failed_ = i;
    const RankFlight& flight = (*node_)[i];
    return reason_.add("{} rank {}: pid {}{} has given no sign of life for {:.1f} s",
                       flight.has_died ? "dead" : "stopped", flight.rank, flight.pid,
                       flight.on_other_node ? " on another node" : "",
                       in_seconds(clock_ - sights_[i].beat_at));
  }
  judge_operations(CallKind::io, limits_.io_timeout, ExitCode::io);
  judge_operations(CallKind::computation, limits_.operation_timeout, ExitCode::watchdog);
  judge_operations(CallKind::collective, limits_.operation_timeout, ExitCode::watchdog);
  judge_operations(CallKind::message, limits_.operation_timeout, ExitCode::watchdog);
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
  failed_ = static_cast<std::size_t>(late - sights_.begin());
  const RankFlight& flight = (*node_)[failed_];
  reason_.add("{}: rank {} has been in ", failure_of(kind), flight.rank);
  describe(reason_, flight.open_operation(kind));
  reason_.add(" for more than {:.1f} s", in_seconds(limit));
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

const RankFlight* FailureDetector::rank_of_other_node() const {
  const auto other = std::ranges::find_if(*node_, &RankFlight::on_other_node);
  if (other == node_->end() || other->finished || is_silent(static_cast<std::size_t>(other - node_->begin())))
    return nullptr;
  return &*other;
}

int FailureDetector::num_turns_before() const {
  const RankFlight& failed = (*node_)[failed_];
  int turns = 0;
  bool is_lowest_of_node = true;  // the failed rank
  for (std::size_t i = 0; i < node_->size(); ++i) {
    const RankFlight& flight = (*node_)[i];
    if (flight.on_other_node) continue;
    is_lowest_of_node = is_lowest_of_node && flight.rank >= failed.rank;
    if (flight.rank < own_rank_ && !flight.finished && !is_silent(i)) ++turns;
  }
  if (!has_other_nodes_) return turns;
  if (is_silent(failed_)) return !failed.on_other_node && is_lowest_of_node ? turns + 1 : turns;
  if (turns > 0) return turns + 1;
  const RankFlight* other = rank_of_other_node();
  return other != nullptr && other->sees_failure && (other->rank < own_rank_ || failed.on_other_node) ? 1 : 0;
}

bool FailureDetector::is_turn() const {
  constexpr int beats_until_heard = 4;  // a look there, a message, its receipt, a look here
  const nanoseconds waited = clock_ - *found_at_;
  if (const int turns = num_turns_before(); turns > 0) return waited > turns * nanoseconds(limits_.silence);
  if (!has_other_nodes_ || is_silent(failed_)) return true;
  const RankFlight* other = rank_of_other_node();
  const bool may_come_first = other != nullptr && other->rank < own_rank_;
  return !may_come_first || waited >= beats_until_heard * nanoseconds(limits_.heartbeat());
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
    const auto is_communication = [](const RankFlight::Entry& entry) {
      return entry.record.kind == CallKind::collective || entry.record.kind == CallKind::message;
    };
    auto communication_left = std::ranges::count_if(entries, is_communication);
    const auto is_computation = [](const RankFlight::Entry& entry) {
      return entry.record.kind == CallKind::computation;
    };
    auto others_left =
        std::ssize(entries) - communication_left - std::ranges::count_if(entries, is_computation);
    for (const RankFlight::Entry& entry : entries) {
      // The last collectives and messages, the last computation, the last other call, and all operations
      // under way.
      const bool is_late =
          is_computation(entry) ||
          (is_communication(entry) ? communication_left-- <= communication_printed : others_left-- <= 1);
      if (!is_late && entry.done) continue;
      const auto age = looked_at_->time_since_epoch() - nanoseconds(entry.record.begin_ns);
      report_.add("  #{} ", entry.record.number);
      describe(report_, &entry);
      // The clocks of different nodes differ.
      if (!flight.on_other_node) report_.add(", started {:.1f} s ago", in_seconds(age));
      report_.add(", {}\n", entry.done ? "done" : "UNDER WAY");
    }
  }
  return report_.view();
}

}  // namespace mylos
