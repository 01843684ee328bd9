// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/replica_check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include <xxhash.h>

#include "core/base/joined.hpp"
#include "core/memory/device_buffer.hpp"

namespace mylos {

namespace {

/// A tensor's bytes: where they are if the host can read them there, or a copy.
class HostBytes {
 public:
  HostBytes(ComputeBackend& backend, const TensorRef& tensor) {
    backend.synchronize({});
    if (backend.host_accessible()) {
      bytes_ = {static_cast<const std::byte*>(tensor.data), tensor.bytes()};
      return;
    }
    copy_.resize(tensor.bytes());
    backend.copy_to_host({}, tensor.data, copy_.data(), copy_.size());
    backend.synchronize({});
    bytes_ = copy_;
  }

  /// Those of a piece of the tensor.
  std::span<const std::byte> of(const Piece& piece, DType dtype) const {
    return bytes_.subspan(static_cast<std::size_t>(piece.offset) * size_of(dtype),
                          static_cast<std::size_t>(piece.count) * size_of(dtype));
  }

 private:
  std::vector<std::byte> copy_;
  std::span<const std::byte> bytes_;
};

std::int64_t hash_of(std::span<const std::byte> bytes) {
  return static_cast<std::int64_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

/// Whether a part's weights are its fp32 master, rounded.
bool agrees_with_master(std::span<const std::byte> weights, std::span<const std::byte> master, DType dtype) {
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

std::string compare_replicas(ComputeBackend& backend, const ParameterTable& table,
                             const GradientExchange& exchange, const AdamW& optimizer,
                             const ProcessGrid& grid) {
  Communicator& replicas = grid.group(loss_axes.without(exchange.sharded_axes()));
  const auto ranks = static_cast<std::size_t>(replicas.size());
  if (ranks == 1) return "";
  const auto& parts = optimizer.parts();
  // Of each state of each piece: hash, and whether the weights agree with their master.
  std::vector<std::int64_t> own;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorRef weights = exchange.weights(parts[i]);
    const TensorRef master = optimizer.master(i, weights);
    const bool has_master = master.data != weights.data;
    const std::vector<Piece> pieces = pieces_of(table, parts[i]);
    const HostBytes values(backend, weights);
    {
      std::optional<HostBytes> exact;
      if (has_master) exact.emplace(backend, master);
      for (const Piece& piece : pieces) {
        const auto mine = values.of(piece, weights.dtype);
        own.push_back(hash_of(mine));
        names.push_back(piece.parameter.name);
        if (!exact) {
          own.push_back(1);
          continue;
        }
        const auto truth = exact->of(piece, master.dtype);
        own.push_back(agrees_with_master(mine, truth, weights.dtype) ? 1 : 0);
        own.insert(own.end(), {hash_of(truth), 1});
        names.push_back("the master of " + piece.parameter.name);
      }
    }
    for (const auto& [name, moment] :
         {std::pair("first", optimizer.first_moment(i)), std::pair("second", optimizer.second_moment(i))}) {
      const HostBytes bytes(backend, moment);
      for (const Piece& piece : pieces) {
        own.insert(own.end(), {hash_of(bytes.of(piece, moment.dtype)), 1});
        names.push_back(fmt::format("the {} moment of {}", name, piece.parameter.name));
      }
    }
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

  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<std::int64_t> hashes;
    std::vector<std::int64_t> intact;
    for (std::size_t r = 0; r < ranks; ++r) {
      hashes.push_back(all[r * own.size() + 2 * i]);
      intact.push_back(all[r * own.size() + 2 * i + 1]);
    }
    const bool differ = std::ranges::adjacent_find(hashes, std::ranges::not_equal_to{}) != hashes.end();
    if (!differ) continue;
    return fmt::format("{} differs between replicas; corrupted on rank {}", names[i],
                       joined(suspects(hashes, intact), " or "));
  }
  return "";
}

}  // namespace mylos
