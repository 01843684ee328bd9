// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/replica_check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <vector>

#include <fmt/ranges.h>
#include <xxhash.h>

#include "core/memory/device_buffer.hpp"

namespace mylos {

namespace {

std::vector<std::byte> on_host(ComputeBackend& backend, const TensorRef& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  backend.copy_to_host({}, tensor.data, bytes.data(), bytes.size());
  backend.synchronize({});
  return bytes;
}

/// Whether a part's weights are its fp32 master, rounded.
bool agrees_with_master(const std::vector<std::byte>& weights, const std::vector<std::byte>& master,
                        DType dtype) {
  const auto* exact = reinterpret_cast<const float*>(master.data());
  return dispatch_float(dtype, [&](auto element) {
    using T = decltype(element);
    const auto* rounded = reinterpret_cast<const T*>(weights.data());
    using Bits = std::array<std::byte, sizeof(T)>;
    return std::equal(rounded, rounded + weights.size() / sizeof(T), exact,
                      [](T w, float m) { return std::bit_cast<Bits>(w) == std::bit_cast<Bits>(T(m)); });
  });
}

std::vector<int> suspects(const std::vector<std::int64_t>& hashes, const std::vector<std::int64_t>& intact) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < intact.size(); ++r) {
    if (intact[r] == 0) ranks.push_back(static_cast<int>(r));
  }
  if (!ranks.empty()) return ranks;
  std::map<std::int64_t, int> votes;
  for (const std::int64_t hash : hashes) ++votes[hash];
  const int most = std::ranges::max_element(votes, {}, [](const auto& v) { return v.second; })->second;
  const bool majority = 2 * most > static_cast<int>(hashes.size());
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    if (!majority || votes[hashes[r]] < most) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

}  // namespace

std::string compare_replicas(ComputeBackend& backend, const GradientExchange& exchange,
                             const AdamW& optimizer, Communicator& replicas) {
  const auto ranks = static_cast<std::size_t>(replicas.size());
  if (ranks == 1) return "";
  const auto& parts = optimizer.parts();
  // Per part: hash, and whether it agrees with its master where it has one.
  std::vector<std::int64_t> own;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorRef weights = exchange.weights(parts[i]);
    const std::vector<std::byte> bytes = on_host(backend, weights);
    own.push_back(static_cast<std::int64_t>(XXH3_64bits(bytes.data(), bytes.size())));
    const TensorRef master = optimizer.master(i, weights);
    const bool is_intact =
        master.data == weights.data || agrees_with_master(bytes, on_host(backend, master), weights.dtype);
    own.push_back(is_intact ? 1 : 0);
  }
  std::vector<std::int64_t> all(own.size() * ranks);
  MemoryLedger ledger;  // a few bytes that live for one call
  const std::size_t own_bytes = own.size() * sizeof(std::int64_t);
  const DeviceBuffer buffer(backend, ledger, MemoryCategory::communication, own_bytes * (ranks + 1),
                            "mylos::replica_check");
  auto* device = static_cast<std::int64_t*>(buffer.data());
  const auto count = static_cast<std::int64_t>(own.size());
  backend.copy_to_device({}, own.data(), device, own_bytes);
  replicas
      .all_gather({}, {device, DType::int64, {count}},
                  {device + count, DType::int64, {count * static_cast<std::int64_t>(ranks)}})
      .wait({});
  backend.copy_to_host({}, device + count, all.data(), own_bytes * ranks);
  backend.synchronize({});

  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::vector<std::int64_t> hashes;
    std::vector<std::int64_t> intact;
    for (std::size_t r = 0; r < ranks; ++r) {
      hashes.push_back(all[r * own.size() + 2 * i]);
      intact.push_back(all[r * own.size() + 2 * i + 1]);
    }
    const bool differ = std::ranges::adjacent_find(hashes, std::ranges::not_equal_to{}) != hashes.end();
    if (!differ) continue;
    return fmt::format("the weights of unit {} differ between replicas; corrupted on rank {}", parts[i].unit,
                       fmt::join(suspects(hashes, intact), " or "));
  }
  return "";
}

}  // namespace mylos
