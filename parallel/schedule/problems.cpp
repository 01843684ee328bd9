// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/problems.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "parallel/schedule/simulation.hpp"

namespace mylos {

namespace {

/// Number of steps to check; without steps that overlap, all are the same.
std::int64_t num_steps(std::span<const Schedule> ranks) {
  int ahead = 0;
  for (const Schedule& schedule : ranks) ahead = std::max(ahead, schedule.ahead());
  return ahead == 0 ? 1 : 3 + ahead;
}

/// An action of a step as text: "backward 2 of chunk 1, step 3".
std::string text_of(const Action& action, std::int64_t step) {
  if (!is_of_micro_batch(action.kind)) return fmt::format("{}, step {}", name_of(action.kind), step);
  return fmt::format("{} {} of chunk {}, step {}", name_of(action.kind), action.micro_batch, action.chunk,
                     step);
}

/// The first problems that were reported.
class Problems {
 public:
  template <class... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    if (!is_full()) texts_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool is_full() const { return texts_.size() >= 20; }
  bool empty() const { return texts_.empty(); }
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  std::vector<std::string> texts_;
};

/// Checks that each micro-batch passes through each chunk on one rank.
void check_replicas(std::span<const Schedule> ranks, Problems& problems) {
  const Schedule& first = ranks.front();
  std::map<std::pair<int, int>, std::size_t> owners;  // by chunk and micro-batch
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const Action& action : ranks[r].actions) {
      if (action.kind != ActionKind::forward) continue;
      const auto [owner, is_new] = owners.try_emplace({action.chunk, action.micro_batch}, r);
      if (!is_new && owner->second != r)
        problems.report("{} is on ranks {} and {}", text_of(action, 1), owner->second, r);
    }
  }
  for (int chunk = 0; chunk < first.chunks; ++chunk) {
    for (int m = 0; m < first.micro_batches; ++m) {
      if (!owners.contains({chunk, m}))
        problems.report("{} is on no rank", text_of({ActionKind::forward, m, chunk}, 1));
    }
  }
}

/// Checks that the schedules are of one model and step, and that each chunk lies on one stage.
void check_places(std::span<const Schedule> ranks, Problems& problems) {
  const Schedule& first = ranks.front();
  if (!first.rules.empty()) return check_replicas(ranks, problems);
  std::vector<int> stage_of(static_cast<std::size_t>(first.chunks), -1);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].micro_batches != first.micro_batches || ranks[r].chunks != first.chunks) {
      problems.report("rank {} has {} micro-batches and {} chunks, rank 0 {} and {}", r,
                      ranks[r].micro_batches, ranks[r].chunks, first.micro_batches, first.chunks);
    }
    for (const int chunk : ranks[r].held_chunks()) {
      if (chunk < 0 || chunk >= first.chunks) continue;
      int& stage = stage_of[static_cast<std::size_t>(chunk)];
      if (stage >= 0) problems.report("chunk {} is on stages {} and {}", chunk, stage, r);
      stage = static_cast<int>(r);
    }
  }
  for (std::size_t chunk = 0; chunk < stage_of.size(); ++chunk) {
    if (stage_of[chunk] < 0) problems.report("chunk {} is on no stage", chunk);
  }
}

/// Checks one rank's schedule alone.
class RankCheck {
 public:
  RankCheck(int rank, const Schedule& schedule, bool is_tied, std::int64_t steps, Problems& problems)
      : rank_(rank),
        schedule_(schedule),
        is_tied_(is_tied),
        is_divided_(schedule.has(ActionKind::backward_weight)),
        steps_(steps),
        problems_(problems),
        held_(static_cast<std::size_t>(schedule.chunks)),
        done_(num_keys()),
        weights_of_(num_keys()),
        num_back_(static_cast<std::size_t>(steps) + 1),
        num_reduced_(num_back_.size()) {
    for (const int chunk : schedule.held_chunks()) {
      if (chunk >= 0 && chunk < schedule.chunks) held_[static_cast<std::size_t>(chunk)] = true;
    }
    is_own_.assign(static_cast<std::size_t>(schedule.micro_batches), schedule.rules.empty());
    for (const Action& action : schedule.actions) {
      const bool is_valid = action.micro_batch >= 0 && action.micro_batch < schedule.micro_batches;
      if (action.kind == ActionKind::forward && is_valid)
        is_own_[static_cast<std::size_t>(action.micro_batch)] = true;
    }
    num_passes_ = std::ranges::count(is_own_, true) * std::ranges::count(held_, true) * (is_divided_ ? 2 : 1);
  }

