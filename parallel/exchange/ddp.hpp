// SPDX-License-Identifier: BSD-3-Clause
// Ddp: every data-parallel rank holds all weights, gradients and optimizer states; gradients are summed in
// one of four ways, which docs/results.md compares (buckets and overlap: Li et al., "PyTorch Distributed",
// VLDB 2020).
#pragma once

#include <cstdint>
#include <vector>

#include "core/communication/communicator.hpp"
#include "core/memory/device_buffer.hpp"
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

enum class DdpMode : std::uint8_t {
  per_parameter,  ///< one all_reduce per parameter, after the last backward pass
  flat,           ///< one all_reduce, after the last backward pass
  overlapped,     ///< one all_reduce per parameter, as soon as its gradient is complete
  bucketed,       ///< one all_reduce per bucket, as soon as `bucket_bytes` are complete; the rest at the end
};

struct DdpConfig {
  DdpMode mode = DdpMode::bucketed;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
};

/// The places of the units, and the reductions of a step.
struct DdpLayout {
  /// Elements [begin, end) of the buffer, reduced once the first `after` elements are complete or, if `after`
  /// is `at_the_end`, after the last backward pass.
  struct Reduction {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t after = 0;
  };
  static constexpr std::int64_t at_the_end = -1;

  DdpLayout(const DdpConfig& config, const ExchangeScope& scope);

  bool has_gradients = false;
  std::int64_t size = 0;              // elements of all units
  std::vector<std::int64_t> offsets;  // by unit; units lie in the order in which gradients are completed
  std::vector<Reduction> reductions;  // in the order in which they start
};

/// All gradients lie in one buffer, in the order in which they are completed. Only the sum over a step's
/// micro-batches is reduced.
class Ddp final : public GradientExchange {
 public:
  /// `replicas` are the ranks that hold the terms of the same gradients, this rank included. Collective.
  Ddp(const DdpConfig& config, const ExchangeScope& scope, ComputeBackend& backend, MemoryLedger& ledger,
      Communicator& replicas);

  UnitView acquire(const UnitAccess& access) override;
  void release(int unit) override;
  void gradient_ready(const GradientRange& range) override;
  bool starts_reduction(const GradientRange& range) const override;
  void reduce() override;
  std::vector<UnitPart> owned() const override;
  std::vector<UnitPart> stored() const override;
  AxisSet sharded_axes() const override { return {}; }
  TensorRef weights(const UnitPart& part) const override;
  TensorRef gradient(const UnitPart& part) const override;
  void publish(int unit) override;

 private:
  std::int64_t offset(int unit) const { return layout_.offsets[static_cast<std::size_t>(unit)]; }
  std::int64_t unit_size(int unit) const { return table().unit(unit).size; }
  TensorRef flat(const DeviceBuffer& buffer, DType type) const;
  /// Starts the next reduction.
  void start();

  DType compute_type_, gradient_type_;
  Communicator& replicas_;
  DdpLayout layout_;
  DeviceBuffer weights_;
  DeviceBuffer gradients_;               // empty without gradients
  std::vector<std::uint64_t> versions_;  // of the weights, by unit
  std::size_t num_started_ = 0;          // reductions of this step
  std::vector<Request> requests_;
};

}  // namespace mylos
