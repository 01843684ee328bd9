// SPDX-License-Identifier: BSD-3-Clause
// FlightRecorder: the last operations of every rank of a node, readable by the surviving ranks.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/watched_call.hpp"

namespace mylos {

/// A small value that one thread at a time writes and that threads of any process read whole or not at all.
template <class T>
class SharedValue {
 public:
  void store(const T& value) {
    const Words words = std::bit_cast<Words>(value);
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
    version_.store(version + 2, std::memory_order_release);
  }

  /// Empty if the value is being written, perhaps by a process that was stopped while it wrote.
  std::optional<T> load() const {
    const std::uint64_t before = version_.load(std::memory_order_acquire);
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 != 0 || version_.load(std::memory_order_relaxed) != before) return std::nullopt;
    return std::bit_cast<T>(words);
  }

 private:
  static_assert(sizeof(T) % sizeof(std::uint64_t) == 0);
  using Words = std::array<std::uint64_t, sizeof(T) / sizeof(std::uint64_t)>;

  std::atomic<std::uint64_t> version_{0};
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> words_{};
};

inline constexpr std::size_t object_bytes = 96;

/// One operation in shared memory.
struct OperationRecord {
  std::uint64_t number;  // from 1; collectives, messages and other calls are numbered separately
  std::uint64_t bytes;
  std::int64_t begin_ns;  // CLOCK_MONOTONIC, the same for all processes of a node
  CallKind kind;
  std::array<char, 16> operation;
  std::array<char, object_bytes> object;  // such as an axis and an entry, or the end of a file's name
};

struct PhaseRecord {
  std::int64_t step;
  std::array<char, 56> text;
};

/// The shared memory of one rank. A page of zeros is valid and empty.
struct FlightPage {
  struct Slot {
    SharedValue<OperationRecord> record;
    std::atomic<std::uint64_t> begun{0};      // number of the last operation in this slot
    std::atomic<std::uint64_t> completed{0};  // number of the last operation completed in this slot
  };

  struct Ring {
    static constexpr std::size_t size = 64;
    std::atomic<std::uint64_t> operations{0};  // numbers assigned so far
    std::array<Slot, size> slots;
  };

  std::int64_t pid = 0;
  std::int64_t pid_namespace = 0;  // the PID namespace to which `pid` belongs
  std::int64_t rank = 0;
  std::atomic<std::uint64_t> heartbeats{0};
  std::atomic<std::uint64_t> finished{0};
  std::atomic<std::uint64_t> sees_failure{0};
  SharedValue<PhaseRecord> phase;
  // Of collectives, whose numbers are the same on all ranks of a stage, of messages, and of other calls.
  std::array<Ring, 3> rings;
  Slot computation;  // the last computation: there are too many to keep more
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "pages are shared between processes");

/// The activity of one rank, read from its page.
struct RankFlight {
  struct Entry {
    OperationRecord record;
    bool done;
  };

  int rank = 0;
  int pid = 0;
  bool has_died = false;       ///< the reading rank knows that the process has ended
  bool on_other_node = false;  ///< the other members come from the rank's last message
  bool finished = false;
  bool sees_failure = false;  ///< its detector has found one
  std::uint64_t heartbeats = 0;
  std::int64_t step = 0;
  std::array<char, 56> phase{};
  std::size_t num_operations = 0;
  std::array<Entry, 3 * FlightPage::Ring::size + 1> operations{};  ///< the oldest first

  std::span<const Entry> entries() const { return std::span(operations).first(num_operations); }
  /// The oldest operation under way, of `kind` if given; null if there is none.
  const Entry* open_operation(std::optional<CallKind> kind = {}) const;
};

/// Writes this rank's page, reads the pages of the ranks of the same node, and receives messages from one
/// rank of another node. `begin` and `complete` never allocate and may be called from any thread. Keeps up to
/// 64 collectives, 64 messages and 64 other calls: the calls under way and the latest completed calls; and
/// the last computation. A computation that begins during another one is not noted.
class FlightRecorder final : public CallObserver {
 public:
  /// Every rank's text, in the order of the ranks; collective.
  using Gather = std::function<std::vector<std::string>(const std::string&)>;

  /// Makes this rank's page and maps the pages of the node's other ranks to which this rank has access; ranks
  /// in separate user or PID namespaces therefore count as separate nodes. Collective over the ranks that
  /// `gather` reaches. Throws ExitCode::io.
  FlightRecorder(int rank, const Gather& gather);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  std::uint64_t begin(CallKind kind, std::string_view operation, std::string_view object,
                      std::uint64_t bytes) override;
  void complete(std::uint64_t number) override;
  /// Sets the activity of this rank that the report shows. Only one thread may call it.
  void set_phase(std::int64_t step, std::string_view text);
  /// Returns the rank of a process of this node that has ended too early; empty if none is known. Safe in a
  /// process that fails.
  std::optional<int> dead_rank() const;
  std::uint64_t heartbeats() const { return own().heartbeats.load(); }
  void beat() { own().heartbeats.fetch_add(1); }
  /// Tells the other ranks whether this one's detector has found a failure.
  void set_sees_failure(bool sees) { own().sees_failure.store(sees ? 1 : 0); }
  /// After this, silence is not a failure.
  void finish() { own().finished.store(1); }

  int rank() const { return rank_; }
  /// The lowest rank of each node, ascending.
  const std::vector<int>& leaders() const { return leaders_; }
  /// Kills the other ranks of this node that have not finished, except ranks in another PID namespace.
  void kill_others() const;
  /// Sets `ranks` to the ranks of this node in order, including this one, then the rank that sent the
  /// received messages, if any. Does not allocate if `ranks` has the capacity.
  void read_node(std::vector<RankFlight>& ranks) const;

  /// This rank's page as a message.
  static constexpr std::size_t message_words = sizeof(FlightPage) / sizeof(std::uint64_t);
  using Message = std::array<std::uint64_t, message_words>;
  void write_message(Message& message) const;
  /// Receives a message from a rank of another node, always the same rank. After its last message the rank
  /// counts as finished.
  void receive(const Message& message, bool is_last);
  /// Receives only the number of heartbeats of that rank, of which the largest counts.
  void receive_heartbeats(std::uint64_t heartbeats);

 private:
  bool has_died(const FlightPage& page) const;
  struct Unmap {
    void operator()(FlightPage* page) const;
  };
  using Mapping = std::unique_ptr<FlightPage, Unmap>;

  /// Null if the file cannot be mapped.
  static Mapping map(int file);

  FlightPage& own() const;

  int rank_;
  std::vector<Mapping> node_;
  std::size_t own_ = 0;
  std::vector<int> leaders_;
  std::unique_ptr<FlightPage> received_ = std::make_unique<FlightPage>();
  std::atomic<bool> has_received_{false};
};

}  // namespace mylos