  void run() {
    for (std::int64_t step = 1; step <= steps_ && !problems_.is_full(); ++step) {
      schedule_.for_each_action(step, step > 1, steps_, [&](const Occurrence& occurrence) {
        check(schedule_.actions[occurrence.index], occurrence.step);
      });
      check_complete(step);
    }
  }

 private:
  template <class... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    if (!problems_.is_full())
      problems_.report("rank {}: {}", rank_, fmt::format(format, std::forward<Args>(args)...));
  }

  std::size_t num_keys() const {
    return static_cast<std::size_t>(steps_) * static_cast<std::size_t>(schedule_.chunks) *
           static_cast<std::size_t>(schedule_.micro_batches);
  }
  /// The place of a micro-batch of a step in a chunk.
  std::size_t key(std::int64_t step, int chunk, int micro_batch) const {
    const std::size_t row = static_cast<std::size_t>(step - 1) * static_cast<std::size_t>(schedule_.chunks) +
                            static_cast<std::size_t>(chunk);
    return row * static_cast<std::size_t>(schedule_.micro_batches) + static_cast<std::size_t>(micro_batch);
  }
  static std::uint8_t bit(ActionKind kind) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(kind));
  }
  bool is_done(ActionKind kind, const Action& action, std::int64_t step, int chunk) const {
    return (done_[key(step, chunk, action.micro_batch)] & bit(kind)) != 0;
  }
  bool is_back(const Action& action, std::int64_t step, int chunk) const {
    return is_done(ActionKind::backward, action, step, chunk) ||
           is_done(ActionKind::backward_input, action, step, chunk);
  }
  bool is_held(int chunk) const { return chunk < schedule_.chunks && held_[static_cast<std::size_t>(chunk)]; }

  void check(const Action& action, std::int64_t step) {
    using Kind = ActionKind;
    const int chunk = action.chunk;
    const int last = schedule_.chunks - 1;
    const auto needs = [&](bool is_there, std::string_view what) {
      if (!is_there) report("{} comes before {}", text_of(action, step), what);
    };
    const auto was = [&](Kind kind) { return is_done(kind, action, step, chunk); };
    if (is_of_micro_batch(action.kind)) {
      if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches || chunk < 0 ||
          chunk >= schedule_.chunks) {
        report("{} is not of its {} micro-batches and {} chunks", text_of(action, step),
               schedule_.micro_batches, schedule_.chunks);
        return;
      }
      if (was(action.kind)) report("{} comes twice", text_of(action, step));
    }
    switch (action.kind) {
      case Kind::forward:
        needs(chunk == 0 || is_done(Kind::forward, action, step, chunk - 1) || was(Kind::receive_forward),
              "what it passes on");
        weights_of_[key(step, chunk, action.micro_batch)] = updates_;
        check_version(action, step);
        break;
      case Kind::backward:
      case Kind::backward_input:
        if (was(action.kind == Kind::backward ? Kind::backward_input : Kind::backward))
          report("{} is a second backward pass, one of which is divided", text_of(action, step));
        needs(was(Kind::forward), "its forward pass");
        needs(
            chunk + 1 == schedule_.chunks || is_back(action, step, chunk + 1) || was(Kind::receive_backward),
            "the gradient that it passes on");
        check_weights(action, step);
        check_version(action, step);
        begin_gradients(action, step);
        break;
      case Kind::backward_weight:
        needs(was(Kind::backward_input), "its backward_input");
        needs(!is_tied_ || chunk > 0 || last == 0 || !is_held(last) ||
                  is_done(Kind::backward_weight, action, step, last),
              "the backward_weight of the last chunk, which shares a matrix");
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
        needs(num_back_[static_cast<std::size_t>(step)] == num_passes_, "the last gradients");
        num_reduced_[static_cast<std::size_t>(step)] += 1;
        break;
      case Kind::step:
        needs(num_reduced_[static_cast<std::size_t>(step)] == 1, "one reduction");
        // An asynchronous pipeline updates chunk by chunk.
        if (step != updates_ + 1 && (schedule_.rules.empty() || step != updates_))
          report("{} follows step {}", text_of(action, step), updates_);
        updates_ = step;
        break;
    }
    if (is_of_micro_batch(action.kind)) done_[key(step, chunk, action.micro_batch)] |= bit(action.kind);
  }

  void check_weights(const Action& action, std::int64_t step) {
    const std::int64_t then = weights_of_[key(step, action.chunk, action.micro_batch)];
    if (then != updates_ && schedule_.rules.empty())
      report("{} finds weights that were updated since its forward pass", text_of(action, step));
  }
  /// The version that the chunk's rule gives is one of those that are kept.
  void check_version(const Action& action, std::int64_t step) {
    if (schedule_.rules.empty()) return;
    const VersionRule& rule = schedule_.rules[static_cast<std::size_t>(action.chunk)];
    const std::int64_t own = (step - 1) * schedule_.micro_batches + action.micro_batch;
    const std::int64_t version = rule.version_of(own);
    if (version > updates_ || version <= updates_ - rule.versions()) {
      report("{} needs version {} of the weights, of which {} to {} are kept", text_of(action, step), version,
             std::max<std::int64_t>(0, updates_ - rule.versions() + 1), updates_);
    }
  }
  /// Steps use the sets of gradients in turn, so the gradients of two steps must not mix.
  void begin_gradients(const Action& action, std::int64_t step) {
    if (action.kind == ActionKind::backward && is_divided_)
      report("{} is not divided as others are", text_of(action, step));
    if (updates_ < step - schedule_.gradient_sets || updates_ >= step)
      report("{} mixes with the gradients of another step", text_of(action, step));
    num_back_[static_cast<std::size_t>(step)] += 1;
  }
  void check_complete(std::int64_t step) {
    using Kind = ActionKind;
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      for (int m = 0; is_held(chunk) && m < schedule_.micro_batches; ++m) {
        if (!is_own_[static_cast<std::size_t>(m)]) continue;
        const auto needs = [&](Kind kind) {
          const Action pass{kind, m, chunk};
          if (!is_done(kind, pass, step, chunk)) report("{} is missing", text_of(pass, step));
        };
        needs(Kind::forward);
        needs(is_divided_ ? Kind::backward_input : Kind::backward);
        if (is_divided_) needs(Kind::backward_weight);
      }
    }
    const std::int64_t num_back = num_back_[static_cast<std::size_t>(step)];
    if (num_back != num_passes_)
      report("step {} has {} backward passes, not {}", step, num_back, num_passes_);
    if (updates_ != step) report("step {} is not applied", step);
  }

  int rank_;
  const Schedule& schedule_;
  bool is_tied_;
  bool is_divided_;
  std::int64_t steps_;
  Problems& problems_;
  std::vector<bool> held_;                // by chunk
  std::vector<bool> is_own_;              // by micro-batch: of a replica, not all are
  std::vector<std::uint8_t> done_;        // by `key`: a bit for each kind
  std::vector<std::int64_t> weights_of_;  // by `key`: the last update that the forward pass saw
  std::int64_t num_passes_ = 0;           // of a step's backward passes, those that contribute to gradients
  std::vector<std::int64_t> num_back_, num_reduced_;  // by step
  std::int64_t updates_ = 0;                          // number of steps that were applied
};

