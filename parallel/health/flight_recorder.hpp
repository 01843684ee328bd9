// SPDX-License-Identifier: BSD-3-Clause
// FlightRecorder: the last operations of every rank of a node, readable by its survivors.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/communicator.hpp"

namespace mylos {

/// A small value that one thread writes and others, of any process, read whole or not at all.
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

  /// Nothing where the value is being written, perhaps by a process that was stopped meanwhile.
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

/// One operation as it stands in shared memory.
struct OperationRecord {
  std::uint64_t number;  // from 1
  std::uint64_t bytes;
  std::int64_t begin_ns;  // CLOCK_MONOTONIC, the same for all processes of a node
  std::array<char, 16> operation;
  std::array<char, 24> axis;
};

struct PhaseRecord {
  std::int64_t step;
  std::array<char, 56> text;
};

/// The memory of one rank. Zero bytes are a valid empty page.
struct FlightPage {
  static constexpr std::size_t num_operations = 64;

  struct Slot {
    SharedValue<OperationRecord> record;
    std::atomic<std::uint64_t> completed{0};  // number of the last operation in this slot that was completed
  };

  std::int64_t pid = 0;
  std::int64_t rank = 0;
  std::atomic<std::uint64_t> heartbeats{0};
  std::atomic<std::uint64_t> operations{0};  // how many were begun
  std::atomic<bool> finished{false};
  SharedValue<PhaseRecord> phase;
  std::array<Slot, num_operations> slots;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "pages are shared between processes");

/// What one rank is doing, read from its page.
struct RankFlight {
  struct Entry {
    OperationRecord record;
    bool done;
  };

  int rank = 0;
  int pid = 0;
  bool finished = false;
  std::uint64_t heartbeats = 0;
  std::int64_t step = 0;
  std::string phase;
  std::vector<Entry> operations;  ///< the oldest first

  /// The oldest operation under way, or null.
  const Entry* open_operation() const;
};

/// Writes this rank's page and reads those of the ranks of the same node. `begin` and `complete` never
/// allocate and may be called from any thread; an operation is forgotten when 64 more have begun.
class FlightRecorder {
 public:
  /// Makes this rank's page in /dev/shm (or /tmp), maps those of the node's other ranks and unlinks all
  /// names, so that nothing is left however the job ends. Collective; `world` must take host buffers. Throws
  /// ExitCode::io.
  static std::unique_ptr<FlightRecorder> open(Communicator& world);
  /// Marks this rank as finished.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Notes the start of an operation and returns its number.
  std::uint64_t begin(std::string_view operation, std::string_view axis, std::uint64_t bytes);
  void complete(std::uint64_t number);
  /// Says what the rank is doing, for the report; called by one thread.
  void set_phase(std::int64_t step, std::string_view text);
  void beat() { own().heartbeats.fetch_add(1); }
  /// From here on silence is no failure.
  void finish() { own().finished.store(true); }

  int rank() const { return rank_; }
  /// The ranks of this node in order, this one included.
  std::vector<RankFlight> read_node() const;

 private:
  class Mapping;

  FlightRecorder(int rank, std::vector<Mapping> node, std::size_t own);
  FlightPage& own();

  int rank_;
  std::vector<Mapping> node_;
  std::size_t own_;
};

}  // namespace mylos
