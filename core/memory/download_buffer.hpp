// SPDX-License-Identifier: BSD-3-Clause
// DownloadBuffer: host memory that the device copies to while the host continues.
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

  /// Queues a copy of `bytes` from `device` to offset `begin` of the memory.
  void download(const void* device, std::size_t begin, std::size_t bytes) {
    backend_.copy_to_host(device, static_cast<std::byte*>(memory_) + begin, bytes);
    written_.record();
  }
  /// The memory. Waits until the device has completed all downloads, but not for work queued after them.
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
