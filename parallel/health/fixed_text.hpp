// SPDX-License-Identifier: BSD-3-Clause
// FixedText: text in memory that is allocated in advance.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace mylos {

/// Holds the text that is printed when a failed job ends. Adding to it allocates nothing; text beyond the
/// capacity is cut off.
class FixedText {
 public:
  explicit FixedText(std::size_t capacity) : text_(capacity) {}

  void clear() { size_ = 0; }
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    const std::size_t room = text_.size() - size_;
    const auto added = fmt::format_to_n(text_.data() + size_, room, format, std::forward<Args>(args)...);
    size_ += std::min(room, added.size);
  }
  bool empty() const { return size_ == 0; }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::vector<char> text_;
  std::size_t size_ = 0;
};

}  // namespace mylos
