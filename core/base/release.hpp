// SPDX-License-Identifier: BSD-3-Clause
// Release: a deleter for objects that a C library allocates.
#pragma once

namespace mylos {

/// A deleter for std::unique_ptr that calls the function `release`.
template <auto release>
struct Release {
  template <class T>
  void operator()(T* owned) const {
    release(owned);  // NOLINT(cppcoreguidelines-no-malloc): `release` may be std::free
  }
};

}  // namespace mylos
