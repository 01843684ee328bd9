// SPDX-License-Identifier: BSD-3-Clause
// Where kernels run and how they see tensors: the queue, kernel labels and unmanaged views of TensorRefs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/ops/compute_backend.hpp"

namespace mylos::compute_kokkos {

using Execution = Kokkos::DefaultExecutionSpace;
using Memory = Execution::memory_space;
using Range = Kokkos::RangePolicy<Execution, Kokkos::IndexType<std::int64_t>>;
using TeamPolicy = Kokkos::TeamPolicy<Execution, Kokkos::IndexType<std::int64_t>>;
using Member = TeamPolicy::member_type;
using Scratch =
    Kokkos::View<float*, Execution::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// A string literal as a template argument.
template <std::size_t n>
struct Literal {
  char text[n];
  // NOLINTNEXTLINE(google-explicit-constructor): made from a literal
  consteval Literal(const char (&characters)[n]) { std::copy_n(characters, n, text); }
};

/// A label as the std::string that Kokkos takes. It is made once, at first use, because a training step must
/// not allocate.
template <Literal literal>
const std::string& operator""_label() {
  static const std::string label(literal.text);
  return label;
}

/// Whether kernels run on the host. A team is then one thread.
inline constexpr bool on_host = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;
inline constexpr int row_team_size = on_host ? 1 : 128;

/// The execution space instance that does all work on the device.
inline const Execution& queue() {
  static const Execution standard;  // making one allocates, copying it does not
  return standard;
}

template <class T>
using Vector = Kokkos::View<T*, Kokkos::LayoutRight, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T>
using Matrix = Kokkos::View<T**, Kokkos::LayoutRight, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// A contiguous tensor of any rank as (n).
template <class T>
Vector<T> vector(const TensorRef& tensor) {
  require(tensor.contiguous(), "a contiguous tensor");
  return Vector<T>(tensor.as<std::remove_const_t<T>>(), static_cast<std::size_t>(tensor.size()));
}

/// A contiguous tensor with its leading dimensions folded into rows, (N, C).
template <class T>
Matrix<T> matrix(const TensorRef& tensor) {
  require(tensor.contiguous() && tensor.rank >= 1, "a contiguous tensor with rows");
  const std::int64_t columns = tensor.shape[tensor.rank - 1];
  const std::int64_t rows = columns > 0 ? tensor.size() / columns : 0;
  return Matrix<T>(tensor.as<std::remove_const_t<T>>(), static_cast<std::size_t>(rows),
                   static_cast<std::size_t>(columns));
}

inline std::int64_t rows_of(const TensorRef& tensor) {
  const std::int64_t columns = tensor.shape[tensor.rank - 1];
  return columns > 0 ? tensor.size() / columns : 0;
}

}  // namespace mylos::compute_kokkos
