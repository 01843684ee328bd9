// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/schedule_problems.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace mylos {

namespace {

/// Number of steps to check; after the steps that overlap, all steps are the same.
std::int64_t num_steps(std::span<const Schedule> ranks) {
  int ahead = 0;
  for (const Schedule& schedule : ranks) ahead = std::max(ahead, schedule.ahead());
  return 3 + ahead;
}

/// An action of a step as text: "backward 2 of chunk 1, step 3".
std::string text_of(const Action& action, std::int64_t step) {
  if (!is_of_micro_batch(action.kind)) return fmt::format("{}, step {}", name_of(action.kind), step);
  return fmt::format("{} {} of chunk {}, step {}", name_of(action.kind), action.micro_batch, action.chunk,
                     step);
}

/// Checks one rank's schedule alone.
class RankCheck {
 public:
  RankCheck(int rank, const Schedule& schedule, std::vector<std::string>& problems)
      : rank_(rank), schedule_(schedule), held_(schedule.held_chunks()), problems_(problems) {}

  void run(std::int64_t steps) {
    for (std::int64_t step = 1; step <= steps; ++step) {
      schedule_.for_each_action(step, step > 1, steps, [&](const Occurrence& occurrence) {
        check(schedule_.actions[occurrence.index], occurrence.step);
      });
      check_complete(step);
    }
  }

 private:
  /// A pass of a micro-batch of a step through a chunk, or a message about it.
  using Key = std::tuple<ActionKind, std::int64_t, int, int>;  // kind, step, micro-batch, chunk

  template <class... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format("rank {}: {}", rank_, fmt::format(format, std::forward<Args>(args)...)));
  }
  bool is_done(ActionKind kind, const Action& action, std::int64_t step, int chunk) const {
    return done_.contains({kind, step, action.micro_batch, chunk});
  }
  bool is_back(const Action& action, std::int64_t step, int chunk) const {
    return is_done(ActionKind::backward, action, step, chunk) ||
           is_done(ActionKind::backward_input, action, step, chunk);
  }

  void check(const Action& action, std::int64_t step) {
    using Kind = ActionKind;
    const int chunk = action.chunk;
    const auto needs = [&](bool is_there, std::string_view what) {
      if (!is_there) report("{} comes before {}", text_of(action, step), what);
    };
    const auto was = [&](Kind kind) { return is_done(kind, action, step, chunk); };
    if (is_of_micro_batch(action.kind)) {
      if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches || chunk < 0 ||
          chunk >= schedule_.chunks)
        report("{} is not of its {} micro-batches and {} chunks", text_of(action, step),
               schedule_.micro_batches, schedule_.chunks);
      if (was(action.kind)) report("{} comes twice", text_of(action, step));
    }
    switch (action.kind) {
      case Kind::forward:
        needs(chunk == 0 || is_done(Kind::forward, action, step, chunk - 1) || was(Kind::receive_forward),
              "what it passes on");
        weights_of_[{Kind::forward, step, action.micro_batch, chunk}] = updates_;
        break;
      case Kind::backward:
      case Kind::backward_input:
        needs(was(Kind::forward), "its forward pass");
        needs(
            chunk + 1 == schedule_.chunks || is_back(action, step, chunk + 1) || was(Kind::receive_backward),
            "the gradient that it passes on");
        check_weights(action, step);
        begin_gradients(action, step);
        break;
      case Kind::backward_weight:
        needs(was(Kind::backward_input), "its backward_input");
        // If two chunks share a matrix, the later chunk writes its gradient and the other adds to it.
        needs(!held_.contains(chunk + 1) || is_done(Kind::backward_weight, action, step, chunk + 1),
              "the backward_weight of the next chunk");
        begin_gradients(action, step);
        break;
      case Kind::send_forward:
        needs(was(Kind::forward), "the pass that makes it");
        break;
      case Kind::send_backward:
        needs(is_back(action, step, chunk), "the pass that makes it");
        break;
      case Kind::receive_forward:
      case Kind::receive_backward:
        break;
      case Kind::reduce:
        needs(num_back_[step] == num_passes(), "the last gradients");
        num_reduced_[step] += 1;
        break;
      case Kind::step:
        needs(num_reduced_[step] == 1, "one reduction");
        if (step != updates_ + 1) report("{} follows step {}", text_of(action, step), updates_);
        updates_ = step;
        break;
    }
    if (is_of_micro_batch(action.kind)) done_.insert({action.kind, step, action.micro_batch, chunk});
  }

  /// Number of backward passes of one step that contribute to gradients.
  int num_passes() const {
    const int parts = schedule_.has(ActionKind::backward_weight) ? 2 : 1;
    return schedule_.micro_batches * static_cast<int>(held_.size()) * parts;
  }
  void check_weights(const Action& action, std::int64_t step) {
    const std::int64_t then = weights_of_[{ActionKind::forward, step, action.micro_batch, action.chunk}];
    if (then != updates_ && !schedule_.tolerates_stale_weights)
      report("{} finds weights that were updated since its forward pass", text_of(action, step));
  }
  /// All steps use one buffer of gradients, so the gradients of two steps must not mix.
  void begin_gradients(const Action& action, std::int64_t step) {
    if (action.kind == ActionKind::backward && schedule_.has(ActionKind::backward_weight))
      report("{} is not divided as others are", text_of(action, step));
    if (updates_ != step - 1) report("{} mixes with the gradients of another step", text_of(action, step));
    num_back_[step] += 1;
  }
  void check_complete(std::int64_t step) {
    if (num_back_[step] != num_passes())
      report("step {} has {} backward passes, not {}", step, num_back_[step], num_passes());
    if (updates_ != step) report("step {} is not applied", step);
  }

  int rank_;
  const Schedule& schedule_;
  std::set<int> held_;
  std::vector<std::string>& problems_;
  std::set<Key> done_;
  std::map<Key, std::int64_t> weights_of_;  // by forward pass: the last update that it saw
  std::map<std::int64_t, int> num_back_, num_reduced_;
  std::int64_t updates_ = 0;  // number of steps that were applied
};

