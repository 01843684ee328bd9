// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/model_state.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "core/base/digest.hpp"
#include "core/base/rng.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

namespace {

TensorInfo info_of(const Parameter& parameter, const std::string& group = "") {
  return {.name = group + parameter.name, .shape = parameter.shape};
}

/// Returns the weights or a state of elements [begin, begin + count) of an owned part: in fp32, except
/// weights without a master.
using StateOf = std::function<TensorRef(std::size_t owned_part, std::int64_t begin, std::int64_t count)>;

struct StateGroup {
  const char* file;
  std::string prefix;
  StateOf state;
  std::set<std::string> parameters{};  ///< those that have it; empty: all
};

StateOf masters_of(const RankState& state) {
  return [&state](std::size_t part, std::int64_t begin, std::int64_t count) {
    return state.master(part).flat(begin, count);
  };
}

std::vector<StateGroup> state_groups(const RankState& state, const KeptVersions& versions) {
  std::vector<StateGroup> groups;
  groups.push_back({"weights.h5", "", masters_of(state)});
  const ParameterTable whole = parameters_of(state.config().model);
  for (std::size_t s = 0; s < state.optimizer().states.size(); ++s) {
    StateGroup group{"optimizer.h5", fmt::format("{}/", state.optimizer().states[s]),
                     [&state, s](std::size_t i, std::int64_t begin, std::int64_t count) {
                       return state.state(s, i, begin, count);
                     }};
    for (const Parameter& parameter : whole.parameters()) {
      if (state.optimizer().has_state(parameter.is_matrix, s)) group.parameters.insert(parameter.name);
    }
    if (!group.parameters.empty()) groups.push_back(std::move(group));
  }
  // Later stages need fewer versions.
  const std::vector<VersionRule> rules = state.config().rules_of_units();
  int most = 1;
  for (const VersionRule& rule : rules) most = std::max(most, rule.versions());
  for (std::int64_t version = std::max(versions.oldest, versions.newest - most + 1);
       version < versions.newest; ++version) {
    StateGroup group{"versions.h5", fmt::format("version_{}/", version),
                     [&state, version](std::size_t i, std::int64_t begin, std::int64_t count) {
                       return state.weights(state.owned()[i], version).flat(begin, count);
                     }};
    for (const Parameter& parameter : whole.parameters()) {
      const VersionRule& rule = rules[static_cast<std::size_t>(parameter.unit)];
      if (version > versions.newest - rule.versions()) group.parameters.insert(parameter.name);
    }
    if (!group.parameters.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

/// Returns the state of elements of a stored part: a section of the state of the owned part that contains it.
TensorRef stored_state(const StateOf& state, const std::vector<UnitPart>& owned, const UnitPart& stored,
                       std::int64_t begin, std::int64_t count) {
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const UnitPart& part = owned[i];
    const bool contains = part.unit == stored.unit && part.begin <= stored.begin &&
                          stored.begin + stored.count <= part.begin + part.count;
    if (contains) return state(i, stored.begin - part.begin + begin, count);
  }
  fail(ExitCode::internal, "a stored part of unit {} is not owned", stored.unit);
}

bool is_fp32_on_host(const ComputeBackend& backend, const TensorRef& tensor) {
  return backend.host_accessible() && tensor.dtype == DType::fp32;
}

/// Returns host memory for a tensor's values: the tensor's own if it is fp32 on the host, otherwise
/// `staging`.
float* host_place(const ComputeBackend& backend, const TensorRef& tensor, std::vector<float>& staging) {
  if (is_fp32_on_host(backend, tensor)) return tensor.as<float>();
  staging.resize(static_cast<std::size_t>(tensor.size()));
  return staging.data();
}

/// Returns the boxes of a piece in the checkpoint. Its values lie at `host` or, if that is null, come from
/// `source`.
std::vector<TensorPart> tensor_parts(const Piece& piece, float* host, const ElementSource& source = {}) {
  std::vector<TensorPart> parts;
  for (PlacedBox& box : piece.boxes()) {
    const std::int64_t first = box.offset - piece.offset;
    parts.push_back({.box = std::move(box.box),
                     .data = host == nullptr ? nullptr : host + first,
                     .stride = std::move(box.stride),
                     .source = source,
                     .first = first});
  }
  return parts;
}

/// Returns the pieces of `parts` by parameter, each with the index of its part.
std::map<const Parameter*, std::vector<std::pair<std::size_t, Piece>>> by_parameter(
    const ParameterTable& table, const std::vector<UnitPart>& parts) {
  std::map<const Parameter*, std::vector<std::pair<std::size_t, Piece>>> pieces;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const Piece& piece : pieces_of(table, parts[i])) pieces[&piece.parameter].emplace_back(i, piece);
  }
  return pieces;
}

/// Copies the values to `host`, which holds them after the next `synchronize`.
void read_values(ComputeBackend& backend, const TensorRef& tensor, float* host) {
  if (tensor.dtype == DType::fp32) return backend.copy_to_host(tensor.data, host, tensor.bytes());
  constexpr std::int64_t most = std::int64_t{1} << 20U;
  dispatch_float(tensor.dtype, [&]<class T>(T) {
    std::vector<T> copy;
    for (std::int64_t first = 0; first < tensor.size(); first += most) {
      const TensorRef some = tensor.flat(first, std::min(most, tensor.size() - first));
      const T* narrow = some.as<T>();
      // Host memory is read without the backend: on the thread that writes checkpoints, the backend's kernels
      // would start more threads.
      if (!backend.host_accessible()) {
        copy.resize(static_cast<std::size_t>(some.size()));
        backend.copy_to_host(some.data, copy.data(), some.bytes());
        backend.synchronize();
        narrow = copy.data();
      }
      std::transform(narrow, narrow + some.size(), host + first, [](T x) { return static_cast<float>(x); });
    }
  });
}

/// Writes `values` to the tensor, rounded to its type.
void write_values(ComputeBackend& backend, std::span<const float> values, const TensorRef& tensor) {
  dispatch_float(tensor.dtype, [&]<class T>(T) {
    std::vector<T> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), [](float x) { return T(x); });
    backend.copy_to_device(rounded.data(), tensor.data, tensor.bytes());
    backend.synchronize();
  });
}

