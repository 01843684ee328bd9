// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/messages.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <tuple>

#include "core/base/error.hpp"
#include "parallel/schedule/simulation.hpp"

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

/// The chunk that makes the input of a pass, or -1.
int producer_of(const Action& pass, int chunks) {
  if (pass.kind == ActionKind::forward) return pass.chunk - 1;
  const bool is_back = pass.kind == ActionKind::backward || pass.kind == ActionKind::backward_input;
  return is_back && pass.chunk + 1 < chunks ? pass.chunk + 1 : -1;
}

/// The list that runs each chunk of each micro-batch.
class Owners {
 public:
  explicit Owners(const std::vector<Schedule>& lists)
      : micro_batches_(static_cast<std::size_t>(lists.front().micro_batches)),
        owners_(static_cast<std::size_t>(lists.front().chunks) * micro_batches_, -1) {
    for (std::size_t list = 0; list < lists.size(); ++list) {
      for (const Action& action : lists[list].actions) {
        if (action.kind == ActionKind::forward) at(action.chunk, action.micro_batch) = static_cast<int>(list);
      }
    }
  }
  int& at(int chunk, int micro_batch) {
    return owners_[static_cast<std::size_t>(chunk) * micro_batches_ + static_cast<std::size_t>(micro_batch)];
  }

 private:
  std::size_t micro_batches_;
  std::vector<int> owners_;
};

/// Adds the messages to schedules whose steps overlap.
std::vector<Schedule> with_periodic_messages(std::vector<Schedule> lists) {
  Owners owners(lists);
  const bool has_replicas = std::ssize(lists) > lists.front().chunks;
  for (int list = 0; list < std::ssize(lists); ++list) {
    Schedule& own = lists[static_cast<std::size_t>(list)];
    const auto peer_of = [&](const Action& pass, int chunk) {
      const int owner = chunk < 0 ? list : owners.at(chunk, pass.micro_batch);
      return owner == list ? -1 : owner;
    };
    std::vector<std::size_t> passes;
    for (std::size_t i = 0; i < own.actions.size(); ++i) {
      if (is_of_micro_batch(own.actions[i].kind)) passes.push_back(i);
    }
    std::vector<Action> all;
    for (std::size_t i = 0, number = 0; i < own.actions.size(); ++i) {
      const Action& pass = own.actions[i];
      all.push_back(pass);
      if (!is_of_micro_batch(pass.kind)) continue;
      const bool is_forward = pass.kind == ActionKind::forward;
      if (const int peer = peer_of(pass, consumer_of(pass, own.chunks)); peer >= 0) {
        Action message = pass;
        message.kind = is_forward ? ActionKind::send_forward : ActionKind::send_backward;
        message.peer = peer;
        if (has_replicas) message.peer_stage = consumer_of(pass, own.chunks);
        all.push_back(message);
      }
      // The first pass of a period receives its input at the end of the one before.
      const bool is_last = ++number == passes.size();
      const Action& next = own.actions[passes[is_last ? 0 : number]];
      if (const int peer = peer_of(next, producer_of(next, own.chunks)); peer >= 0) {
        Action message = next;
        message.kind =
            next.kind == ActionKind::forward ? ActionKind::receive_forward : ActionKind::receive_backward;
        if (has_replicas) message.peer_stage = producer_of(next, own.chunks);
        message.ahead += is_last ? 1 : 0;
        message.peer = peer;
        all.push_back(message);
      }
    }
    own.actions = std::move(all);
  }
  return lists;
}

}  // namespace

std::vector<Schedule> with_messages(const std::vector<Schedule>& stages, std::span<const PassTimes> times) {
  const auto overlaps = [](const Schedule& stage) { return stage.ahead() > 0 || !stage.rules.empty(); };
  if (std::ranges::any_of(stages, overlaps)) return with_periodic_messages(stages);
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
    for (const int chunk : stages[stage].held_chunks()) stage_of[static_cast<std::size_t>(chunk)] = stage;
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
        Schedule{.actions = {}, .micro_batches = passes.micro_batches, .chunks = passes.chunks});
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
