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

/// A backend begins with the table of the one below it and puts its own kernels on top. A kernel may decline
/// a case; then the one below it is asked. A fused operation that no kernel takes is made of its parts, which
/// the table that was asked first runs.
class OperationTable {
  struct Kernel {
    bool (*call)(void* self, const void* op);
    void* self;
    const char* backend;
  };

 public:
  /// Puts on top what `self` has for each operation of the list: run(op) queues the operation and
  /// returns nothing or true, or declines, has done nothing and returns false. `self` and `backend` outlive
  /// all tables that are made from this one.
  template <class... Ops, class Self>
  void add(OperationList<Ops...> /*operations*/, Self& self, const char* backend) {
    (kernels_[Operations::index_of<Ops>()].push_back({&call<Ops, Self>, &self, backend}), ...);
  }

  /// Queues an operation.
  template <class Op>
  void run(const Op& op) const {
    if (take(op) != nullptr) return;
    if constexpr (Fused<Op>) {
      op.compose([&](const auto& part) { run(part); });
    } else {
      fail(ExitCode::internal, "no backend runs {}", Op::name);
    }
  }
  /// Queues it if a kernel takes it as a whole: the name of that backend, else null.
  template <class Op>
  const char* take(const Op& op) const {
    const std::vector<Kernel>& kernels = kernels_[Operations::index_of<Op>()];
    for (std::size_t i = kernels.size(); i-- > 0;) {
      if (kernels[i].call(kernels[i].self, &op)) return kernels[i].backend;
    }
    return nullptr;
  }
  /// Whether a backend has a kernel for it.
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
