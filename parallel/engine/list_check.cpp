// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/list_check.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/digest.hpp"
#include "parallel/gather_values.hpp"

namespace mylos {

namespace {

/// A collective of a list.
struct Collective {
  std::string text;  ///< what all ranks of the group must have in common
  std::source_location where;
  /// Of all_to_all_v only, modulo 2^64: its sum over the ranks of the group is 0 if each receives of each
  /// other as much as that one sends.
  std::optional<std::uint64_t> balance{};
};

std::uint64_t hash_of(const std::string& text) {
  return digest_of(text).low;
}

/// The balance of an all_to_all_v of the rank at `index` in its group: what identifies the parts that it
/// sends less what identifies those that it receives.
std::uint64_t balance_of(const CommCall& call, int index) {
  std::uint64_t balance = 0;
  for (std::size_t other = 0; other < call.send_counts.size(); ++other) {
    balance += hash_of(fmt::format("{} to {}: {}", index, other, call.send_counts[other]));
    balance -= hash_of(fmt::format("{} to {}: {}", other, index, call.recv_counts[other]));
  }
  return balance;
}

/// The windows of a rank and the collectives of its passes by group, in the order in which it makes them.
/// Messages are left out: each concerns two ranks.
std::map<AxisSet, std::vector<Collective>> collectives_of(const RankProgram& program) {
  std::map<AxisSet, std::vector<Collective>> lists;
  const auto add = [&](std::string_view pass, const Entry& entry, std::size_t times) {
    const std::optional<ListedCall> call = listed_call(entry);
    if (!call || call->operation == CommOperation::send || call->operation == CommOperation::recv) return;
    const AxisSet group = call->group.common(program.coordinates().used_axes());
    // The counts of all_to_all_v may differ between ranks.
    const bool is_uneven = call->operation == CommOperation::all_to_all_v;
    std::optional<std::uint64_t> balance;
    if (is_uneven) balance = balance_of(call_of(entry)->call, program.coordinates().index(group));
    std::string text =
        fmt::format("{} of {} bytes of {}, root {}, {} times, in {}", name_of(call->operation),
                    is_uneven ? 0 : call->payload_bytes, name_of(call->dtype), call->peer, times, pass);
    // Ranks of one stage have their sums at the same place.
    const Place place = place_of(call_of(entry)->call.output);
    const bool is_of_stage = group.common({Axis::pipeline, Axis::embedding}) == AxisSet();
    if (call->operation == CommOperation::all_reduce && is_of_stage)
      text += fmt::format(", {} + {}", program.storages().at(place.storage).name, place.offset);
    lists[group].push_back({std::move(text), entry.where, balance});
  };
  // The windows of a group have the same size on all ranks, and the storages in them the same places.
  for (const Storage& storage : program.storages().all()) {
    const AxisSet group = storage.window.common(program.coordinates().used_axes());
    if (group == AxisSet() || storage.kind == StorageKind::bound) continue;
    lists[group].push_back({fmt::format("a window of {} bytes for {}", storage.bytes, storage.name), {}});
  }
  program.for_each_step_entry([&](const Action& action, const Entry& entry, std::size_t times) {
    add(name_of(action.kind), entry, times);
  });
  const auto add_pass = [&](std::string_view name, const Pass& pass) {
    for_each_entry(pass, program.pool(), [&](const Entry& entry, const EntryPlace&) { add(name, entry, 1); });
  };
  add_pass("the publication", program.publication());
  for (const Pass& pass : program.evaluation().passes) add_pass("evaluation", pass);
  for (const ForwardList& list : program.cached()) {
    for (const Pass& pass : list.passes) add_pass("a pass over the cache", pass);
  }
  return lists;
}

/// The texts of all ranks of `group`.
std::vector<std::string> gather_texts(ComputeBackend& backend, Communicator& group, const std::string& own) {
  const std::vector<std::int64_t> lengths = gather_values(backend, group, {std::ssize(own)});
  const std::int64_t most = *std::ranges::max_element(lengths);
  std::vector<std::int64_t> letters(own.begin(), own.end());
  letters.resize(static_cast<std::size_t>(most));
  const std::vector<std::int64_t> all = gather_values(backend, group, letters);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank) * most;
    std::string& text = texts.emplace_back();
    std::transform(begin, begin + lengths[rank], std::back_inserter(text),
                   [](std::int64_t letter) { return static_cast<char>(letter); });
  }
  return texts;
}

