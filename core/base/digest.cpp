// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/digest.hpp"

#include <fmt/core.h>

// Compiles xxHash for this build's instruction set; the functions of a packaged library may use only SSE2.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mylos {

namespace {

Digest digest_from(XXH128_hash_t hash) {
  return {hash.high64, hash.low64};
}

}  // namespace

struct Digester::State {
  XXH3_state_t xxh3;
};

std::string Digest::text() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Digester::Digester() : state_(new State, [](State* state) { delete state; }) {
  XXH3_128bits_reset(&state_->xxh3);
}

void Digester::add(const void* data, std::size_t bytes) {
  XXH3_128bits_update(&state_->xxh3, data, bytes);
}

Digest Digester::digest() const {
  return digest_from(XXH3_128bits_digest(&state_->xxh3));
}

Digest digest_of(std::span<const std::byte> bytes) {
  return digest_from(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text)));
}

}  // namespace mylos
