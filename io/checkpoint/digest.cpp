// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/digest.hpp"

#include <fmt/core.h>
#include <xxhash.h>

namespace mylos {

namespace {

Digest digest_from(XXH128_hash_t hash) {
  return {hash.high64, hash.low64};
}

}  // namespace

std::string Digest::text() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Digester::Digester() : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(state_.get());
}

void Digester::add(const void* data, std::size_t bytes) {
  XXH3_128bits_update(state_.get(), data, bytes);
}

Digest Digester::digest() const {
  return digest_from(XXH3_128bits_digest(state_.get()));
}

Digest digest_of(std::string_view text) {
  return digest_from(XXH3_128bits(text.data(), text.size()));
}

}  // namespace mylos