/// Matches the messages of all ranks, in the order within each channel.
class MessageCheck {
 public:
  MessageCheck(std::span<const Schedule> ranks, std::int64_t steps, Problems& problems)
      : schedules_(ranks),
        steps_(steps),
        problems_(problems),
        ranks_(ranks.size()),
        channels_(ranks.size() * ranks.size()) {
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks_[r].period = 1 - ranks[r].ahead();
  }

  void run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) post(r);
    while (!free_.empty()) {
      const std::size_t rank = free_.back();
      free_.pop_back();
      post(rank);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].open == 0) continue;
      const auto& [action, step] = ranks_[r].first;
      problems_.report("rank {} waits forever in {} (peer {})", r, text_of(action, step), action.peer);
    }
  }

 private:
  struct Message {
    Action action;
    std::int64_t step = 0;
  };
  /// The messages of one direction between two ranks that were posted and have not met: all of one side.
  struct Channel {
    std::vector<Message> posted;
    std::size_t met = 0;  // of `posted`
  };
  struct Rank {
    std::int64_t period = 0;  // of the next action
    std::size_t index = 0;    // of the next action
    int open = 0;             // messages of the posted group that have not met
    Message first;            // of the posted group
  };

  /// Posts the next group of a rank's messages.
  void post(std::size_t r) {
    Rank& rank = ranks_[r];
    for (; rank.period <= steps_; ++rank.period, rank.index = 0) {
      for (const std::vector<Action>& actions = schedules_[r].actions; rank.index < actions.size();
           ++rank.index) {
        const Action& action = actions[rank.index];
        const std::int64_t step = rank.period + action.ahead;
        if (step < 1 || step > steps_) continue;
        if (is_message(action.kind)) {
          if (rank.open == 0) {
            rank.first = {action, step};
            rank.open = 1;  // until all messages of the group are posted
          }
          ++rank.open;
          post(r, {action, step});
        } else if (rank.open > 0) {
          close_one(r);
          return;
        }
      }
    }
    if (rank.open > 0) close_one(r);
  }
  void post(std::size_t r, const Message& message) {
    const auto peer = static_cast<std::size_t>(message.action.peer);
    if (peer >= ranks_.size()) return;  // waits forever
    const bool is_send = is_sent(message.action.kind);
    Channel& channel = channels_[is_send ? r * ranks_.size() + peer : peer * ranks_.size() + r];
    if (channel.met == channel.posted.size() || is_sent(channel.posted.back().action.kind) == is_send) {
      channel.posted.push_back(message);
      return;
    }
    const Message other = channel.posted[channel.met++];
    if (channel.met == channel.posted.size()) {
      channel.posted.clear();
      channel.met = 0;
    }
    if (is_send) {
      compare(message, r, other, peer);
    } else {
      compare(other, peer, message, r);
    }
    close_one(r);
    close_one(peer);
  }
  void close_one(std::size_t r) {
    if (--ranks_[r].open == 0) free_.push_back(r);
  }
  void compare(const Message& sent, std::size_t sender, const Message& received, std::size_t receiver) {
    const bool is_forward = sent.action.kind == ActionKind::send_forward;
    const bool fits =
        received.step == sent.step && received.action.micro_batch == sent.action.micro_batch &&
        received.action.chunk == sent.action.chunk + (is_forward ? 1 : -1) &&
        received.action.kind == (is_forward ? ActionKind::receive_forward : ActionKind::receive_backward);
    if (!fits && !problems_.is_full()) {
      problems_.report("{} of rank {} meets {} of rank {}", text_of(sent.action, sent.step), sender,
                       text_of(received.action, received.step), receiver);
    }
  }

  std::span<const Schedule> schedules_;
  std::int64_t steps_;
  Problems& problems_;
  std::vector<Rank> ranks_;
  std::vector<Channel> channels_;  // by sender and receiver
  std::vector<std::size_t> free_;  // ranks whose posted messages have met
};

}  // namespace

std::vector<std::string> find_problems(std::span<const Schedule> ranks, bool is_tied) {
  Problems problems;
  const std::int64_t steps = num_steps(ranks);
  check_places(ranks, problems);
  for (std::size_t r = 0; r < ranks.size(); ++r)
    RankCheck(static_cast<int>(r), ranks[r], is_tied, steps, problems).run();
  if (problems.empty()) {
    const std::vector<Schedule> played =
        unrolled({ranks.begin(), ranks.end()}, 4 * static_cast<int>(ranks.size()));
    if (const auto stuck = simulate(played).stuck) {
      problems.report("rank {} waits forever for the input of {}", stuck->stage,
                      text_of(played[stuck->stage].actions[stuck->index], 1));
    }
  }
  MessageCheck(ranks, steps, problems).run();
  return problems.take();
}

}  // namespace mylos
