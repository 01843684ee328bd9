// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/program.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace mylos {

namespace {

constexpr unsigned offset_bits = 48;

/// Identifies a gradient by its unit and first element. The sum of the losses has unit -1.
using GradientKey = std::pair<int, std::int64_t>;

/// Returns the key of a gradient, or of the sum of the losses.
GradientKey key_of(const std::vector<Storage>& storages, const TensorRef& tensor) {
  const Place place = place_of(tensor);
  const Storage& storage = storages[static_cast<std::size_t>(place.storage)];
  return {storage.kind == StorageKind::gradients ? storage.unit : -1,
          place.offset / static_cast<std::int64_t>(size_of(tensor.dtype))};
}

/// Makes the first contribution to each gradient overwrite it and all others add to it. Returns the entry
/// that makes the last contribution to each gradient.
std::map<GradientKey, Entry*> find_contributions(std::span<Program* const> programs,
                                                 const std::vector<Storage>& storages) {
  std::map<GradientKey, Entry*> last;
  for (Program* program : programs) {
    for (Entry& entry : program->entries) {
      const auto contribute = [&](const char* /*name*/, const TensorRef& tensor, Access /*access*/,
                                  auto&... adds) {
        if (!tensor) return;
        ((adds = !last.insert_or_assign(key_of(storages, tensor), &entry).second), ...);
      };
      std::visit([&]<class Op>(Op& op) { Op::operands(op, contribute); }, entry.operation);
    }
  }
  return last;
}

/// Sets the gradients that each entry completes. If an entry completes the gradients of neighbouring
/// parameters of a unit, these gradients form one range.
void find_completions(const std::map<GradientKey, Entry*>& last, const ParameterTable& table) {
  for (int unit = 0; unit < table.num_units(); ++unit) {
    const Entry* previous = nullptr;
    for (const int index : table.unit(unit).parameters) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
      const auto found = last.find({unit, parameter.offset});
      if (found == last.end()) continue;
      Entry& entry = *found->second;
      const bool is_last = index == table.unit(unit).parameters.back();
      const std::int64_t end = is_last ? table.unit(unit).size : parameter.offset + parameter.padded_size();
      if (previous == &entry) {
        entry.completes.back().end = end;
      } else {
        entry.completes.push_back({unit, parameter.offset, end});
      }
      previous = &entry;
    }
  }
}

/// Returns the units that each pass through a block uses.
std::vector<UnitUse> uses_of(const std::vector<Entry>& entries, const std::vector<Storage>& storages) {
  std::vector<UnitUse> uses;
  int visit = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0 && entries[i].block != entries[i - 1].block) ++visit;
    for_each_place(entries[i], [&](const Place& place, Access /*access*/) {
      const Storage& storage = storages[static_cast<std::size_t>(place.storage)];
      if (storage.unit < 0) return;
      auto use = std::ranges::find_if(uses.rbegin(), uses.rend(), [&](const UnitUse& other) {
        return other.visit != visit || other.unit == storage.unit;
      });
      if (use == uses.rend() || use->visit != visit) {
        uses.push_back({.unit = storage.unit, .visit = visit, .first = i});
        use = uses.rbegin();
      }
      (storage.kind == StorageKind::weights ? use->reads_weights : use->adds_gradients) = true;
      use->last = i;
    });
  }
  return uses;
}

/// A collective in flight.
struct Started {
  Entry await;
  Accesses accesses;
};

/// Inserts the Awaits: of a collective before the next entry that uses its result or changes its input, of
/// all others at the end.
void insert_awaits(std::vector<Entry>& entries) {
  std::vector<Entry> all;
  std::vector<Started> in_flight;
  for (Entry& entry : entries) {
    Accesses own = accesses_of(entry);
    // An operation that works in place changes the operand whose memory its result shares.
    for_each_in_place(entry, [&](const TensorRef& /*result*/, const TensorRef& operand) {
      own.writes.insert(place_of(operand).storage);
    });
    std::erase_if(in_flight, [&](const Started& call) {
      const bool is_awaited = intersect(call.accesses.writes, own.reads) ||
                              intersect(call.accesses.writes, own.writes) ||
                              intersect(call.accesses.reads, own.writes);
      if (is_awaited) {
        all.push_back(call.await);
        all.back().block = entry.block;
      }
      return is_awaited;
    });
    if (std::optional<Entry> await = await_of(entry))
      in_flight.push_back({*std::move(await), std::move(own)});
    all.push_back(std::move(entry));
  }
  for (const Started& call : in_flight) {
    const int block = all.back().block;
    all.push_back(call.await);
    all.back().block = block;
  }
  entries = std::move(all);
}

}  // namespace

