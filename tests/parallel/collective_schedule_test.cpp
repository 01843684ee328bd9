// SPDX-License-Identifier: BSD-3-Clause
// The schedules of all ranks, executed in one process: results, and costs against textbook formulas.
#include "parallel/collectives/collective_schedule.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/collectives/schedule_cost.hpp"

namespace mylos {
namespace {

using Word = std::uint64_t;
using Words = std::vector<Word>;

constexpr std::array operations = {CommOperation::all_reduce, CommOperation::reduce_scatter,
                                   CommOperation::all_gather, CommOperation::broadcast,
                                   CommOperation::reduce,     CommOperation::all_to_all};
constexpr std::array algorithms = {Algorithm::naive, Algorithm::tree, Algorithm::ring,
                                   Algorithm::halving_doubling};
constexpr std::array sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};

bool in_place(CommOperation operation) {
  return operation == CommOperation::all_reduce || operation == CommOperation::broadcast ||
         operation == CommOperation::reduce;
}

Word mixed(Word x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

/// Element i of rank `rank` at the start: a random word, so that any mix-up is found.
Word sample(int rank, std::int64_t i) {
  return mixed(static_cast<Word>(rank) * 1000003 + static_cast<Word>(i) + 1);
}

/// How a rank's buffers lie: disjoint, or one within the other if the operation allows that.
enum class Layout { apart, overlapping };

/// One rank's buffers, and its position in its schedule.
class SimulatedRank {
 public:
  SimulatedRank(const CollectiveCall& call, Algorithm algorithm, int rank, Layout layout)
      : schedule(make_schedule(call, algorithm, rank)), scratch(size(schedule.scratch_count), 0xdead) {
    const std::int64_t all = call.count * call.size;
    const bool long_input = call.operation == CommOperation::reduce_scatter;
    const auto own = [&](std::int64_t i) { return sample(rank, i); };
    if (in_place(call.operation)) {
      memory = make(call.count, own);
      input = output = memory.data();
    } else if (call.operation == CommOperation::all_to_all) {
      memory = make(2 * all, own);
      input = memory.data();
      output = input + all;
    } else if (long_input) {
      memory = make(all + call.count, own);
      input = memory.data();
      output = input + (layout == Layout::apart ? all : rank * call.count);
    } else {
      memory = make(all + call.count, [&](std::int64_t i) {
        const std::int64_t first = layout == Layout::apart ? all : rank * call.count;
        return i >= first && i < first + call.count ? sample(rank, i - first) : 0xdead;
      });
      output = memory.data();
      input = output + (layout == Layout::apart ? all : rank * call.count);
    }
  }

  Word* at(const BufferRange& range) {
    Word* base = range.buffer == BufferName::input    ? input
                 : range.buffer == BufferName::output ? output
                                                      : scratch.data();
    return base + range.first;
  }
  bool done() const { return round == schedule.rounds.size(); }
  const CollectiveRound& current() const { return schedule.rounds[round]; }

  CollectiveSchedule schedule;
  Words memory;
  Words scratch;
  Word* input = nullptr;
  Word* output = nullptr;
  std::size_t round = 0;
  bool sent = false;
  bool received = false;
  int time = 0;   // steps until this round began
  int ended = 0;  // steps until the round's messages had passed

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  static Words make(std::int64_t n, const std::function<Word(std::int64_t)>& value) {
    Words words(size(n));
    for (std::int64_t i = 0; i < n; ++i) words[size(i)] = value(i);
    return words;
  }
};

/// All ranks. Nothing is buffered, as on the strictest backend: a message passes once its sender and its
/// receiver have both reached it, and takes one step.
class Simulation {
 public:
  using Combine = std::function<Word(Word, Word)>;

  Simulation(const CollectiveCall& call, Algorithm algorithm, Layout layout, Combine combine)
      : combine_(std::move(combine)) {
    for (int r = 0; r < call.size; ++r) ranks.emplace_back(call, algorithm, r, layout);
  }

  /// Runs the schedules. Returns whether all ranks reached the end.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (SimulatedRank& rank : ranks) moved = advance(rank) || moved;
    }
    return std::ranges::all_of(ranks, &SimulatedRank::done);
  }
  int steps() const { return std::ranges::max(ranks, {}, &SimulatedRank::time).time; }

  std::vector<SimulatedRank> ranks;

 private:
  bool advance(SimulatedRank& rank) {
    if (rank.done()) return false;
    const CollectiveRound& round = rank.current();
    bool moved = round.send && !rank.sent && pass(rank, *round.send);
    if ((round.send && !rank.sent) || (round.receive && !rank.received)) return moved;
    for (const LocalStep& step : round.local) run(rank, step);
    rank.time = std::max(rank.time, rank.ended);
    rank.sent = rank.received = false;
    ++rank.round;
    return true;
  }

