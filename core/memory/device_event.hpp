// SPDX-License-Identifier: BSD-3-Clause
// DeviceEvent: owns an event of a backend.
#pragma once

#include <utility>

#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Move-only.
class DeviceEvent {
 public:
  explicit DeviceEvent(ComputeBackend& backend) : backend_(&backend), event_(backend.create_event()) {}
  ~DeviceEvent() {
    if (event_.handle != nullptr) backend_->destroy_event(event_);
  }
  DeviceEvent(DeviceEvent&& other) noexcept
      : backend_(other.backend_), event_(std::exchange(other.event_, {})) {}
  DeviceEvent& operator=(DeviceEvent&& other) = delete;

  void record() { backend_->record(event_); }
  void host_wait() const { backend_->host_wait(event_); }
  /// Device time since `begin`; the device must have reached both events.
  double seconds_since(const DeviceEvent& begin) const {
    return backend_->seconds_between(begin.event_, event_);
  }

 private:
  ComputeBackend* backend_;
  Event event_;
};

}  // namespace mylos
