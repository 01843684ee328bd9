// SPDX-License-Identifier: BSD-3-Clause
// The values that ranks send in tests of communication.
#pragma once

#include <cstdint>
#include <type_traits>

namespace mylos {

/// Whole numbers from 0 to 15: sums of eight ranks are exact in bf16, and uint8 can represent each value.
inline int sample(int rank, std::int64_t i) {
  return static_cast<int>((7 * rank + 3 * i + i / 11) % 16);
}

template <class T>
T element(int value) {
  if constexpr (std::is_class_v<T>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace mylos