  bool pass(SimulatedRank& sender, const Transfer& transfer) {
    SimulatedRank& receiver = ranks[static_cast<std::size_t>(transfer.peer)];
    if (receiver.done() || receiver.received || !receiver.current().receive) return false;
    const Transfer& expected = *receiver.current().receive;
    if (&ranks[static_cast<std::size_t>(expected.peer)] != &sender) return false;
    EXPECT_EQ(expected.range.count, transfer.range.count);
    std::copy_n(sender.at(transfer.range), transfer.range.count, receiver.at(expected.range));
    sender.sent = receiver.received = true;
    const int end = std::max(sender.time, receiver.time) + 1;
    sender.ended = std::max(sender.ended, end);
    receiver.ended = std::max(receiver.ended, end);
    return true;
  }

  void run(SimulatedRank& rank, const LocalStep& step) const {
    Word* from = rank.at(step.from);
    Word* to = rank.at(step.to);
    if (step.kind == LocalStep::Kind::copy) {
      std::copy_n(from, step.to.count, to);
    } else {
      std::transform(from, from + step.to.count, to, to, combine_);
    }
  }

  Combine combine_;
};

Word sum_of(int size, std::int64_t i) {
  Word sum = 0;
  for (int r = 0; r < size; ++r) sum += sample(r, i);
  return sum;
}

/// Element i of the result of rank `rank`.
Word expected(const CollectiveCall& call, int rank, std::int64_t i) {
  switch (call.operation) {
    case CommOperation::all_reduce:
      return sum_of(call.size, i);
    case CommOperation::reduce_scatter:
      return sum_of(call.size, rank * call.count + i);
    case CommOperation::all_gather:
      return sample(static_cast<int>(i / call.count), i % call.count);
    case CommOperation::broadcast:
      return sample(call.root, i);
    case CommOperation::reduce:
      return rank == call.root ? sum_of(call.size, i) : sample(rank, i);
    default:
      return sample(static_cast<int>(i / call.count), rank * call.count + i % call.count);
  }
}

void check(const CollectiveCall& call, Algorithm algorithm, Layout layout) {
  SCOPED_TRACE(std::string(name_of(algorithm)) + " " + std::string(name_of(call.operation)) + " of " +
               std::to_string(call.count) + " on " + std::to_string(call.size) + " ranks, root " +
               std::to_string(call.root));
  Simulation simulation(call, algorithm, layout, std::plus<>());
  ASSERT_TRUE(simulation.run()) << "ranks wait for each other";
  const bool one_part = in_place(call.operation) || call.operation == CommOperation::reduce_scatter;
  const std::int64_t count = one_part ? call.count : call.count * call.size;
  for (int r = 0; r < call.size; ++r) {
    const SimulatedRank& rank = simulation.ranks[static_cast<std::size_t>(r)];
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(rank.output[i], expected(call, r, i)) << r << ' ' << i;
    if (in_place(call.operation) || layout == Layout::overlapping) continue;
    const std::int64_t inputs =
        call.operation == CommOperation::all_gather ? call.count : call.count * call.size;
    for (std::int64_t i = 0; i < inputs; ++i) ASSERT_EQ(rank.input[i], sample(r, i)) << "input was written";
  }
}

class CollectiveSchedules : public testing::TestWithParam<Algorithm> {};