/// Matches the messages of all ranks, in the order within each channel.
class MessageCheck {
 public:
  MessageCheck(std::span<const Schedule> ranks, std::vector<std::string>& problems)
      : problems_(problems), ranks_(ranks.size()) {
    const std::int64_t steps = num_steps(ranks);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      bool is_open = false;  // whether the next message joins the group of the previous one
      for (std::int64_t step = 1; step <= steps; ++step) {
        ranks[r].for_each_action(step, step > 1, steps, [&](const Occurrence& occurrence) {
          const Action& action = ranks[r].actions[occurrence.index];
          if (is_message(action.kind)) {
            if (!is_open) ranks_[r].emplace_back();
            ranks_[r].back().push_back({action, occurrence.step});
          }
          is_open = is_message(action.kind);
        });
      }
    }
  }

  void run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) post(r);
    while (meet_once()) {
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        if (ranks_[r].empty() || open_[r] > 0) continue;
        ranks_[r].pop_front();
        post(r);
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].empty()) continue;
      const auto& [action, step] = ranks_[r].front().front();
      problems_.push_back(
          fmt::format("rank {} waits forever in {} (peer {})", r, text_of(action, step), action.peer));
    }
  }

 private:
  struct Message {
    Action action;
    std::int64_t step;
  };
  struct Channel {
    std::deque<Message> sent, received;
  };

  void post(std::size_t rank) {
    if (ranks_[rank].empty()) return;
    for (const Message& message : ranks_[rank].front()) {
      const int own = static_cast<int>(rank);
      const int peer = message.action.peer;
      if (is_sent(message.action.kind)) {
        channels_[{own, peer}].sent.push_back(message);
      } else {
        channels_[{peer, own}].received.push_back(message);
      }
      ++open_[rank];
    }
  }
  /// Takes pairs of a sent and a received message from every channel while it has both, and reports pairs
  /// that do not match. Returns false if there was no pair.
  bool meet_once() {
    bool has_met = false;
    for (auto& [ends, channel] : channels_) {
      while (!channel.sent.empty() && !channel.received.empty()) {
        const Message sent = channel.sent.front();
        const Message received = channel.received.front();
        channel.sent.pop_front();
        channel.received.pop_front();
        const bool is_forward = sent.action.kind == ActionKind::send_forward;
        const bool fits =
            received.step == sent.step && received.action.micro_batch == sent.action.micro_batch &&
            received.action.chunk == sent.action.chunk + (is_forward ? 1 : -1) &&
            received.action.kind == (is_forward ? ActionKind::receive_forward : ActionKind::receive_backward);
        if (!fits) {
          problems_.push_back(fmt::format("{} of rank {} meets {} of rank {}",
                                          text_of(sent.action, sent.step), ends.first,
                                          text_of(received.action, received.step), ends.second));
        }
        --open_[static_cast<std::size_t>(ends.first)];
        --open_[static_cast<std::size_t>(ends.second)];
        has_met = true;
      }
    }
    return has_met;
  }

  std::vector<std::string>& problems_;
  // By rank: the groups of messages that have not met, the posted group first.
  std::vector<std::deque<std::vector<Message>>> ranks_;
  std::map<std::size_t, int> open_;                  // messages of the posted group that have not met
  std::map<std::pair<int, int>, Channel> channels_;  // by sender and receiver
};

}  // namespace

std::vector<std::string> find_problems(std::span<const Schedule> ranks) {
  std::vector<std::string> problems;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    RankCheck(static_cast<int>(r), ranks[r], problems).run(num_steps(ranks));
  }
  MessageCheck(ranks, problems).run();
  return problems;
}

}  // namespace mylos
