// SPDX-License-Identifier: BSD-3-Clause
#include "core/memory/host_buffers.hpp"

#include <cstring>

namespace mylos {

bool overlap(TensorRef a, TensorRef b) {
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

std::byte* HostBuffers::host(const TensorRef& buffer, bool is_read, bool is_written, bool apart) {
  require(buffer.contiguous(), "communication buffers are contiguous");
  if (device_ == nullptr && !apart) return static_cast<std::byte*>(buffer.data);
  const Staged& staged = stages_.emplace_back(Staged{
      std::make_unique_for_overwrite<std::byte[]>(buffer.bytes()), buffer.data, buffer.bytes(), is_written});
  if (is_read) {
    device_->copy_to_host(staged.buffer, staged.host.get(), staged.bytes);
    device_->synchronize();
  }
  return staged.host.get();
}

void HostBuffers::copy_back() {
  for (const Staged& staged : stages_) {
    if (!staged.copy_back) continue;
    if (device_ != nullptr) {
      device_->copy_to_device(staged.host.get(), staged.buffer, staged.bytes);
      device_->synchronize();
    } else {
      std::memcpy(staged.buffer, staged.host.get(), staged.bytes);
    }
  }
}

}  // namespace mylos
