// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck_changes.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "app/run_config.hpp"
#include "io/deck/deck.hpp"

namespace mylos {

namespace {

constexpr std::string_view harmless[] = {"model.init",          // the weights are those of the checkpoint
                                         "model.feed_forward",  // that of the checkpoint (check_continues)
                                         "train.stop_step",
                                         "train.wall_clock",
                                         "train.end_time",
                                         "train.end_margin",
                                         "backend.graphs",
                                         "parallel.prefetch",
                                         "parallel.reshard",
                                         "run.dir",
                                         "data.train",  // compared by content
                                         "data.valid",
                                         "data.tokenizer",
                                         "data.ranks",
                                         "machine.",
                                         "profile.",
                                         "eval.",
                                         "checkpoint.",
                                         "comm.timeout",
                                         "comm.heartbeat",
                                         "comm.start_timeout",
                                         "io.",
                                         "comm.progress_thread",
                                         "comm.simulate",
                                         "guard.replica_check_every"};

/// The resolved deck of all keys that have a default.
Deck default_deck() {
  std::vector<ParamSpec> specs;
  std::ranges::copy_if(deck_params(), std::back_inserter(specs),
                       [](const ParamSpec& spec) { return spec.default_value != nullptr; });
  DeckErrors none;
  return Deck::parse(write_deck(specs, resolve_deck(Deck(), specs, {}, none)), "defaults", none);
}

}  // namespace

std::string deck_changes(const std::string& before, const std::string& now) {
  DeckErrors ignored;
  const Deck old_deck = Deck::parse(before, "before", ignored);
  const Deck new_deck = Deck::parse(now, "now", ignored);
  const Deck defaults = default_deck();
  std::string changes;
  for (const DeckEntry& entry : new_deck.entries()) {
    const std::string key = entry.key();
    if (std::ranges::any_of(harmless, [&](std::string_view prefix) { return key.starts_with(prefix); }))
      continue;
    const DeckEntry* old_entry = old_deck.find(key);
    if (old_entry == nullptr) old_entry = defaults.find(key);
    // The default deck has no keys of plugins.
    const char* absent = key == "backend.autotune" ? "false" : "nothing";
    const std::string old_value = old_entry != nullptr ? old_entry->value : absent;
    const bool is_chosen_anew = key == "backend.autotune" && entry.value == "true";
    if (old_value == entry.value && !is_chosen_anew) continue;
    changes += fmt::format("{}{} {} -> {}", changes.empty() ? "" : ", ", key, old_value, entry.value);
  }
  return changes;
}

}  // namespace mylos
