// SPDX-License-Identifier: BSD-3-Clause
// XXH3-128 digests of files and memory (Collet, https://xxhash.com).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mylos {

/// The 128 bits that XXH3 returns, the same on every processor.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  /// 32 hexadecimal digits, most significant first.
  std::string text() const;
  bool operator==(const Digest&) const = default;
};

/// Digests bytes that arrive in pieces.
class Digester {
 public:
  Digester();

  void add(const void* data, std::size_t bytes);
  Digest digest() const;

 private:
  struct State;

  std::unique_ptr<State, void (*)(State*)> state_;
};

Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::string_view text);

}  // namespace mylos
