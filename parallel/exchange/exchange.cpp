// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/exchange.hpp"

namespace mylos {

namespace {

TensorRef part_of(const HeldUnit& unit, const TensorRef& held, const UnitPart& part) {
  return held ? held.flat(part.count == 0 ? 0 : part.begin - unit.begin, part.count) : TensorRef();
}

}  // namespace

std::vector<UnitPart> Holding::owned() const {
  std::vector<UnitPart> parts;
  for (const HeldUnit& unit : units) parts.push_back(unit.owned);
  return parts;
}

TensorRef Holding::weights(const UnitPart& part) const {
  const HeldUnit& unit = units[static_cast<std::size_t>(part.unit)];
  return part_of(unit, unit.weights, part);
}

TensorRef Holding::gradient(const UnitPart& part) const {
  const HeldUnit& unit = units[static_cast<std::size_t>(part.unit)];
  return part_of(unit, unit.gradient, part);
}

std::vector<UnitPart> whole_units(const ParameterTable& table) {
  std::vector<UnitPart> parts;
  for (int unit = 0; unit < table.num_units(); ++unit) parts.push_back({unit, 0, table.unit(unit).size});
  return parts;
}

std::vector<UnitPart> share_of(const std::vector<UnitPart>& parts, int ranks, int rank) {
  std::vector<UnitPart> own;
  for (const UnitPart& part : parts) {
    const auto cut = [&](int place) { return (part.count * place + ranks - 1) / ranks; };
    if (cut(rank) < cut(rank + 1))
      own.push_back({part.unit, part.begin + cut(rank), cut(rank + 1) - cut(rank)});
  }
  return own;
}

std::vector<UnitPart> stored_shares(const ParameterTable& table, const std::vector<HeldUnit>& units,
                                    const Coordinates& coordinates) {
  std::vector<UnitPart> stored;
  for (const HeldUnit& unit : units) {
    const AxisSet copies = table.term_axes(unit.owned.unit).without(unit.divided_axes);
    for (const UnitPart& part : share_of({unit.owned}, coordinates.extent(copies), coordinates.index(copies)))
      stored.push_back(part);
  }
  return stored;
}

int Lowering::keep(std::string name, MemoryCategory category, std::int64_t elements, DType dtype,
                   AxisSet window) {
  return storages_.add({.name = std::move(name),
                        .kind = StorageKind::kept,
                        .bytes = static_cast<std::size_t>(elements) * size_of(dtype),
                        .persists = true,
                        .category = category,
                        .window = window});
}

void Lowering::put_within(int storage, int kept, std::int64_t begin, DType dtype) {
  Storage& own = storages_.at(storage);
  own.persists = true;
  own.category = storages_.at(kept).category;
  own.within = kept;
  own.begin = begin * static_cast<std::int64_t>(size_of(dtype));
}

void Lowering::put_in_arena(int storage, MemoryCategory category, AxisSet window) {
  Storage& own = storages_.at(storage);
  own.category = category;
  own.window = window;
}

int Lowering::add(const Recordable& operation, const std::source_location& where) {
  pool_.push_back({.operation = operation, .where = where});
  return static_cast<int>(pool_.size()) - 1;
}

int Lowering::await(int call) {
  const auto [found, is_new] = awaits_.try_emplace(call, static_cast<int>(pool_.size()));
  if (is_new) pool_.push_back(await_of(pool_[static_cast<std::size_t>(call)]).value());
  return found->second;
}

}  // namespace mylos
