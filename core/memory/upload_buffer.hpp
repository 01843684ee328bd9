// SPDX-License-Identifier: BSD-3-Clause
// UploadBuffer: host memory that is copied to the device while the host continues.
#pragma once

#include <cstddef>

#include "core/memory/device_event.hpp"

namespace mylos {

class UploadBuffer {
 public:
  UploadBuffer(ComputeBackend& backend, std::size_t bytes)
      : backend_(backend), taken_(backend), memory_(backend.allocate_host(bytes)) {}
  ~UploadBuffer() {
    taken_.host_wait();
    backend_.deallocate_host(memory_);
  }
  UploadBuffer(const UploadBuffer&) = delete;
  UploadBuffer& operator=(const UploadBuffer&) = delete;

  /// The memory, to be filled. Waits until the device has copied its previous content.
  void* fill() {
    taken_.host_wait();
    return memory_;
  }
  /// Queues a copy of `bytes` from offset `begin` of the memory to `device`.
  void upload(std::size_t begin, void* device, std::size_t bytes) {
    backend_.copy_to_device(static_cast<std::byte*>(memory_) + begin, device, bytes);
    taken_.record();
  }

 private:
  ComputeBackend& backend_;
  DeviceEvent taken_;
  void* memory_;
};

}  // namespace mylos
