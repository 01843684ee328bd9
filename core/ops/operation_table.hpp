// SPDX-License-Identifier: BSD-3-Clause
// OperationTable: which backends run an operation, and how to call them.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "core/base/error.hpp"
#include "core/ops/operations.hpp"

namespace mylos {

/// A backend starts with a table, usually that of the backend below it, and puts its own kernels on top. If a
/// kernel declines a case, the next kernel below is tried. A fused operation that no kernel takes is run as
/// its separate parts, by the table whose `run` was called.
class OperationTable {
  struct Kernel {
    bool (*call)(void* self, const void* op);
    void* self;
    const char* backend;
  };

 public:
  /// Puts a kernel of `self` on top for each operation of the list. self.run(op) must queue the operation and
  /// return nothing or true; to decline, it must do nothing and return false. `self` and `backend` must
  /// outlive this table and all its copies.
  template <class... Ops, class Self>
  void add(OperationList<Ops...> /*operations*/, Self& self, const char* backend) {
    (kernels_[Operations::index_of<Ops>()].push_back({&call<Ops, Self>, &self, backend}), ...);
  }

  /// Queues an operation. Throws ExitCode::internal if no kernel takes it or one of its parts.
  template <class Op>
  void run(const Op& op) const {
    if (take(op) != nullptr) return;
    if constexpr (Fused<Op>) {
      op.compose([&](const auto& part) { run(part); });
    } else {
      fail(ExitCode::internal, "no backend runs {}", Op::name);
    }
  }
  /// Queues an operation if a kernel takes it as a whole. Returns the name of the kernel's backend, or null.
  template <class Op>
  const char* take(const Op& op) const {
    const std::vector<Kernel>& kernels = kernels_[Operations::index_of<Op>()];
    for (std::size_t i = kernels.size(); i-- > 0;) {
      if (kernels[i].call(kernels[i].self, &op)) return kernels[i].backend;
    }
    return nullptr;
  }
  /// Returns whether any backend has a kernel for the operation.
  template <class Op>
  bool has() const {
    return !kernels_[Operations::index_of<Op>()].empty();
  }

 private:
  template <class Op, class Self>
  static bool call(void* self, const void* op) {
    auto& kernels = *static_cast<Self*>(self);
    const Op& operation = *static_cast<const Op*>(op);
    if constexpr (std::is_void_v<decltype(kernels.run(operation))>) {
      kernels.run(operation);
      return true;
    } else {
      return kernels.run(operation);
    }
  }

  std::array<std::vector<Kernel>, Operations::count> kernels_;  // the topmost last
};

}  // namespace mylos
