// SPDX-License-Identifier: BSD-3-Clause
// AdamW: the fp32 state of the parts of units that this rank owns, and the step on them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/memory/device_buffer.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

struct AdamWConfig {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.1F;  ///< on every tensor of two or more dimensions
  bool keeps_master = true;   ///< an fp32 one, if the compute type is narrower
  std::uint64_t seed = 0;     ///< of the stochastic rounding of weights without a master
};

/// Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. First and second moment in fp32, and
/// an fp32 master if the compute type is narrower; or none, then the weights are rounded stochastically.
class AdamW {
 public:
  AdamW(ComputeBackend& backend, MemoryLedger& ledger, const ParameterTable& table, const AdamWConfig& config,
        DType compute_type, std::vector<UnitPart> parts);

  const std::vector<UnitPart>& parts() const { return parts_; }

  /// Updates part `index` from its gradient and writes its weights in the compute type. Nothing changes if
  /// scalars->skip is set.
  void step(std::size_t index, TensorRef weights, TensorRef gradient, const StepScalars* scalars);

  /// The truth of part `index`: the fp32 master, or `weights` themselves if there is none.
  TensorRef master(std::size_t index, TensorRef weights) const;
  TensorRef first_moment(std::size_t index) const { return slice(first_moment_, index); }
  TensorRef second_moment(std::size_t index) const { return slice(second_moment_, index); }

 private:
  /// A segment per parameter, with the padding behind it.
  std::vector<Segment> segments_of(const ParameterTable& table, const UnitPart& part) const;
  TensorRef slice(const DeviceBuffer& buffer, std::size_t index) const;

  ComputeBackend& backend_;
  AdamWConfig config_;
  std::vector<UnitPart> parts_;
  std::vector<std::int64_t> offsets_;  // of each part in the state buffers
  DeviceBuffer master_;                // may be empty
  DeviceBuffer first_moment_;
  DeviceBuffer second_moment_;
  DeviceBuffer segments_;
  std::vector<const Segment*> part_segments_;  // device memory
  std::vector<int> num_segments_;
};

}  // namespace mylos