/// The call as an error names it.
std::string text_of(const Collective& call) {
  return call.where.line() == 0
             ? call.text
             : fmt::format("{} ({}:{})", call.text, call.where.file_name(), call.where.line());
}

/// Returns which call of a group, whose lists do not differ, has ranks that do not receive what the others
/// send them, or "".
std::string imbalance(ComputeBackend& backend, Communicator& group, const std::string& label,
                      const std::vector<Collective>& own) {
  std::vector<std::int64_t> balances;
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < own.size(); ++place) {
    if (!own[place].balance) continue;
    balances.push_back(static_cast<std::int64_t>(*own[place].balance));
    places.push_back(place);
  }
  if (places.empty()) return "";
  const std::vector<std::int64_t> all = gather_values(backend, group, balances);
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::uint64_t sum = 0;
    for (std::size_t at = i; at < all.size(); at += places.size()) sum += static_cast<std::uint64_t>(all[at]);
    if (sum == 0) continue;
    return fmt::format(
        "the lists of collectives over {} do not fit: in call {}, {}, ranks do not receive as much as the "
        "others send them; all ranks must run the same program with the same parameters",
        label, places[i], text_of(own[places[i]]));
  }
  return "";
}

/// Returns how the lists of a group differ, or do not fit, or "".
std::string difference(ComputeBackend& backend, Communicator& group, Communicator& world,
                       const std::string& label, const std::vector<Collective>& own) {
  std::vector<std::int64_t> hashes;
  std::string all_texts;
  for (const Collective& call : own) {
    hashes.push_back(static_cast<std::int64_t>(hash_of(call.text)));
    all_texts += call.text + "\n";
  }
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t> summaries = gather_values(
      backend, group, {std::ssize(own), static_cast<std::int64_t>(hash_of(all_texts)), world.rank()});
  const auto summary = [&](std::size_t rank) { return std::span(summaries).subspan(3 * rank, 3); };
  std::size_t most = 0;
  std::optional<std::size_t> other;  // the first rank whose list is not that of the group's first rank
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    most = std::max(most, static_cast<std::size_t>(summary(rank)[0]));
    if (!other && !std::ranges::equal(summary(rank).first(2), summary(0).first(2))) other = rank;
  }
  if (!other) return imbalance(backend, group, label, own);
  hashes.resize(most);
  const std::vector<std::int64_t> all = gather_values(backend, group, hashes);
  const auto first_of = [&](std::size_t rank) {
    return all.begin() + static_cast<std::ptrdiff_t>(rank * most);
  };
  const auto place = static_cast<std::size_t>(
      std::mismatch(first_of(0), first_of(0) + static_cast<std::ptrdiff_t>(most), first_of(*other)).first -
      first_of(0));
  const std::vector<std::string> texts =
      gather_texts(backend, group, place < own.size() ? text_of(own[place]) : "no call");
  return fmt::format(
      "the lists of collectives over {} differ: call {} is {} on rank {}, but {} on rank {}; all ranks must "
      "run the same program with the same parameters",
      label, place, texts[0], summary(0)[2], texts[*other], summary(*other)[2]);
}

/// Returns which elements of a unit are not in `times` parts, or "", given the changes of their number by
/// element.
std::string find_gap(const Unit& unit, const std::map<std::int64_t, std::int64_t>& changes,
                     std::int64_t times, std::string_view what) {
  std::int64_t covered = 0;
  std::int64_t end = 0;
  for (const auto& [element, change] : changes) {
    if (element > end && covered != times) {
      return fmt::format("elements {} to {} of {} are {} by {} ranks, not {}", end, element, unit.name, what,
                         covered, times);
    }
    end = element;
    covered += change;
  }
  return "";
}

