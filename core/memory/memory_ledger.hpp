// SPDX-License-Identifier: BSD-3-Clause
// MemoryLedger: the bytes of memory in use, now and at the peak, by category.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mylos {

enum class MemoryCategory : std::uint8_t {
  parameters,        ///< weights in the compute type that the rank keeps
  gradients,         ///< accumulated gradients that the rank keeps
  optimizer,         ///< fp32 master, if there is one, and the optimizer's states
  gathered_weights,  ///< weights gathered from the ranks, while they are used
  full_gradients,    ///< gradients before they are reduced to the rank's part
  activations,       ///< the arena
  workspace,         ///< scratch of a backend, packed weight copies, tables, scalars
  communication,     ///< staging and windows that hold no unit
  snapshot,          ///< host memory from which a checkpoint is written while training continues
  weight_versions,   ///< weights of earlier and later updates than `parameters`, of asynchronous pipelines
  cache,             ///< keys and values of the texts that are continued
};
inline constexpr int num_memory_categories = 11;

constexpr std::string_view name_of(MemoryCategory category) {
  constexpr std::array<std::string_view, num_memory_categories> names = {
      "parameters", "gradients",     "optimizer", "gathered_weights", "full_gradients", "activations",
      "workspace",  "communication", "snapshot",  "weight_versions",  "cache"};
  return names[static_cast<std::size_t>(category)];
}

/// Counts bytes; thread-safe. The session owns the ledger of a process and hands it down.
class MemoryLedger {
 public:
  void charge(MemoryCategory category, std::size_t bytes);
  void release(MemoryCategory category, std::size_t bytes);

  std::size_t current(MemoryCategory category) const {
    return current_[static_cast<std::size_t>(category)].load();
  }
  std::size_t current() const { return total_.load(); }
  /// Returns the largest total since construction; a category's own peak is `peak(category)`.
  std::size_t peak() const { return peak_total_.load(); }
  std::size_t peak(MemoryCategory category) const { return peak_[static_cast<std::size_t>(category)].load(); }
  /// Returns how many charges were made. A step that allocates nothing leaves the number unchanged.
  std::uint64_t num_charges() const { return num_charges_.load(); }

 private:
  std::array<std::atomic<std::size_t>, num_memory_categories> current_{};
  std::array<std::atomic<std::size_t>, num_memory_categories> peak_{};
  std::atomic<std::size_t> total_{0};
  std::atomic<std::size_t> peak_total_{0};
  std::atomic<std::uint64_t> num_charges_{0};
};

}  // namespace mylos
