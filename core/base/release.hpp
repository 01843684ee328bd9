// SPDX-License-Identifier: BSD-3-Clause
// Release: a deleter for what a C library makes.
#pragma once

namespace mylos {

/// Calls the library's function `release`; for std::unique_ptr.
template <auto release>
struct Release {
  template <class T>
  void operator()(T* owned) const {
    release(owned);  // NOLINT(cppcoreguidelines-no-malloc): std::free is one of them
  }
};

}  // namespace mylos