/// Returns the first address at or after `memory` that is aligned for a piece of a snapshot (run_plan.hpp).
float* place_in_snapshot(void* memory, const Piece& piece) {
  constexpr std::int64_t page_elements = snapshot_page / sizeof(float);
  auto* first = static_cast<float*>(memory);
  if (piece.count < pages_of_aligned_piece * page_elements) return first;
  const auto address = reinterpret_cast<std::uintptr_t>(memory) / sizeof(float);
  const std::int64_t lead = (piece.global_index()(0) - static_cast<std::int64_t>(address)) % page_elements;
  return first + (lead + page_elements) % page_elements;
}

/// Reads pieces of a tensor into their parts, at most 32 MiB at a time if the parts are not fp32 on the host.
void read_pieces(ComputeBackend& backend, const WeightReader& read, const TensorInfo& info,
                 const std::vector<std::pair<std::size_t, Piece>>& pieces, const StateOf& state) {
  constexpr std::int64_t most_staged = std::int64_t{8} << 20U;
  std::vector<float> staging;
  for (const auto& [part, piece] : pieces) {
    const bool is_in_place = is_fp32_on_host(backend, state(part, piece.offset, piece.count));
    const std::int64_t most = is_in_place ? piece.count : most_staged;
    for (std::int64_t first = 0; first < piece.count; first += most) {
      Piece some = piece;
      some.begin += first;
      some.offset += first;
      some.count = std::min(most, piece.count - first);
      const TensorRef place = state(part, some.offset, some.count);
      float* host = host_place(backend, place, staging);
      read(info, tensor_parts(some, host));
      if (!is_fp32_on_host(backend, place)) write_values(backend, staging, place);
    }
  }
}

/// Rounds the most precise weights to the compute type and brings them to the ranks that use them.
void publish_masters(ComputeBackend& backend, RankState& state) {
  for (std::size_t i = 0; i < state.owned().size(); ++i) {
    const TensorRef weights = state.weights(state.owned()[i]);
    const TensorRef master = state.master(i);
    if (master.data != weights.data) backend.run(Cast{.x = master, .y = weights});
  }
  state.publish();
}

}  // namespace