Place place_of(const void* address) {
  if (address == nullptr) return {};
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  constexpr std::uintptr_t offsets = (std::uintptr_t{1} << offset_bits) - 1;
  return {static_cast<int>(number >> offset_bits) - 1, static_cast<std::int64_t>(number & offsets)};
}

void* address_of(int storage) {
  return reinterpret_cast<void*>((static_cast<std::uintptr_t>(storage) + 1) << offset_bits);
}

void analyse(std::span<Program* const> programs, const std::vector<Storage>& storages,
             const ParameterTable& table) {
  find_completions(find_contributions(programs, storages), table);
  for (Program* program : programs) {
    insert_awaits(program->entries);
    program->uses = uses_of(program->entries, storages);
  }
}

Accesses accesses_of(const Entry& entry) {
  Accesses accesses;
  for_each_place(entry, [&](const Place& place, Access access) {
    if (access == Access::read || access == Access::update) accesses.reads.insert(place.storage);
    if (access == Access::write || access == Access::update) accesses.writes.insert(place.storage);
  });
  return accesses;
}

bool intersect(const std::set<int>& a, const std::set<int>& b) {
  return std::ranges::any_of(a, [&](int storage) { return b.contains(storage); });
}

bool communicates(const Entry& entry) {
  return std::visit([]<class Op>(const Op&) { return is_call<Op> || std::is_same_v<Op, Await>; },
                    entry.operation);
}

std::optional<GroupedCall> call_of(const Entry& entry) {
  return std::visit(
      []<class Op>(const Op& op) -> std::optional<GroupedCall> {
        if constexpr (is_call<Op>) {
          return GroupedCall{op.group, op.call()};
        } else {
          return std::nullopt;
        }
      },
      entry.operation);
}

std::optional<Entry> await_of(const Entry& entry) {
  const std::optional<GroupedCall> started = call_of(entry);
  if (!started) return std::nullopt;
  return Entry{.operation = Await{.input = started->call.input, .output = started->call.output},
               .block = entry.block,
               .where = entry.where};
}

std::string_view name_of(const Entry& entry) {
  return std::visit([]<class Op>(const Op&) { return Op::name; }, entry.operation);
}

double flops_of(const Entry& entry) {
  return std::visit([](const auto& op) { return op.flops(); }, entry.operation);
}

std::int64_t bytes_of(const Entry& entry) {
  std::int64_t bytes = 0;
  if (std::holds_alternative<Await>(entry.operation)) return bytes;
  const auto add = [&](const char* /*name*/, const TensorRef& tensor, Access access,
                       const auto&... /*adds*/) {
    if (tensor) bytes += static_cast<std::int64_t>(tensor.bytes()) * (access == Access::update ? 2 : 1);
  };
  std::visit([&]<class Op>(const Op& op) { Op::operands(op, add); }, entry.operation);
  return bytes;
}

void find_deferrable(Program& backward, const std::vector<Storage>& storages, const std::set<int>& wanted) {
  std::set<int> needed = wanted;  // wanted, or read by the entries of the input part
  std::set<int> overwritten;      // written by the entries of the input part, except gradients
  for (auto entry = backward.entries.rbegin(); entry != backward.entries.rend(); ++entry) {
    const auto [reads, writes] = accesses_of(*entry);
    const auto is_gradient = [&](int storage) {
      return storages[static_cast<std::size_t>(storage)].kind == StorageKind::gradients;
    };
    const bool is_needed = std::ranges::any_of(
        writes, [&](int storage) { return !is_gradient(storage) && needed.contains(storage); });
    entry->is_deferrable = !is_needed && !intersect(reads, overwritten);
    if (entry->is_deferrable) continue;
    needed.insert(reads.begin(), reads.end());
    std::ranges::copy_if(writes, std::inserter(overwritten, overwritten.end()), std::not_fn(is_gradient));
  }
}

SplitProgram split(const Program& backward) {
  SplitProgram parts;
  for (const Entry& entry : backward.entries)
    (entry.is_deferrable ? parts.weight : parts.input).entries.push_back(entry);
  return parts;
}

}  // namespace mylos
