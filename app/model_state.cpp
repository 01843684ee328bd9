// SPDX-License-Identifier: BSD-3-Clause
#include "app/model_state.hpp"

#include <algorithm>
#include <span>

namespace mylos {

namespace {

/// The overlap of a unit's part with a parameter, without padding: elements [begin, end) of the parameter,
/// which lie at `offset` within the part.
struct Overlap {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
  std::int64_t count() const { return end - begin; }
};

Overlap overlap(const Parameter& parameter, const UnitPart& part) {
  if (parameter.unit != part.unit) return {};
  const std::int64_t begin = std::max(parameter.offset, part.begin);
  const std::int64_t end = std::min(parameter.offset + parameter.size(), part.begin + part.count);
  if (begin >= end) return {};
  return {begin - parameter.offset, end - parameter.offset, begin - part.begin};
}

TensorInfo info_of(const Parameter& parameter, const std::string& group = "") {
  return {.name = group + parameter.name, .shape = parameter.shape};
}

/// One of the three states of the owned parts: fp32, but for weights that have no master.
using StateOf = std::function<TensorRef(std::size_t owned_part)>;

struct StateGroup {
  const char* file;
  const char* prefix;
  StateOf state;
};

std::vector<StateGroup> state_groups(const GradientExchange& exchange, const AdamW& optimizer) {
  std::vector<StateGroup> groups;
  groups.push_back({"weights.h5", "", [&](std::size_t i) {
                      return optimizer.master(i, exchange.weights(optimizer.parts()[i]));
                    }});
  groups.push_back(
      {"optimizer.h5", "first_moment/", [&](std::size_t i) { return optimizer.first_moment(i); }});
  groups.push_back(
      {"optimizer.h5", "second_moment/", [&](std::size_t i) { return optimizer.second_moment(i); }});
  return groups;
}

/// The state of a stored part: within the owned part that contains it.
TensorRef stored_state(const StateOf& state, const std::vector<UnitPart>& owned, const UnitPart& stored) {
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const UnitPart& part = owned[i];
    const bool contains = part.unit == stored.unit && part.begin <= stored.begin &&
                          stored.begin + stored.count <= part.begin + part.count;
    if (contains) return state(i).flat(stored.begin - part.begin, stored.count);
  }
  fail(ExitCode::internal, "a stored part of unit {} is not owned", stored.unit);
}

bool is_fp32_on_host(const ComputeBackend& backend, const TensorRef& tensor) {
  return backend.host_accessible() && tensor.dtype == DType::fp32;
}

/// Host memory in which a tensor's values can be put: the tensor itself or `staging`.
float* host_place(const ComputeBackend& backend, const TensorRef& tensor, std::vector<float>& staging) {
  if (is_fp32_on_host(backend, tensor)) return tensor.as<float>();
  staging.resize(static_cast<std::size_t>(tensor.size()));
  return staging.data();
}

/// `host` holds the values after the next `synchronize`.
void read_values(ComputeBackend& backend, const TensorRef& tensor, float* host) {
  if (tensor.dtype == DType::fp32) return backend.copy_to_host({}, tensor.data, host, tensor.bytes());
  dispatch_float(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    std::vector<T> narrow(static_cast<std::size_t>(tensor.size()));
    backend.copy_to_host({}, tensor.data, narrow.data(), tensor.bytes());
    backend.synchronize({});
    std::ranges::transform(narrow, host, [](T x) { return static_cast<float>(x); });
  });
}

/// Rounds `values` to the tensor's type.
void write_values(ComputeBackend& backend, std::span<const float> values, const TensorRef& tensor) {
  dispatch_float(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    std::vector<T> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), [](float x) { return T(x); });
    backend.copy_to_device({}, rounded.data(), tensor.data, tensor.bytes());
    backend.synchronize({});
  });
}

}  // namespace

CheckpointContent checkpoint_content(ComputeBackend& backend, const ParameterTable& table,
                                     const GradientExchange& exchange, const AdamW& optimizer,
                                     std::vector<std::vector<float>>& staging) {
  CheckpointContent content;
  const std::vector<UnitPart> stored = exchange.stored();
  for (const StateGroup& group : state_groups(exchange, optimizer)) {
    for (const Parameter& parameter : table.parameters()) {
      CheckpointContent::Tensor tensor{
          .file = group.file, .info = info_of(parameter, group.prefix), .parts = {}};
      for (const UnitPart& part : stored) {
        const Overlap o = overlap(parameter, part);
        if (o.count() == 0) continue;
        const TensorRef values = stored_state(group.state, optimizer.parts(), part).flat(o.offset, o.count());
        float* host = host_place(backend, values, staging.emplace_back());
        if (!is_fp32_on_host(backend, values)) read_values(backend, values, host);
        tensor.parts.push_back({.begin = o.begin, .count = o.count(), .data = host});
      }
      content.tensors.push_back(std::move(tensor));
    }
  }
  backend.synchronize({});
  return content;
}

void restore(ComputeBackend& backend, const ParameterTable& table, CheckpointReader& reader,
             GradientExchange& exchange, AdamW& optimizer) {
  for (const StateGroup& group : state_groups(exchange, optimizer)) {
    for (const Parameter& parameter : table.parameters()) {
      std::vector<TensorPart> parts;
      std::vector<TensorRef> places;
      std::vector<std::vector<float>> staging;
      for (std::size_t i = 0; i < optimizer.parts().size(); ++i) {
        const Overlap o = overlap(parameter, optimizer.parts()[i]);
        if (o.count() == 0) continue;
        places.push_back(group.state(i).flat(o.offset, o.count()));
        parts.push_back({o.begin, o.count(), host_place(backend, places.back(), staging.emplace_back())});
      }
      reader.read(group.file, info_of(parameter, group.prefix), parts);
      for (std::size_t p = 0; p < parts.size(); ++p) {
        if (!is_fp32_on_host(backend, places[p])) write_values(backend, staging[p], places[p]);
      }
    }
  }
  for (std::size_t i = 0; i < optimizer.parts().size(); ++i) {
    const TensorRef weights = exchange.weights(optimizer.parts()[i]);
    const TensorRef master = optimizer.master(i, weights);
    if (master.data != weights.data) backend.tensor_ops().cast({}, master, weights);
  }
  exchange.publish();
}

void restore_weights(ComputeBackend& backend, const ParameterTable& table, CheckpointReader& reader,
                     GradientExchange& exchange) {
  for (const Parameter& parameter : table.parameters()) {
    std::vector<float> values;
    std::vector<TensorPart> parts;
    std::vector<TensorRef> places;
    for (const UnitPart& part : exchange.owned()) {
      const Overlap o = overlap(parameter, part);
      if (o.count() == 0) continue;
      require(parts.empty(), "a parameter lies in one owned part");
      values.resize(static_cast<std::size_t>(o.count()));
      parts.push_back({o.begin, o.count(), values.data()});
      places.push_back(exchange.weights(part).flat(o.offset, o.count()));
    }
    reader.read("weights.h5", info_of(parameter), parts);
    for (const TensorRef& place : places) write_values(backend, values, place);
  }
  exchange.publish();
}

}  // namespace mylos