CheckpointContent checkpoint_content(ComputeBackend& backend, const RankState& state, KeptVersions versions,
                                     void* snapshot) {
  CheckpointContent content;
  const std::vector<UnitPart>& stored = state.stored();
  std::map<std::string, std::vector<std::pair<std::size_t, Piece>>> pieces;
  for (auto& [parameter, own] : by_parameter(state.table(), stored)) pieces[parameter->name] = std::move(own);
  // The tensors are those of the whole model on all ranks, although a stage has parts of some of them only.
  const ParameterTable whole = parameters_of(state.config().model);
  for (const StateGroup& group : state_groups(state, versions)) {
    for (const Parameter& parameter : whole.parameters()) {
      if (!group.parameters.empty() && !group.parameters.contains(parameter.name)) continue;
      CheckpointTensor tensor{.file = group.file, .info = info_of(parameter, group.prefix), .parts = {}};
      for (const auto& [part, held] : pieces[parameter.name]) {
        const Piece piece = held.share();
        const TensorRef values =
            stored_state(group.state, state.owned(), stored[part], piece.offset, piece.count);
        float* host = is_fp32_on_host(backend, values) ? values.as<float>() : nullptr;
        ElementSource source;
        if (snapshot != nullptr) {
          host = place_in_snapshot(snapshot, piece);
          snapshot = host + piece.count;
          read_values(backend, values, host);
        } else if (host == nullptr) {
          source = [&backend, values](std::int64_t first, std::span<float> elements) {
            read_values(backend, values.flat(first, std::ssize(elements)), elements.data());
            backend.synchronize();
          };
        }
        std::ranges::move(tensor_parts(piece, host, source), std::back_inserter(tensor.parts));
      }
      content.tensors.push_back(std::move(tensor));
    }
  }
  backend.synchronize();
  return content;
}

void restore(ComputeBackend& backend, const CheckpointReader& reader, RankState& state,
             KeptVersions versions) {
  auto pieces = by_parameter(state.table(), state.owned());
  for (const StateGroup& group : state_groups(state, versions)) {
    const auto read = [&](const TensorInfo& tensor, const std::vector<TensorPart>& parts) {
      reader.read({.file = group.file, .info = tensor, .parts = parts});
    };
    for (const Parameter& parameter : state.table().parameters()) {
      if (!group.parameters.empty() && !group.parameters.contains(parameter.name)) continue;
      read_pieces(backend, read, info_of(parameter, group.prefix), pieces[&parameter], group.state);
    }
  }
  publish_masters(backend, state);
}

void restore_initial(ComputeBackend& backend, const WeightReader& read, RankState& state) {
  auto pieces = by_parameter(state.table(), state.owned());
  for (const Parameter& parameter : state.table().parameters())
    read_pieces(backend, read, info_of(parameter), pieces[&parameter], masters_of(state));
  publish_masters(backend, state);
}

std::uint64_t digest_of_weights(ComputeBackend& backend, const RankState& state) {
  constexpr std::int64_t most = std::int64_t{1} << 20U;
  const StateOf master = masters_of(state);
  std::uint64_t sum = 0;
  std::vector<float> values;
  for (const UnitPart& stored : state.stored()) {
    for (const Piece& held : pieces_of(state.table(), stored)) {
      const Piece piece = held.share();
      const std::uint64_t name = digest_of(piece.parameter.name).low;
      const GlobalIndex index = piece.global_index();
      for (std::int64_t first = 0; first < piece.count; first += most) {
        values.resize(static_cast<std::size_t>(std::min(most, piece.count - first)));
        read_values(backend,
                    stored_state(master, state.owned(), stored, piece.offset + first, std::ssize(values)),
                    values.data());
        backend.synchronize();
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto place = static_cast<std::uint64_t>(index(first + static_cast<std::int64_t>(i)));
          sum += mix64(mix64(name + place) ^ std::bit_cast<std::uint32_t>(values[i]));
        }
      }
    }
  }
  return sum;
}

void restore_weights(ComputeBackend& backend, const WeightReader& read, RankState& state) {
  const std::vector<UnitPart>& owned = state.owned();
  auto pieces = by_parameter(state.table(), owned);
  for (const Parameter& parameter : state.table().parameters()) {
    read_pieces(backend, read, info_of(parameter), pieces[&parameter],
                [&](std::size_t part, std::int64_t begin, std::int64_t count) {
                  return state.weights(owned[part]).flat(begin, count);
                });
  }
  state.publish();
}

}  // namespace mylos
