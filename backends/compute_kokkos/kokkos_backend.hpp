// SPDX-License-Identifier: BSD-3-Clause
// KokkosBackend: the root compute backend, with the memory and the queue of Kokkos' default execution space.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backends/compute_kokkos/operations.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos::compute_kokkos {

/// The queue is the default execution space instance. On the host, a kernel is finished when the call
/// returns, so there is nothing to wait for at an event. Limitation: if a kernel with another shape makes
/// Kokkos replace the scratch memory of its teams, recorded graphs are not invalidated.
class KokkosBackend final : public ComputeBackend {
 public:
  /// `kokkos` finalises Kokkos when it is destroyed.
  explicit KokkosBackend(std::shared_ptr<void> kokkos) : kokkos_(std::move(kokkos)) {
    add_operations(KokkosOperations::List(), kernels_, "kokkos");
  }

  std::string description() const override;

  Allocation allocate(std::size_t bytes, const char* label) override;
  Allocation allocate_host(std::size_t bytes) override;
  void copy_to_device(const void* host, void* device, std::size_t bytes) override;
  void copy_to_host(const void* device, void* host, std::size_t bytes) override;
  void copy(const void* from, void* to, std::size_t bytes) override;
  bool host_accessible() const override { return on_host; }

  void synchronize() override;
  Event create_event() override;
  void record(const Event& event) override;
  void host_wait(const Event& event) override;
  double seconds_between(const Event& begin, const Event& end) override;
  void begin_range(const char* name) override;
  void end_range() override;
#if defined(KOKKOS_ENABLE_CUDA)
  std::size_t device_bytes_in_use() const override;
  void* native_stream() override;
  bool can_capture() const override;
  Graph capture(const std::function<void()>& work) override;
  bool launch(const Graph& graph) override;
#endif

 private:
  std::shared_ptr<void> kokkos_;
  KokkosOperations kernels_;
  std::uint64_t num_deallocations_ = 0;
};

}  // namespace mylos::compute_kokkos
