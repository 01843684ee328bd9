// SPDX-License-Identifier: BSD-3-Clause
// DeviceEvent: an event and its backend.
#pragma once

#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Move-only.
class DeviceEvent {
 public:
  explicit DeviceEvent(ComputeBackend& backend) : backend_(&backend), event_(backend.create_event()) {}
  DeviceEvent(DeviceEvent&&) = default;
  DeviceEvent& operator=(DeviceEvent&&) = delete;

  void record() { backend_->record(event_); }
  void host_wait() const { backend_->host_wait(event_); }
  /// Returns the device time since `begin`; the device must have reached both events.
  double seconds_since(const DeviceEvent& begin) const {
    return backend_->seconds_between(begin.event_, event_);
  }

 private:
  ComputeBackend* backend_;
  Event event_;
};

}  // namespace mylos