/// Returns how the parts of the ranks of a group do not cover each of some units `times` times, or "". A rank
/// has at most one part of a unit. The parts of all ranks are gathered a few units at a time.
std::string find_gap(ComputeBackend& backend, Communicator& group, const ParameterTable& table,
                     std::span<const int> units, const std::vector<UnitPart>& own,
                     const std::vector<std::int64_t>& times, std::string_view what) {
  constexpr std::size_t most_units = 64;
  std::vector<std::int64_t> values(2 * table.units().size());  // begin and count by unit
  for (const UnitPart& part : own) {
    values[2 * static_cast<std::size_t>(part.unit)] = part.begin;
    values[2 * static_cast<std::size_t>(part.unit) + 1] = part.count;
  }
  std::string problem;
  for (std::size_t first = 0; first < units.size(); first += most_units) {
    const auto some = units.subspan(first, std::min(most_units, units.size() - first));
    std::vector<std::int64_t> parts;
    for (const int unit : some) {
      const std::size_t at = 2 * static_cast<std::size_t>(unit);
      parts.insert(parts.end(), {values[at], values[at + 1]});
    }
    const std::vector<std::int64_t> all = gather_values(backend, group, parts);
    for (std::size_t i = 0; i < some.size() && problem.empty(); ++i) {
      std::map<std::int64_t, std::int64_t> changes;  // of the number of parts, by element
      const Unit& unit = table.unit(some[i]);
      changes[unit.size] += 0;
      for (std::size_t at = 2 * i; at < all.size(); at += parts.size()) {
        changes[all[at]] += all[at + 1] > 0 ? 1 : 0;
        changes[all[at] + all[at + 1]] -= all[at + 1] > 0 ? 1 : 0;
      }
      problem = find_gap(unit, changes, times[static_cast<std::size_t>(some[i])], what);
    }
  }
  return problem;
}

}  // namespace

void check_lists(ComputeBackend& backend, const ProcessGrid& grid, const RankProgram& program) {
  Communicator& world = grid.group(all_axes);
  // Every rank makes all comparisons, whatever it finds, and learns what the others find.
  const auto agree = [&](ExitCode code, const std::string& found) {
    const std::string agreed = agree_on_problem(backend, world, found);
    if (!agreed.empty()) throw Error(code, agreed);
  };
  std::string problem;
  const auto lists = collectives_of(program);
  for (const AxisSet axes : grid.groups()) {
    if (program.coordinates().extent(axes) == 1) continue;
    const auto own = lists.find(axes);
    const std::string found =
        difference(backend, grid.group(axes), world, ProcessGrid::label(program.coordinates(), axes),
                   own == lists.end() ? std::vector<Collective>() : own->second);
    if (problem.empty()) problem = found;
  }
  agree(ExitCode::usage, problem);
  const Holding& holding = program.holding();
  std::map<AxisSet, std::vector<int>> units;  // by the axes along which ranks hold the same parameters
  std::vector<std::int64_t> owners;           // of each element, by unit
  for (int unit = 0; unit < program.table().num_units(); ++unit) {
    const AxisSet axes = program.table().term_axes(unit);
    units[axes].push_back(unit);
    const AxisSet copies = axes.without(holding.units[static_cast<std::size_t>(unit)].divided_axes);
    owners.push_back(program.coordinates().extent(copies));
  }
  problem.clear();
  for (const auto& [axes, some] : units) {
    const auto gap = [&](const std::vector<UnitPart>& parts, const std::vector<std::int64_t>& times,
                         std::string_view what) {
      const std::string found =
          find_gap(backend, grid.group(axes), program.table(), some, parts, times, what);
      if (problem.empty()) problem = found;
    };
    gap(holding.owned(), owners, "stepped");
    gap(holding.stored, std::vector<std::int64_t>(owners.size(), 1), "stored");
  }
  agree(ExitCode::internal, problem);
}

}  // namespace mylos
