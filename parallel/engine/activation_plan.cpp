// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/activation_plan.hpp"

#include <algorithm>

namespace mylos {

namespace {

/// The ticks of one pass of a micro-batch through the blocks: block i of forward at `forward + i`, of
/// backward at `backward + (blocks - 1 - i)`; backward is negative where there is none.
struct Passage {
  int slot = 0;
  std::int64_t forward = -1;
  std::int64_t backward = -1;
};

std::vector<Passage> passages(const Schedule& schedule, const std::vector<int>& slot_of,
                              std::int64_t num_blocks) {
  std::vector<Passage> result(static_cast<std::size_t>(schedule.micro_batches));
  std::int64_t tick = 0;
  for (const Action& action : schedule.repeat) {
    Passage& passage = result[static_cast<std::size_t>(action.micro_batch)];
    if (action.kind == ActionKind::forward) {
      passage.slot = slot_of[static_cast<std::size_t>(action.micro_batch)];
      passage.forward = tick;
    } else if (action.kind == ActionKind::backward) {
      passage.backward = tick;
    }
    tick += num_blocks;
  }
  return result;
}

}  // namespace

ActivationPlan::ActivationPlan(const std::vector<std::unique_ptr<Block>>& blocks, const BatchShape& shape,
                               std::int64_t width, const Schedule& schedule)
    : slot_of_(schedule.slots()) {
  const auto count = static_cast<std::int64_t>(blocks.size());
  const std::vector<Passage> all = passages(schedule, slot_of_, count);
  const auto stream_bytes = static_cast<std::size_t>(shape.rows() * width) * size_of(shape.dtype);
  const auto row_bytes = static_cast<std::size_t>(shape.rows()) * 4;

  slots_.resize(static_cast<std::size_t>(*std::ranges::max_element(slot_of_)) + 1);
  for (int s = 0; s < num_slots(); ++s) {
    Slot& slot = slots_[at(s)];
    // Adds a buffer that is alive, in every passage of this slot, in the intervals that `live_in` gives.
    const auto add = [&](std::size_t bytes, const auto& live_in) {
      std::vector<LiveInterval> live;
      for (const Passage& passage : all) {
        if (passage.slot == s) live_in(passage, live);
      }
      return arena_.add(bytes, std::move(live));
    };
    const auto whole = [&](const Passage& p, std::vector<LiveInterval>& live) {
      live.push_back({p.forward, std::max(p.forward, p.backward) + count - 1});
    };
    slot.tokens = add(row_bytes, whole);
    slot.targets = add(row_bytes, whole);
    slot.losses = add(row_bytes, whole);
    slot.correct = add(row_bytes, [&](const Passage& p, auto& live) {
      live.push_back({p.forward + count - 1, p.forward + count - 1});
    });
    slot.gradient = add(stream_bytes, [&](const Passage& p, auto& live) {
      if (p.backward >= 0) live.push_back({p.backward, p.backward + count - 1});
    });
    for (std::int64_t i = 0; i < count; ++i) {
      // Written by block i, read by block i + 1 in forward and in backward; the head has no output.
      slot.streams.push_back(add(i + 1 < count ? stream_bytes : 0, [&](const Passage& p, auto& live) {
        const std::int64_t last = p.backward >= 0 ? p.backward + (count - 2 - i) : p.forward + i + 1;
        live.push_back({p.forward + i, last});
      }));
      slot.buffers.emplace_back();
      for (const ActivationSpec& spec : blocks[static_cast<std::size_t>(i)]->activations(shape)) {
        slot.buffers.back().push_back(
            add(static_cast<std::size_t>(spec.bytes), [&](const Passage& p, auto& live) {
              const LiveInterval forward{p.forward + i, p.forward + i};
              const std::int64_t tick = p.backward + (count - 1 - i);
              const bool returns = p.backward >= 0;
              if (spec.lifetime == Lifetime::saved)
                live.push_back({forward.first, returns ? tick : forward.last});
              if (spec.lifetime == Lifetime::both) live.push_back(forward);
              if (returns && (spec.lifetime == Lifetime::backward || spec.lifetime == Lifetime::both)) {
                live.push_back({tick, tick});
              }
            }));
      }
    }
  }
  arena_.solve();
}

}  // namespace mylos
