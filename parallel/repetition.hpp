// SPDX-License-Identifier: BSD-3-Clause
// Repetition: how a short list stands for a longer one.
#pragma once

#include <cstddef>

namespace mylos {

/// Elements [begin, end) of the short list occur `times` times in succession in the longer list.
struct Repetition {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t times = 1;

  /// The index in the short list of element `number` of the longer list.
  std::size_t place(std::size_t number) const {
    const std::size_t length = end - begin;
    if (number < begin) return number;
    if (number < begin + times * length) return begin + (number - begin) % length;
    return number - (times - 1) * length;
  }
};

}  // namespace mylos
