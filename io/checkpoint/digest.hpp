// SPDX-License-Identifier: BSD-3-Clause
// XXH3-128 digests of file contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace mylos {

/// 128 bits, as XXH3 returns them.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  /// 32 hexadecimal digits, most significant first.
  std::string text() const;
  bool operator==(const Digest&) const = default;
};

/// The digest of bytes that come in pieces.
class Digester {
 public:
  Digester();
  void add(const void* data, std::size_t bytes);
  Digest digest() const;

 private:
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
};

Digest digest_of(std::string_view text);

}  // namespace mylos
