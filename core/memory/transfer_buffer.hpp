// SPDX-License-Identifier: BSD-3-Clause
// TransferBuffer: host memory that is copied to or from the device while the host continues.
#pragma once

#include <cstddef>

#include "core/memory/device_event.hpp"

namespace mylos {

class TransferBuffer {
 public:
  TransferBuffer(ComputeBackend& backend, std::size_t bytes)
      : backend_(backend), copied_(backend), memory_(backend.allocate_host(bytes)) {}
  ~TransferBuffer() { copied_.host_wait(); }
  TransferBuffer(const TransferBuffer&) = delete;
  TransferBuffer& operator=(const TransferBuffer&) = delete;

  /// Returns the memory once the device has completed all copies from and to it. Does not wait for work
  /// queued after them.
  void* data() const {
    copied_.host_wait();
    return memory_.get();
  }
  /// Queues a copy of `bytes` from offset `begin` of the memory to `device`.
  void upload(std::size_t begin, void* device, std::size_t bytes) {
    backend_.copy_to_device(static_cast<std::byte*>(memory_.get()) + begin, device, bytes);
    copied_.record();
  }
  /// Queues a copy of `bytes` from `device` to offset `begin` of the memory.
  void download(const void* device, std::size_t begin, std::size_t bytes) {
    backend_.copy_to_host(device, static_cast<std::byte*>(memory_.get()) + begin, bytes);
    copied_.record();
  }

 private:
  ComputeBackend& backend_;
  DeviceEvent copied_;
  Allocation memory_;
};

}  // namespace mylos
