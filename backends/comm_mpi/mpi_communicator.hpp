// SPDX-License-Identifier: BSD-3-Clause
// MpiCommunicator: a Communicator over non-blocking MPI calls. A wait polls and soon yields the core between
// polls, so that a run with more ranks than cores stays usable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <mpi.h>

#include "core/communication/communicator.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos::comm_mpi {

/// Whether MPI calls may be made: MPI is initialised and not yet finalised.
bool mpi_is_running();

class MpiRequest;

struct MpiSettings {
  ComputeBackend* compute = nullptr;  ///< buffers lie in its memory; null: host memory
  bool gpu_aware = false;             ///< MPI accepts device pointers
  int max_count = 1 << 30;            ///< largest count in an MPI call; longer buffers are split
};

/// Device buffers that the host cannot access go through host memory unless MPI is GPU-aware, and even then
/// if a reduction runs on the host or if its output lies within its input. MPI errors in operations end the
/// job with ExitCode::internal. Tags are 0 to 32765.
class MpiCommunicator final : public Communicator {
 public:
  /// Duplicates `comm`; throws ExitCode::internal if a call of MPI fails. Collective over `comm`.
  static std::unique_ptr<MpiCommunicator> duplicate(MPI_Comm comm, const MpiSettings& settings);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

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
  void progress() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  [[noreturn]] void abort(ExitCode code, const std::string& message) override;

 private:
  friend class MpiRequest;

  /// Throws ExitCode::internal if a call of MPI fails.
  MpiCommunicator(MPI_Comm comm, const MpiSettings& settings);

  /// Ends the job if an MPI call failed.
  void check(int result, const char* call);
  /// Waits for the work queued on the compute backend. `on_host`: even a GPU-aware MPI must be given host
  /// memory.
  std::unique_ptr<MpiRequest> start(bool on_host = false);
  /// Calls `post(offset in bytes, count)` for pieces of at most max_count elements.
  template <class Post>
  void for_pieces(DType dtype, std::int64_t size, Post&& post) const;
  /// Exchanges one part with `peer` point to point. The part may have more elements than one collective
  /// accepts.
  void exchange(MpiRequest& request, int peer, DType dtype, const std::byte* send_part,
                std::int64_t send_count, std::byte* recv_part, std::int64_t recv_count);

  MPI_Comm comm_;
  MpiSettings settings_;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace mylos::comm_mpi
