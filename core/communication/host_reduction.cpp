// SPDX-License-Identifier: BSD-3-Clause
#include "core/communication/host_reduction.hpp"

namespace mylos {

void combine(DType dtype, ReduceOp op, const void* in, void* in_out, std::size_t count) {
  dispatch_reduction(dtype, op, [&]<class T, ReduceOp reduction>() {
    using A = Accumulator<T>;
    const T* __restrict__ from = static_cast<const T*>(in);
    T* __restrict__ to = static_cast<T*>(in_out);
    for (std::size_t i = 0; i < count; ++i)
      to[i] = T(combined<reduction>(static_cast<A>(from[i]), static_cast<A>(to[i])));
  });
}

}  // namespace mylos