TEST_P(CollectiveSchedules, GiveTheResultOfEveryOperation) {
  for (const int size : sizes) {
    for (const std::int64_t count : {0, 1, size - 1, size, size + 1, 1000}) {
      for (const CommOperation operation : operations) {
        const bool rooted = operation == CommOperation::broadcast || operation == CommOperation::reduce;
        for (int root = 0; root < (rooted ? size : 1); ++root) {
          for (const Layout layout : {Layout::apart, Layout::overlapping})
            check({operation, size, count, root}, GetParam(), layout);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(CollectiveSchedules, ReduceInOneOrderForAllRanks) {
  // Commutative, as the reductions are, but far from associative.
  const auto ordered = [](Word a, Word b) { return mixed(a + b); };
  for (const int size : sizes) {
    Simulation simulation({CommOperation::all_reduce, size, 1000}, GetParam(), Layout::apart, ordered);
    ASSERT_TRUE(simulation.run());
    for (const SimulatedRank& rank : simulation.ranks)
      ASSERT_EQ(rank.memory, simulation.ranks[0].memory) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, CollectiveSchedules, testing::ValuesIn(algorithms),
                         [](const auto& algorithm) { return std::string(name_of(algorithm.param)); });

/// The costs of all ranks for a vector of `bytes` bytes (all parts together).
class Costs {
 public:
  Costs(CommOperation operation, Algorithm algorithm, int size, std::int64_t bytes)
      : simulation_({operation, size, in_place(operation) ? bytes : bytes / size}, algorithm, Layout::apart,
                    std::plus<>()) {
    EXPECT_TRUE(simulation_.run());
  }
  /// Steps until the last rank has finished.
  int steps() const { return simulation_.steps(); }
  ScheduleCost rank(int r) const {
    return cost_of(simulation_.ranks[static_cast<std::size_t>(r)].schedule, DType::uint8);
  }
  std::int64_t sent(int r) const { return static_cast<std::int64_t>(rank(r).bytes_sent); }
  std::int64_t received(int r) const { return static_cast<std::int64_t>(rank(r).bytes_received); }
  std::int64_t scratch(int r) const { return static_cast<std::int64_t>(rank(r).scratch_bytes); }

 private:
  Simulation simulation_;
};

int ceil_log2(int value) {
  int log = 0;
  while ((1 << log) < value) ++log;
  return log;
}

/// The number of elements, divisible by every number of ranks and by the power of two below it.
constexpr std::int64_t n = 16 * 9 * 5 * 7;

TEST(CollectiveCosts, NaiveMovesEverythingThroughOneRank) {
  for (const int k : sizes) {
    SCOPED_TRACE(k);
    const Costs reduce(CommOperation::reduce, Algorithm::naive, k, n);
    const Costs broadcast(CommOperation::broadcast, Algorithm::naive, k, n);
    const Costs all_reduce(CommOperation::all_reduce, Algorithm::naive, k, n);
    const Costs all_gather(CommOperation::all_gather, Algorithm::naive, k, n);
    const Costs all_to_all(CommOperation::all_to_all, Algorithm::naive, k, n);
    EXPECT_EQ(reduce.received(0), (k - 1) * n);
    EXPECT_EQ(broadcast.sent(0), (k - 1) * n);
    EXPECT_EQ(all_reduce.received(0), (k - 1) * n);
    EXPECT_EQ(all_reduce.sent(0), (k - 1) * n);
    EXPECT_EQ(all_gather.received(0), (k - 1) * n / k);
    EXPECT_EQ(all_gather.sent(0), (k - 1) * n);
    EXPECT_EQ(all_to_all.received(0), (k - 1) * n);
    EXPECT_EQ(all_to_all.sent(0), (k - 1) * n);
    EXPECT_EQ(reduce.steps(), k - 1);
    EXPECT_EQ(broadcast.steps(), k - 1);
    EXPECT_EQ(all_reduce.steps(), 2 * (k - 1));
    EXPECT_EQ(all_to_all.steps(), (k - 1) * (k + 1));
    EXPECT_EQ(all_reduce.scratch(0), k > 1 ? n : 0);
    for (int r = 1; r < k; ++r) {
      EXPECT_EQ(all_reduce.sent(r), n);
      EXPECT_EQ(all_reduce.received(r), n);
      EXPECT_EQ(all_reduce.scratch(r), 0);
    }
  }
}

TEST(CollectiveCosts, TreesTakeLogarithmicallyManySteps) {
  for (const int k : sizes) {
    SCOPED_TRACE(k);
    const int log = ceil_log2(k);
    EXPECT_EQ(Costs(CommOperation::broadcast, Algorithm::tree, k, n).steps(), log);
    EXPECT_EQ(Costs(CommOperation::reduce, Algorithm::tree, k, n).steps(), log);
    EXPECT_EQ(Costs(CommOperation::all_reduce, Algorithm::tree, k, n).steps(), 2 * log);
    EXPECT_EQ(Costs(CommOperation::reduce_scatter, Algorithm::tree, k, n).steps(), 2 * log);
    EXPECT_EQ(Costs(CommOperation::all_gather, Algorithm::tree, k, n).steps(), 2 * log);
    EXPECT_EQ(Costs(CommOperation::all_to_all, Algorithm::tree, k, n).steps(), log);
    const Costs all_reduce(CommOperation::all_reduce, Algorithm::tree, k, n);
    EXPECT_EQ(all_reduce.sent(0), log * n);
    EXPECT_EQ(all_reduce.received(0), log * n);
    for (int r = 0; r < k; ++r) {
      EXPECT_LE(all_reduce.sent(r), std::max(log, 1) * n);
      EXPECT_LE(all_reduce.scratch(r), n);
      EXPECT_LE(Costs(CommOperation::all_to_all, Algorithm::tree, k, n).sent(r), log * n / 2);
    }
  }
}

TEST(CollectiveCosts, RingsMoveTheLeastBytesThroughEveryRank) {
  for (const int k : sizes) {
    SCOPED_TRACE(k);
    const Costs all_reduce(CommOperation::all_reduce, Algorithm::ring, k, n);
    EXPECT_EQ(all_reduce.steps(), 2 * (k - 1));
    EXPECT_EQ(Costs(CommOperation::reduce_scatter, Algorithm::ring, k, n).steps(), k - 1);
    EXPECT_EQ(Costs(CommOperation::all_gather, Algorithm::ring, k, n).steps(), k - 1);
    EXPECT_EQ(Costs(CommOperation::all_to_all, Algorithm::ring, k, n).steps(), k - 1);
    EXPECT_EQ(Costs(CommOperation::broadcast, Algorithm::ring, k, n).steps(), 2 * (k - 1));
    EXPECT_EQ(Costs(CommOperation::reduce, Algorithm::ring, k, n).steps(), 2 * (k - 1));
    for (int r = 0; r < k; ++r) {
      EXPECT_EQ(all_reduce.sent(r), 2 * (k - 1) * n / k);
      EXPECT_EQ(all_reduce.received(r), 2 * (k - 1) * n / k);
      EXPECT_EQ(all_reduce.scratch(r), k > 1 ? 2 * n / k : 0);
      for (const CommOperation operation :
           {CommOperation::reduce_scatter, CommOperation::all_gather, CommOperation::all_to_all}) {
        const Costs costs(operation, Algorithm::ring, k, n);
        EXPECT_EQ(costs.sent(r), (k - 1) * n / k);
        EXPECT_EQ(costs.received(r), (k - 1) * n / k);
      }
      EXPECT_LE(Costs(CommOperation::broadcast, Algorithm::ring, k, n).sent(r), n);
      EXPECT_LE(Costs(CommOperation::reduce, Algorithm::ring, k, n).sent(r), n);
    }
  }
}

TEST(CollectiveCosts, HalvingAndDoublingHasTheBytesOfTheRingInLogarithmicallyManySteps) {
  for (const int k : sizes) {
    SCOPED_TRACE(k);
    const bool power = (k & (k - 1)) == 0;
    const int log = power ? ceil_log2(k) : ceil_log2(k) - 1;
    const std::int64_t p = 1 << log;
    const std::int64_t pairs = k - p;
    const Costs all_reduce(CommOperation::all_reduce, Algorithm::halving_doubling, k, n);
    const Costs reduce_scatter(CommOperation::reduce_scatter, Algorithm::halving_doubling, k, n);
    const Costs all_gather(CommOperation::all_gather, Algorithm::halving_doubling, k, n);
    EXPECT_EQ(all_reduce.steps(), 2 * log + (power ? 0 : 2));
    EXPECT_EQ(reduce_scatter.steps(), log + (power ? 0 : 2));
    EXPECT_EQ(all_gather.steps(), log + (power ? 0 : 2));
    EXPECT_EQ(Costs(CommOperation::broadcast, Algorithm::halving_doubling, k, n).steps(),
              2 * log + (power ? 0 : 1));
    EXPECT_EQ(Costs(CommOperation::reduce, Algorithm::halving_doubling, k, n).steps(),
              2 * log + (power ? 0 : 1));
    for (int r = 0; r < k; ++r) {
      const bool paired = r < 2 * pairs;
      const bool folded = paired && r % 2 == 1;
      const std::int64_t halving = (p - 1) * n / p;
      EXPECT_EQ(all_reduce.sent(r), folded ? n : 2 * halving + (paired ? n : 0));
      EXPECT_EQ(all_reduce.received(r), folded ? n : 2 * halving + (paired ? n : 0));
      EXPECT_EQ(all_reduce.scratch(r), folded || k == 1 ? 0 : paired ? n : n / 2);
      if (folded) {
        EXPECT_EQ(reduce_scatter.sent(r), n);
        EXPECT_EQ(reduce_scatter.received(r), n / k);
        EXPECT_EQ(all_gather.sent(r), n / k);
        EXPECT_EQ(all_gather.received(r), n);
      } else {
        // All blocks except the rank's own and its partner's, if it has one; with a partner, also one fold.
        const std::int64_t others = n - (paired ? 2 : 1) * n / k;
        EXPECT_EQ(reduce_scatter.sent(r), others + (paired ? n / k : 0));
        EXPECT_EQ(all_gather.received(r), others + (paired ? n / k : 0));
      }
      if (power) {
        EXPECT_EQ(reduce_scatter.received(r), (k - 1) * n / k);
        EXPECT_EQ(all_gather.sent(r), (k - 1) * n / k);
      }
    }
  }
}

}  // namespace
}  // namespace mylos
