// SPDX-License-Identifier: BSD-3-Clause
// NcclCommunicator: a Communicator over NCCL, ordered with the compute backend's queue by events.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <nccl.h>
#include <string>
#include <string_view>
#include <vector>

#include "core/communication/forwarding_communicator.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos::comm_nccl {

/// CUDA events that requests borrow and give back for reuse.
class EventPool {
 public:
  EventPool() = default;
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  cudaEvent_t take();
  void give_back(cudaEvent_t event) { free_.push_back(event); }

 private:
  std::vector<cudaEvent_t> free_;
};

class NcclRequest;

/// Operations run on the communicator's own stream, after the work already queued on the compute backend.
/// Errors of NCCL and CUDA in operations, including those that NCCL reports later, end the job with
/// ExitCode::internal. Each rank needs its own GPU. The communicator is made collectively and used by one
/// thread. Messages between two ranks match in the order in which they are posted, whatever their tags. NCCL
/// runs posted operations one after the other. Two ranks that send to each other at the same time must
/// therefore post these messages together, or use an all-to-all: either is one NCCL group.
class NcclCommunicator final : public CallCommunicator {
 public:
  /// Joins all ranks of `bootstrap`, which carries NCCL's id. Operations are ordered with the queue of
  /// `compute`. `bootstrap` and `compute` must outlive this object. Throws ExitCode::internal if NCCL cannot
  /// make the communicator.
  static std::unique_ptr<NcclCommunicator> create(Communicator& bootstrap, ComputeBackend& compute);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void begin_messages() override;
  void end_messages() override;
  void barrier() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  [[noreturn]] void abort(ExitCode code, const std::string& message) override;

 private:
  friend class NcclRequest;

  NcclCommunicator(ncclComm_t comm, Communicator& bootstrap, ComputeBackend& compute);

  void check(ncclResult_t result, std::string_view call);
  void check(cudaError_t status, const char* call);
  /// Waits until NCCL has enqueued the last call: the communicators are non-blocking.
  void wait_until_enqueued(std::string_view call);
  /// The operation starts after the work already queued on `compute`.
  Request start(const CommCall& call) override;
  /// Makes the call on the communicator's own stream.
  ncclResult_t post(const CommCall& call);
  ncclResult_t exchange(const CommCall& call, std::span<const std::int64_t> send_counts,
                        std::span<const std::int64_t> recv_counts);

  ncclComm_t comm_;
  Communicator& bootstrap_;
  ComputeBackend& compute_;
  cudaStream_t own_stream_ = nullptr;
  void* barrier_word_ = nullptr;
  EventPool events_;
  bool posts_together_ = false;
  std::vector<cudaEvent_t> posted_;  // the ends of the messages of the open group
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace mylos::comm_nccl
