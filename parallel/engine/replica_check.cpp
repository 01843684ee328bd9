// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/replica_check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "core/base/digest.hpp"
#include "core/base/join.hpp"
#include "parallel/gather_values.hpp"

namespace mylos {

namespace {

/// A tensor's bytes: in place if the host can read them there, otherwise a copy.
class HostBytes {
 public:
  HostBytes(ComputeBackend& backend, const TensorRef& tensor) {
    if (backend.host_accessible()) {
      bytes_ = {static_cast<const std::byte*>(tensor.data), tensor.bytes()};
      return;
    }
    copy_.resize(tensor.bytes());
    backend.copy_to_host(tensor.data, copy_.data(), copy_.size());
    backend.synchronize();
    bytes_ = copy_;
  }

  /// The bytes of a piece of the tensor.
  std::span<const std::byte> of(const Piece& piece, DType dtype) const {
    return bytes_.subspan(static_cast<std::size_t>(piece.offset) * size_of(dtype),
                          static_cast<std::size_t>(piece.count) * size_of(dtype));
  }

 private:
  std::vector<std::byte> copy_;
  std::span<const std::byte> bytes_;
};

std::int64_t hash_of(std::span<const std::byte> bytes) {
  return static_cast<std::int64_t>(digest_of(bytes).low);
}

/// Whether the weights equal their fp32 master, rounded.
bool agrees_with_master(std::span<const std::byte> weights, std::span<const std::byte> master, DType dtype) {
  const auto* exact = reinterpret_cast<const float*>(master.data());
  return dispatch_float(dtype, [&]<class T>(T) {
    const auto* rounded = reinterpret_cast<const T*>(weights.data());
    using Bits = std::array<std::byte, sizeof(T)>;
    return std::equal(rounded, rounded + weights.size() / sizeof(T), exact,
                      [](T w, float m) { return std::bit_cast<Bits>(w) == std::bit_cast<Bits>(T(m)); });
  });
}

/// Returns false if the state consists of weights that differ from their rounded master.
bool is_intact(ComputeBackend& backend, const RankState& held, const StateHash& state) {
  const TensorRef weights = held.weights(held.owned()[state.part]);
  const TensorRef master = held.master(state.part);
  if (!state.is_weights || master.data == weights.data) return true;
  const HostBytes rounded(backend, weights);
  const HostBytes exact(backend, master);
  return agrees_with_master(rounded.of(state.piece, weights.dtype), exact.of(state.piece, master.dtype),
                            weights.dtype);
}

/// The numbers of the replicas that are not intact. If all seem intact, the replicas whose hash differs from
/// that of the majority, or all replicas if there is no majority.
std::vector<int> find_suspects(const std::vector<std::int64_t>& hashes,
                               const std::vector<std::int64_t>& intact) {
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

constexpr AxisSet both_ends = {Axis::embedding};

/// Names the first state that differs among the ranks along `axes`, and the suspected ranks; "" if no state
/// differs. Collective over these ranks, which all return the same.
std::string find_difference(ComputeBackend& backend, const RankState& held, const ProcessGrid& grid,
                            AxisSet axes, const std::vector<StateHash>& states) {
  if (grid.coordinates().extent(axes) == 1 || states.empty()) return "";
  Communicator& replicas = grid.group(axes);
  const auto ranks = static_cast<std::size_t>(replicas.size());
  std::vector<std::int64_t> own;
  for (const StateHash& state : states) own.push_back(state.hash);
  const std::vector<std::int64_t> all = gather_values(backend, replicas, own);
  for (std::size_t i = 0; i < states.size(); ++i) {
    std::vector<std::int64_t> hashes(ranks);
    for (std::size_t r = 0; r < ranks; ++r) hashes[r] = all[r * states.size() + i];
    if (std::ranges::adjacent_find(hashes, std::ranges::not_equal_to{}) == hashes.end()) continue;
    const std::int64_t is_own_intact = is_intact(backend, held, states[i]) ? 1 : 0;
    const std::vector<std::int64_t> intact = gather_values(backend, replicas, {is_own_intact});
    const std::vector<std::int64_t> in_world =
        gather_values(backend, replicas, {grid.group(all_axes).rank()});
    std::vector<std::int64_t> ranks_in_world;
    for (const int rank : find_suspects(hashes, intact))
      ranks_in_world.push_back(in_world[static_cast<std::size_t>(rank)]);
    return fmt::format("{} differs between replicas; corrupted on rank {}", states[i].name,
                       join(ranks_in_world, " or "));
  }
  return "";
}

/// Whether ranks have copies of what others own; the same on all ranks.
bool has_copies(const RankState& state, const ProcessGrid& grid) {
  if (grid.coordinates().ends_are_apart() && state.config().model.tied) return true;
  AxisSet axes = same_loss_axes;
  for (int unit = 0; unit < state.table().num_units(); ++unit) axes = axes.with(state.copy_axes(unit));
  return axes.common(grid.coordinates().used_axes()) != AxisSet();
}

}  // namespace

std::vector<StateHash> hash_states(ComputeBackend& backend, const RankState& state, const ProcessGrid& grid) {
  std::vector<StateHash> hashes;
  if (!has_copies(state, grid)) return hashes;
  for (std::size_t i = 0; i < state.owned().size(); ++i) {
    const TensorRef weights = state.weights(state.owned()[i]);
    const TensorRef master = state.master(i);
    std::vector<std::pair<std::string, TensorRef>> held = {{"", weights}};
    if (master.data != weights.data) held.emplace_back("the master of ", master);
    const int versions = state.num_versions(state.owned()[i].unit);
    for (int place = 0; versions > 1 && place < versions; ++place) {
      const TensorRef older = state.weights(state.owned()[i], place);
      if (older.data != weights.data) held.emplace_back("an older version of ", older);
    }
    const std::vector<Piece> pieces = pieces_of(state.table(), state.owned()[i]);
    const auto add = [&](const std::string& prefix, const Piece& piece, bool is_weights, std::int64_t hash) {
      hashes.push_back({.name = prefix + piece.parameter.name,
                        .part = i,
                        .piece = piece,
                        .is_weights = is_weights,
                        .hash = hash});
    };
    for (const auto& [prefix, tensor] : held) {
      const HostBytes bytes(backend, tensor);
      for (const Piece& piece : pieces)
        add(prefix, piece, tensor.data == weights.data, hash_of(bytes.of(piece, tensor.dtype)));
    }
    for (std::size_t s = 0; s < state.optimizer().states.size(); ++s) {
      std::string name = state.optimizer().states[s];
      std::ranges::replace(name, '_', ' ');
      for (const Piece& piece : pieces) {
        const TensorRef values = state.state(s, i, piece.offset, piece.count);
        if (!values) continue;
        Piece whole = piece;
        whole.offset = 0;
        add(fmt::format("the {} of ", name), piece, false,
            hash_of(HostBytes(backend, values).of(whole, values.dtype)));
      }
    }
  }
  return hashes;
}

std::string compare_replicas(ComputeBackend& backend, const RankState& state, const ProcessGrid& grid,
                             const std::vector<StateHash>& hashes) {
  if (!has_copies(state, grid)) return "";
  std::map<AxisSet, std::vector<StateHash>> copies;  // by the axes along which ranks own the same
  std::vector<StateHash> tied;
  for (const StateHash& own : hashes) {
    copies[state.copy_axes(own.piece.parameter.unit)].push_back(own);
    if (own.piece.parameter.is_on_both_ends()) tied.push_back(own);
  }
  // All comparisons take place on every rank, whatever the first one finds.
  std::string problem;
  for (const auto& [axes, states] : copies) {
    const std::string found = find_difference(backend, state, grid, axes, states);
    if (problem.empty()) problem = found;
  }
  for (int i = 0; i < num_axes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!same_loss_axes.contains(axis)) continue;
    std::vector<StateHash> whole;  // of what each rank along the axis holds
    for (const StateHash& own : hashes) {
      if (!own.piece.parameter.is_split(axis)) whole.push_back(own);
    }
    const std::string found = find_difference(backend, state, grid, {axis}, whole);
    if (problem.empty()) problem = found;
  }
  const std::string found = find_difference(backend, state, grid, both_ends, tied);
  if (problem.empty()) problem = found;
  return agree_on_problem(backend, grid.group(all_axes), std::move(problem));
}

}  // namespace mylos
