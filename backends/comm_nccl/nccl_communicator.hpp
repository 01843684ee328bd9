// SPDX-License-Identifier: BSD-3-Clause
// NcclCommunicator: a Communicator over NCCL, ordered with the compute backend's queue by events.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <nccl.h>
#include <string>
#include <vector>

#include "core/communicator.hpp"

namespace mylos::comm_nccl {

/// CUDA events that requests borrow, so that a training step creates no new ones.
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
/// Errors, including those that NCCL reports later, end the job with ExitCode::internal. Each rank needs its
/// own GPU. The communicator is made collectively and used by one thread. Messages between two ranks match in
/// the order in which they are posted, whatever their tags. NCCL runs posted operations one after the other.
/// Two ranks that send to each other at the same time must therefore use an all-to-all, whose messages are
/// one NCCL group.
class NcclCommunicator final : public Communicator {
 public:
  /// Joins all ranks of `bootstrap`, which carries NCCL's id and must outlive this. Operations are ordered
  /// with the queue of `compute`.
  static std::unique_ptr<NcclCommunicator> create(Communicator& bootstrap, ComputeBackend& compute);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Request all_reduce(TensorRef buffer, ReduceOp op) override;
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
  std::unique_ptr<Communicator> split(int color, int key) override;
  [[noreturn]] void abort(ExitCode code, const std::string& message) override;

 private:
  friend class NcclRequest;

  NcclCommunicator(ncclComm_t comm, Communicator& bootstrap, ComputeBackend& compute);

  void check(ncclResult_t result, const char* call);
  void check(cudaError_t status, const char* call);
  /// Waits until NCCL has enqueued the last call: the communicators are non-blocking.
  void wait_until_enqueued(const char* call);
  /// Calls `post(own stream)`. Its work starts after the work already queued on `compute`.
  template <class Post>
  Request start(const char* call, Post&& post);

  ncclComm_t comm_;
  Communicator& bootstrap_;
  ComputeBackend& compute_;
  cudaStream_t own_stream_ = nullptr;
  void* barrier_word_ = nullptr;
  EventPool events_;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace mylos::comm_nccl
