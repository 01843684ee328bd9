// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/recorder.hpp"

namespace mylos {

Storages::Storages(const ParameterTable& table, const ProgramConfig& config, std::int64_t statistics)
    : table_(table), config_(config) {
  add({.name = "guard's input",
       .kind = StorageKind::bound,
       .bytes = static_cast<std::size_t>(num_guard_inputs + statistics) * sizeof(float)});
  for (int unit = 0; unit < table.num_units(); ++unit) {
    const auto bytes = [&](DType dtype) {
      return static_cast<std::size_t>(table.unit(unit).size) * size_of(dtype);
    };
    const std::string& name = table.unit(unit).name;
    add({"weights of " + name, StorageKind::weights, bytes(config.shape.dtype), unit});
    add({"gradients of " + name, StorageKind::gradients, bytes(config.grad_dtype), unit});
  }
}

int Storages::add(Storage storage) {
  storages_.push_back(std::move(storage));
  return static_cast<int>(storages_.size()) - 1;
}

TensorRef Storages::flat(int storage, std::int64_t begin, DType dtype, std::int64_t count) {
  return {static_cast<std::byte*>(address_of(storage)) + begin, dtype, {count}};
}

Storages::Extent Storages::extent_of(const TensorRef& tensor) const {
  const Place place = place_of(tensor);
  const Storage& own = at(place.storage);
  const auto size = tensor.contiguous() ? static_cast<std::int64_t>(tensor.bytes())
                                        : static_cast<std::int64_t>(own.bytes) - place.offset;
  if (own.within < 0) return {place.storage, place.offset, place.offset + size};
  const std::int64_t begin = own.begin + place.offset;
  return {own.within, begin, begin + size};
}

TensorRef Storages::tensor(const std::string& name, const TensorRef& like, Cost cost) {
  return named({.name = name, .cheap = cost == Cost::cheap}, like);
}

TensorRef Storages::cached(const std::string& name, const TensorRef& like) {
  return named({.name = name, .kind = StorageKind::kept, .persists = true, .category = MemoryCategory::cache},
               like);
}

TensorRef Storages::named(Storage storage, const TensorRef& like) {
  const auto [found, is_new] = names_.try_emplace(storage.name, static_cast<int>(storages_.size()));
  if (is_new) {
    storage.bytes = like.bytes();
    add(std::move(storage));
  } else {
    require(storages_[static_cast<std::size_t>(found->second)].bytes == like.bytes(),
            "tensors with the same name have the same size");
  }
  TensorRef tensor = like;
  tensor.data = address_of(found->second);
  return tensor;
}

TensorRef Storages::weights(int unit) const {
  return flat(weights_storage(unit), 0, config_.shape.dtype, table_.unit(unit).size);
}

TensorRef Storages::gradients(int unit) const {
  return flat(gradients_storage(unit), 0, config_.grad_dtype, table_.unit(unit).size);
}

int Storages::find(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? -1 : found->second;
}

StepScalars* Recorder::scalars() const {
  static StepScalars stand_in{};
  return &stand_in;
}

namespace {

TensorRef view_of(const TensorRef& flat, const Parameter& parameter) {
  const TensorRef range = flat.flat(parameter.offset, parameter.padded_size());
  if (parameter.shape.size() < 2) return range;
  const std::vector<std::int64_t> shape = parameter.local_shape();
  if (shape.size() == 2) return range.reshaped({parameter.padded_rows, shape[1]});
  require(shape.size() == 3, "weights have at most three dimensions");
  return range.reshaped({parameter.padded_rows, shape[1], shape[2]});
}

}  // namespace

TensorRef Recorder::weight(const Parameter& parameter) const {
  return view_of(storages_.weights(parameter.unit), parameter);
}

TensorRef Recorder::gradient(const Parameter& parameter) const {
  return view_of(storages_.gradients(parameter.unit), parameter);
}

Dropout Recorder::dropout(float probability, std::string_view site) const {
  if (!pass_.training || probability == 0.0F) return {};
  return {.probability = probability, .key = stream_key(config_.seed, site), .scalars = scalars()};
}

RouterNoise Recorder::router_noise(RouterNoise::Kind kind, std::string_view site) const {
  if (!pass_.training || kind == RouterNoise::Kind::none) return {};
  return {.kind = kind, .key = stream_key(config_.seed, site), .scalars = scalars()};
}

}  // namespace mylos
