// SPDX-License-Identifier: BSD-3-Clause
// gather_values: a few integers of every rank, on every rank; agree_on_problem: the problem of one, on all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/communication/communicator.hpp"
#include "core/memory/device_buffer.hpp"
#include "core/ops/compute_backend.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// Returns the values of all ranks of `group`, one rank after another. Every rank passes the same number of
/// values. The buffers lie in memory of `backend`, with which `group` works. Collective; for set-ups and
/// decisions, not for steps.
std::vector<std::int64_t> gather_values(ComputeBackend& backend, Communicator& group,
                                        const std::vector<std::int64_t>& own);

/// Does the same again and again with memory of its own: to free device memory may end the recordings of CUDA
/// graphs.
class ValueGatherer {
 public:
  /// For `count` values of each rank of `group`. All arguments must outlive the object.
  ValueGatherer(ComputeBackend& backend, Communicator& group, std::size_t count);

  /// Returns the values of all ranks, one rank after another. Collective.
  std::vector<std::int64_t> gather(const std::vector<std::int64_t>& own);

 private:
  ComputeBackend& backend_;
  Communicator& group_;
  std::size_t count_;
  MemoryLedger ledger_;                 // not the run's: a few bytes
  std::optional<DeviceBuffer> buffer_;  // empty for one rank
};

/// Returns the values of the rank of the same pipeline that holds the model's last chunk, which knows the
/// results of forward passes. Every rank passes the same number of values. Collective along the pipeline
/// axis.
std::vector<std::int64_t> values_of_last_chunk(ComputeBackend& backend, const ProcessGrid& grid,
                                               const std::vector<std::int64_t>& own);

/// Returns the values of all ranks that read different samples of an evaluation, as the rank with the last
/// chunk of each has them. Collective over all of them and their stages.
std::vector<std::int64_t> values_of_readers(ComputeBackend& backend, const ProcessGrid& grid,
                                            const std::vector<std::int64_t>& own);

/// Returns after how many forward passes the ranks agree again whether to stop: to agree, the stages wait for
/// each other, and the pipeline runs empty.
int passes_per_agreement(const Coordinates& coordinates);

/// Returns the problem of the lowest rank that has one, or "". Collective over `world`: a rank that has found
/// nothing must not go on to a collective that the others never enter.
std::string agree_on_problem(ComputeBackend& backend, Communicator& world, std::string problem);

}  // namespace mylos
