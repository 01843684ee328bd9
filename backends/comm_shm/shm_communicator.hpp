// SPDX-License-Identifier: BSD-3-Clause
// ShmCommunicator: a Communicator over memory that the ranks of one node share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/comm_shm/collective_queue.hpp"
#include "backends/comm_shm/mailbox.hpp"
#include "backends/comm_shm/progress_engine.hpp"
#include "backends/comm_shm/shared_memory.hpp"
#include "backends/comm_shm/shared_part.hpp"
#include "backends/comm_shm/staged_collectives.hpp"
#include "backends/comm_shm/window_collectives.hpp"
#include "core/communication/communicator.hpp"
#include "core/memory/host_buffers.hpp"
#include "core/memory/memory_charge.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos::comm_shm {

/// Settings that all communicators of a rank share. `bootstrap`, `compute` and `ledger` must outlive the
/// communicators.
struct ShmSettings {
  std::shared_ptr<SharedMemory> memory;
  Communicator* bootstrap = nullptr;  ///< sets up the first communicator and aborts the job
  ComputeBackend* compute = nullptr;  ///< buffers lie in its memory; null: host memory
  MemoryLedger* ledger = nullptr;     ///< of this rank; may be null
  bool may_spin = false;              ///< the node has a core for each rank
};

/// A collective is one pass over memory if its buffer (the input of a reduce_scatter or all_to_all, the
/// output of an all_gather) lies in memory from `allocate` and is not small. Otherwise its data go in chunks
/// through slots that all ranks see. Messages go through a Mailbox; all_to_all_v sends messages. Device
/// buffers that the host cannot access go through host memory. Reductions take the ranks in order, accumulate
/// floating-point elements in fp32 and round once. Tags are 0 to 32765.
class ShmCommunicator final : public Communicator {
 public:
  /// The communicator of `members`, ranks of the bootstrap on this node, in ascending order. Collective over
  /// the bootstrap.
  static std::unique_ptr<ShmCommunicator> create(const ShmSettings& settings, std::span<const int> members);
  ~ShmCommunicator() override;
  ShmCommunicator(const ShmCommunicator&) = delete;
  ShmCommunicator& operator=(const ShmCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Request all_reduce(TensorRef buffer, ReduceOp op) override;
  /// `output` may lie within `input`.
  Request reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) override;
  Request all_gather(TensorRef input, TensorRef output) override;
  Request broadcast(TensorRef buffer, int root) override;
  Request reduce(TensorRef buffer, ReduceOp op, int root) override;
  Request all_to_all(TensorRef input, TensorRef output) override;
  Request all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts, TensorRef output,
                       std::span<const std::int64_t> recv_counts) override;
  Request send(TensorRef buffer, int peer, int tag) override;
  Request recv(TensorRef buffer, int peer, int tag) override;
  void barrier() override;
  void progress() override { engine_->progress(); }
  /// Empty if `bytes` is 0, or if the buffers are in memory that the host cannot access.
  Window allocate(std::size_t bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  [[noreturn]] void abort(ExitCode code, const std::string& message) override;

 private:
  /// A window: the memory of every rank, as this rank maps it.
  struct SharedWindow {
    std::vector<SharedBytes> parts;
    std::size_t bytes;
  };

  ShmCommunicator(ShmSettings settings, std::shared_ptr<ProgressEngine> engine, std::vector<SharedPart> parts,
                  int rank, std::vector<int> engine_ranks);

  /// Waits for the work queued on the compute backend.
  HostBuffers start() const;
  /// Posts the collectives that make up one operation.
  Request post(HostBuffers buffers, std::span<Collective> collectives);
  Request post(HostBuffers buffers, Collective collective) {
    return post(std::move(buffers), {&collective, 1});
  }
  std::vector<std::int64_t> gather_numbers(std::int64_t own);

  StagedGroup staged() const { return {rank_, &parts_}; }
  /// The `bytes` at `data` in the windows of all ranks. Empty if `data` does not lie in a window, or if there
  /// are so few bytes that slots are faster.
  std::optional<WindowGroup> find_window_group(const void* data, std::size_t bytes) const;
  std::vector<Doorbell*> bells() const;

  ShmSettings settings_;
  std::shared_ptr<ProgressEngine> engine_;
  std::vector<SharedPart> parts_;
  int rank_;
  int size_;
  // The charge for this rank's part. The caller of `allocate` charges the window.
  MemoryCharge charge_;
  std::vector<int> engine_ranks_;  // the ranks of this communicator, in the engine's numbering
  std::vector<std::weak_ptr<const SharedWindow>>
      windows_;  // the allocated windows; some may already have been freed
  CollectiveQueue collectives_;
  Mailbox mailbox_;
};

}  // namespace mylos::comm_shm
