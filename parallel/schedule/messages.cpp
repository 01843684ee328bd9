// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/messages.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>

#include "core/base/error.hpp"
#include "parallel/plan/simulation.hpp"

namespace mylos {

namespace {

/// The times in whole units, of which the longest pass takes `resolution`. Sums of whole numbers are exact:
/// passes that end at the same time do so on all ranks and in every period of a steady state, which comes
/// soon if times do not differ by less than a unit. Every pass takes at least one unit, so that a tensor is
/// produced later than those it depends on.
std::vector<PassTimes> in_units(std::span<const PassTimes> times) {
  constexpr double resolution = 32.0;
  double longest = 0.0;
  for (const PassTimes& of : times) longest = std::max({longest, of.forward, of.input, of.weight});
  const auto units = [&](double time) {
    return longest > 0.0 ? std::max(std::round(time / longest * resolution), 1.0) : 1.0;
  };
  std::vector<PassTimes> whole;
  for (const PassTimes& of : times)
    whole.push_back({.forward = units(of.forward), .input = units(of.input), .weight = units(of.weight)});
  return whole;
}

/// A message is given by the pass that produces its tensor, and by when.
struct Message {
  double time = 0.0;
  std::uint32_t stage = 0;
  std::uint32_t index = 0;

  bool operator<(const Message& other) const {
    return std::tie(time, stage) < std::tie(other.time, other.stage);
  }
};

/// The chunk that a pass produces a tensor for, or -1.
int consumer_of(const Action& pass, int chunks) {
  const bool is_back = pass.kind == ActionKind::backward || pass.kind == ActionKind::backward_input;
  if (pass.kind != ActionKind::forward && !is_back) return -1;
  const int consumer = pass.chunk + (is_back ? -1 : 1);
  return consumer < chunks ? consumer : -1;
}

}  // namespace

std::vector<Schedule> with_messages(const std::vector<Schedule>& stages, std::span<const PassTimes> times) {
  const Simulation simulation = simulate(stages, in_units(times));
  if (simulation.stuck) {
    const auto [stage, index] = *simulation.stuck;
    const Action& action = stages[stage].actions[index];
    fail(ExitCode::usage, "stage {} waits forever in {} {} of chunk {}", stage, name_of(action.kind),
         action.micro_batch, action.chunk);
  }
  const int chunks = stages.front().chunks;
  std::vector<std::uint32_t> stage_of(static_cast<std::size_t>(chunks));
  for (std::uint32_t stage = 0; stage < stages.size(); ++stage) {
    for (const Action& action : stages[stage].actions) {
      if (action.kind == ActionKind::forward) stage_of[static_cast<std::size_t>(action.chunk)] = stage;
    }
  }
  std::vector<std::vector<Message>> messages(stages.size());  // by stage that sends or receives them
  for (std::uint32_t stage = 0; stage < stages.size(); ++stage) {
    for (std::uint32_t i = 0; i < stages[stage].actions.size(); ++i) {
      const int consumer = consumer_of(stages[stage].actions[i], chunks);
      if (consumer < 0) continue;
      const std::uint32_t to = stage_of[static_cast<std::size_t>(consumer)];
      if (to == stage) continue;
      const Message message{simulation.stages[stage].actions[i].end, stage, i};
      messages[stage].push_back(message);
      messages[to].push_back(message);
    }
  }
  std::vector<Schedule> complete;
  for (std::uint32_t stage = 0; stage < stages.size(); ++stage) {
    const Schedule& passes = stages[stage];
    std::ranges::sort(messages[stage], std::less());
    Schedule& own = complete.emplace_back(
        Schedule{{}, passes.micro_batches, passes.chunks, passes.tolerates_stale_weights});
    own.actions.reserve(passes.actions.size() + messages[stage].size());
    auto next = messages[stage].begin();
    const auto post = [&] {
      const Action& pass = stages[next->stage].actions[next->index];
      const int consumer = consumer_of(pass, chunks);
      const bool is_forward = pass.kind == ActionKind::forward;
      Action message{.micro_batch = pass.micro_batch};
      if (next->stage == stage) {
        message.kind = is_forward ? ActionKind::send_forward : ActionKind::send_backward;
        message.chunk = pass.chunk;
        message.peer = static_cast<int>(stage_of[static_cast<std::size_t>(consumer)]);
      } else {
        message.kind = is_forward ? ActionKind::receive_forward : ActionKind::receive_backward;
        message.chunk = consumer;
        message.peer = static_cast<int>(next->stage);
      }
      own.actions.push_back(message);
      ++next;
    };
    for (std::size_t i = 0; i < passes.actions.size(); ++i) {
      const auto [begin, end] = simulation.stages[stage].actions[i];
      while (next != messages[stage].end() && (next->time < end || next->time == begin)) post();
      own.actions.push_back(passes.actions[i]);
    }
    while (next != messages[stage].end()) post();  // of lists that end with a pass
  }
  return complete;
}

}  // namespace mylos
