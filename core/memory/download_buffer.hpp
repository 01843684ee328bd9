// SPDX-License-Identifier: BSD-3-Clause
// DownloadBuffer: host memory that the device copies to while the host goes on.
#pragma once

#include <cstddef>

#include "core/memory/device_event.hpp"

namespace mylos {

class DownloadBuffer {
 public:
  DownloadBuffer(ComputeBackend& backend, std::size_t bytes)
      : backend_(backend), written_(backend), memory_(backend.allocate_host(bytes)) {}
  ~DownloadBuffer() {
    written_.host_wait();
    backend_.deallocate_host(memory_);
  }
  DownloadBuffer(const DownloadBuffer&) = delete;
  DownloadBuffer& operator=(const DownloadBuffer&) = delete;

  /// Copies `bytes` of `device` to `begin` in the memory; queued as operations are.
  void download(const void* device, std::size_t begin, std::size_t bytes) {
    backend_.copy_to_host(device, static_cast<std::byte*>(memory_) + begin, bytes);
    written_.record();
  }
  /// The memory; waits until the device has written all that was asked for, and for nothing behind it.
  const void* read() const {
    written_.host_wait();
    return memory_;
  }

 private:
  ComputeBackend& backend_;
  DeviceEvent written_;
  void* memory_;
};

}  // namespace mylos
