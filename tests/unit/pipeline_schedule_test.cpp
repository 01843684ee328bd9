// SPDX-License-Identifier: BSD-3-Clause
// Schedules of several stages: their figures in a simulation, their messages, their files and their excerpts.
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "parallel/schedule/messages.hpp"
#include "parallel/schedule/problems.hpp"
#include "parallel/schedule/schedule_file.hpp"
#include "parallel/schedule/simulation.hpp"
#include "tests/support/seed.hpp"

namespace mylos {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using enum ActionKind;

const ScheduleKind& kind(std::string_view name) {
  return **std::ranges::find_if(schedules(), [&](const ScheduleKind* one) { return one->name == name; });
}

/// Calls visit(kind, scope) for the schedules whose figures have a formula.
void for_each_schedule(const auto& visit) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
      ScheduleScope scope{.micro_batches = micro_batches, .stages = stages};
      visit(kind("gpipe"), scope);
      visit(kind("1f1b"), scope);
      if (micro_batches % stages != 0) continue;
      for (scope.chunks = 2; scope.chunks <= 4; ++scope.chunks) visit(kind("interleaved"), scope);
    }
  }
}

std::string text_of(const ScheduleKind& kind, const ScheduleScope& scope) {
  return fmt::format("{}, {} micro-batches, {} stages, {} chunks", kind.name, scope.micro_batches,
                     scope.stages, scope.chunks);
}

class Random {
 public:
  /// A number from `least` to `most`.
  int number(int least, int most) { return std::uniform_int_distribution(least, most)(engine_); }
  const auto& one_of(const auto& all) {
    return all[static_cast<std::size_t>(number(0, static_cast<int>(all.size()) - 1))];
  }
  std::vector<PassTimes> times(int chunks) {
    std::uniform_real_distribution<double> time(0.0, 1.0);
    std::vector<PassTimes> times;
    for (int chunk = 0; chunk < chunks; ++chunk)
      times.push_back({.forward = time(engine_), .input = time(engine_), .weight = time(engine_)});
    return times;
  }
  void shuffle(auto& all) { std::ranges::shuffle(all, engine_); }

 private:
  std::mt19937 engine_{test::seed_of_tests()};
};

TEST(PipelineSchedules, HaveTheFiguresOfTheirStatements) {
  for_each_schedule([](const ScheduleKind& kind, const ScheduleScope& scope) {
    SCOPED_TRACE(text_of(kind, scope));
    const int p = scope.stages;
    const int m = scope.micro_batches;
    const int v = scope.chunks;
    const Simulation simulation = simulate(kind.make(scope));
    EXPECT_FALSE(simulation.stuck);
    EXPECT_EQ(simulation.makespan, 3 * (v * m + p - 1));
    for (int s = 0; s < p; ++s) {
      const auto stage = static_cast<std::size_t>(s);
      EXPECT_EQ(simulation.stages[stage].busy, 3 * v * m);
      EXPECT_NEAR(simulation.idle_share(stage), (p - 1.0) / (v * m + p - 1.0), 1e-12);
      int activations = m;
      if (kind.name == std::string_view("1f1b")) activations = std::min(p - s, m);
      if (kind.name == std::string_view("interleaved"))
        activations = std::min(2 * (p - 1 - s) + (v - 1) * p + 1, v * m);
      EXPECT_EQ(simulation.stages[stage].activations, activations);
    }
  });
}

TEST(PipelineSchedules, HaveNoProblemWithMessages) {
  Random random;
  for_each_schedule([&](const ScheduleKind& kind, ScheduleScope scope) {
    SCOPED_TRACE(text_of(kind, scope));
    ASSERT_THAT(find_problems(with_messages(kind.make(scope))), IsEmpty());
    scope.times = random.times(scope.num_chunks());
    ASSERT_THAT(find_problems(with_messages(kind.make(scope), scope.times)), IsEmpty());
  });
}

/// The gradients of a chunk add up in the order of its micro-batches.
TEST(PipelineSchedules, KeepTheOrderOfMicroBatches) {
  for_each_schedule([](const ScheduleKind& kind, const ScheduleScope& scope) {
    for (const Schedule& schedule : kind.make(scope)) {
      std::vector<int> next(static_cast<std::size_t>(schedule.chunks));
      for (const Action& action : schedule.actions) {
        if (!is_backward(action.kind)) continue;
        ASSERT_EQ(action.micro_batch, next[static_cast<std::size_t>(action.chunk)]++);
      }
    }
  });
}

/// Calls visit(kind, scope, schedules with messages and rules) for asynchronous pipelines.
void for_each_asynchronous(const auto& visit) {
  ParamValues values;
  for (const bool vertical : {false, true}) {
    values.set("parallel.vertical_sync", vertical);
    for (const char* name : {"pipedream", "pipedream_2bw"}) {
      if (vertical && name == std::string_view("pipedream_2bw")) continue;
      for (int stages = 2; stages <= 8; ++stages) {
        for (int micro_batches = 1; micro_batches <= 32; ++micro_batches) {
          for (const int replicas : {1, 2, 3}) {
            if (micro_batches % replicas != 0) continue;
            const ScheduleScope scope{
                .micro_batches = micro_batches,
                .stages = stages,
                .replicas = std::vector<int>(static_cast<std::size_t>(stages), replicas),
                .values = &values};
            const int delay = replicas == 1 ? stages - 1 : stages * replicas;
            if (name == std::string_view("pipedream_2bw") && micro_batches < delay) continue;
            std::vector<Schedule> schedules = kind(name).make(scope);
            for (Schedule& schedule : schedules) schedule.rules = kind(name).rules(scope);
            visit(kind(name), scope, schedules);
          }
        }
      }
    }
  }
}

/// After the startup no stage waits: K micro-batches take 3 (K + p - 1), and each 3 in the steady state.
TEST(AsynchronousPipelines, HaveNoBubble) {
  for_each_asynchronous(
      [](const ScheduleKind& kind, const ScheduleScope& scope, const std::vector<Schedule>& schedules) {
        SCOPED_TRACE(text_of(kind, scope));
        const int replicas = scope.replicas.front();
        const std::vector<Schedule> played = unrolled(schedules, 40 * replicas);
        const int k = played.front().micro_batches / replicas;
        const Simulation simulation = simulate(played);
        ASSERT_FALSE(simulation.stuck);
        EXPECT_EQ(simulation.makespan, 3 * (k + scope.stages - 1));
        for (std::size_t stage = 0; stage < played.size(); ++stage) {
          const int in_flight = scope.stages - static_cast<int>(stage) / replicas;
          EXPECT_EQ(simulation.stages[stage].activations, std::min(in_flight, k));
          double before = -1.0;
          for (std::size_t i = 0; i < played[stage].actions.size(); ++i) {
            const Action& action = played[stage].actions[i];
            if (action.kind != backward || action.micro_batch < scope.stages * replicas) continue;
            const double end = simulation.stages[stage].actions[i].end;
            if (before >= 0.0 && end - before != 3.0) FAIL() << end - before;
            before = end;
          }
        }
      });
}

/// Also at the beginning and end of runs, and without tags and buffers.
TEST(AsynchronousPipelines, HaveNoProblemWithMessages) {
  for_each_asynchronous(
      [](const ScheduleKind& kind, const ScheduleScope& scope, const std::vector<Schedule>& schedules) {
        SCOPED_TRACE(text_of(kind, scope));
        ASSERT_THAT(find_problems(with_messages(schedules)), IsEmpty());
      });
}

/// Replicas that balance the stages keep each other busy, and their messages meet.
TEST(AsynchronousPipelines, KeepUnequalReplicasBusy) {
  int pipelines = 0;
  std::vector<int> replicas;
  const std::function<void(int)> visit = [&](int left) {
    if (replicas.size() >= 2) {
      int unit = 1;
      for (const int own : replicas) unit = std::lcm(unit, own);
      for (const int steps : {1, 2, 3}) {
        const ScheduleScope scope{.micro_batches = unit * steps,
                                  .stages = static_cast<int>(replicas.size()),
                                  .replicas = replicas,
                                  .values = nullptr};
        std::vector<Schedule> schedules = kind("pipedream").make(scope);
        for (Schedule& schedule : schedules) schedule.rules = kind("pipedream").rules(scope);
        SCOPED_TRACE(testing::PrintToString(replicas) + ", A = " + std::to_string(scope.micro_batches));
        ASSERT_THAT(find_problems(with_messages(schedules)), IsEmpty());
        // A stage of r replicas has r times the work, so that each micro-batch takes 3.
        std::vector<PassTimes> times;
        for (const int own : replicas)
          times.push_back({.forward = 1.0 * own, .input = 1.0 * own, .weight = 1.0 * own});
        const std::vector<Schedule> played = unrolled(schedules, 60 * unit);
        const Simulation simulation = simulate(played, times);
        ASSERT_FALSE(simulation.stuck);
        // From one unit of micro-batches, in the steady state, to the same place in another.
        const auto end_of = [&](int micro_batch) {
          for (std::size_t i = 0; i < played.front().actions.size(); ++i) {
            const Action& action = played.front().actions[i];
            if (action.kind == backward && action.micro_batch == micro_batch)
              return simulation.stages.front().actions[i].end;
          }
          return -1.0;
        };
        EXPECT_NEAR((end_of(40 * unit) - end_of(20 * unit)) / (20.0 * unit), 3.0, 1e-9);
        ++pipelines;
      }
    }
    if (replicas.size() == 4) return;
    for (int own = 1; own <= left; ++own) {
      replicas.push_back(own);
      visit(left - own);
      replicas.pop_back();
    }
  };
  visit(8);
  EXPECT_EQ(pipelines, 3 * 154);
}

/// A version that is kept too briefly or does not exist yet is found.
TEST(AsynchronousPipelines, FindVersionsThatAreNotKept) {
  const ScheduleScope scope{.micro_batches = 2, .stages = 4};
  for (const int wrong : {-1, 3}) {
    std::vector<Schedule> schedules = kind("pipedream").make(scope);
    for (Schedule& schedule : schedules) {
      schedule.rules = kind("pipedream").rules(scope);
      for (VersionRule& rule : schedule.rules) rule.delay = std::max(0, rule.delay - (wrong < 0 ? 1 : 0));
      if (wrong > 0) schedule.rules.front().micro_batches = 1;
    }
    EXPECT_THAT(find_problems(with_messages(schedules)), Contains(HasSubstr("of the weights, of which")));
  }
}

TEST(PipelineSchedules, InterleavedNeedsMultiplesOfTheStages) {
  const auto message = [](int micro_batches) {
    try {
      kind("interleaved").make({.micro_batches = micro_batches, .stages = 4, .chunks = 2});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(8), "");
  EXPECT_THAT(message(6), HasSubstr("not 6; 4 or 8 would work"));
  EXPECT_THAT(message(3), HasSubstr("not 3; 4 would work"));
}

Schedule of(std::vector<Action> actions, int micro_batches, int chunks) {
  actions.insert(actions.end(), {{reduce}, {step}});
  return {.actions = std::move(actions), .micro_batches = micro_batches, .chunks = chunks};
}

TEST(Simulation, PlaysPassesOfDifferentTimes) {
  const std::vector<Schedule> stages = {
      of({{forward, 0, 0}, {forward, 1, 0}, {backward, 0, 0}, {backward, 1, 0}}, 2, 2),
      of({{forward, 0, 1},
          {backward_input, 0, 1},
          {forward, 1, 1},
          {backward_weight, 0, 1},
          {backward, 1, 1}},
         2, 2)};
  const std::vector<PassTimes> times = {{.forward = 2, .input = 3, .weight = 4},
                                        {.forward = 1, .input = 5, .weight = 6}};
  const auto ends = [](const Simulation& simulation, std::size_t stage) {
    std::vector<double> all;
    for (const auto& [begin, end] : simulation.stages[stage].actions) all.push_back(end);
    return all;
  };
  const Simulation simulation = simulate(stages, times);
  EXPECT_THAT(ends(simulation, 0), ElementsAre(2, 4, 15, 33, 33, 33));
  EXPECT_THAT(ends(simulation, 1), ElementsAre(3, 8, 9, 15, 26, 26, 26));
  EXPECT_EQ(simulation.makespan, 33);
  EXPECT_EQ(simulation.stages[0].busy, 18);
  EXPECT_EQ(simulation.stages[1].busy, 24);
  // Of the divided pass, until the weight gradients.
  EXPECT_EQ(simulation.stages[1].activations, 2);
  // Messages from the first stage occupy the link from 2 to 9 and from 9 to 16, the others from 25 and 44.
  const Simulation linked = simulate(stages, times, {.alpha = 10, .seconds = 7});
  EXPECT_THAT(ends(linked, 0), ElementsAre(2, 4, 49, 68, 68, 68));
  EXPECT_THAT(ends(linked, 1), ElementsAre(20, 25, 27, 33, 44, 44, 44));
}

TEST(Simulation, SaysWhatIsStuck) {
  const std::vector<Schedule> stages = {
      of({{forward, 0, 0}, {backward, 0, 0}, {forward, 1, 0}, {backward, 1, 0}}, 2, 2),
      of({{forward, 1, 1}, {backward, 1, 1}, {forward, 0, 1}, {backward, 0, 1}}, 2, 2)};
  const Simulation simulation = simulate(stages);
  ASSERT_TRUE(simulation.stuck);
  EXPECT_EQ(simulation.stuck->stage, 0U);
  EXPECT_EQ(simulation.stuck->index, 1U);
  try {
    with_messages(stages);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(), "stage 0 waits forever in backward 0 of chunk 0");
  }
  for (const std::vector<Action>& passes :
       {std::vector<Action>{{forward, 0, 0}, {backward_weight, 0, 0}, {backward_input, 0, 0}},
        std::vector<Action>{{forward, 1, 0}, {backward, 0, 0}, {forward, 0, 0}}}) {
    const auto stuck = simulate(std::vector{of(passes, 2, 1)}).stuck;
    ASSERT_TRUE(stuck);
    EXPECT_EQ(stuck->index, 1U);
  }
}

/// A receive lies between the last pass that has ended when its tensor is produced and the next.
TEST(Messages, AreReceivedDuringThePassInWhichTheyArrive) {
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    const ScheduleScope scope{
        .micro_batches = 8, .stages = 4, .chunks = name == std::string_view("interleaved") ? 2 : 1};
    SCOPED_TRACE(text_of(kind(name), scope));
    const std::vector<Schedule> passes = kind(name).make(scope);
    const std::vector<Schedule> stages = with_messages(passes);
    const Simulation simulation = simulate(stages);
    const auto end_of = [&](const Action& pass) {
      for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        const auto place = std::ranges::find(stages[stage].actions, pass);
        if (place != stages[stage].actions.end())
          return simulation.stages[stage]
              .actions[static_cast<std::size_t>(place - stages[stage].actions.begin())]
              .end;
      }
      return -1.0;
    };
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      std::vector<Action> without = stages[stage].actions;
      std::erase_if(without, [](const Action& action) { return is_message(action.kind); });
      EXPECT_EQ(without, passes[stage].actions);
      double before = 0.0;  // end of the last pass
      for (std::size_t i = 0; i < stages[stage].actions.size(); ++i) {
        const Action& action = stages[stage].actions[i];
        before = simulation.stages[stage].actions[i].end;
        if (!is_message(action.kind)) continue;
        const bool is_forward = action.kind == receive_forward || action.kind == send_forward;
        const int shift = is_sent(action.kind) ? 0 : is_forward ? -1 : 1;
        const double made =
            end_of({is_forward ? forward : backward, action.micro_batch, action.chunk + shift});
        EXPECT_LE(before, made);
        const auto next = std::find_if(stages[stage].actions.begin() + static_cast<std::ptrdiff_t>(i),
                                       stages[stage].actions.end(),
                                       [](const Action& other) { return !is_message(other.kind); });
        if (is_sent(action.kind)) {
          EXPECT_EQ(before, made);
        } else {
          EXPECT_GT(end_of(*next), made);
        }
      }
    }
  }
}

/// Receives right before their passes and sends right after them wait for each other.
TEST(Messages, DeadlockNextToThePassesOfInterleavedLists) {
  std::vector<Schedule> stages = kind("interleaved").make({.micro_batches = 4, .stages = 2, .chunks = 2});
  for (int stage = 0; stage < 2; ++stage) {
    std::vector<Action> actions;
    for (const Action& pass : stages[static_cast<std::size_t>(stage)].actions) {
      const bool is_pass = is_of_micro_batch(pass.kind);
      const bool is_forward = pass.kind == forward;
      const auto add = [&](ActionKind kind, int neighbour) {
        if (is_pass && neighbour >= 0 && neighbour < 4) {
          actions.push_back(
              {.kind = kind, .micro_batch = pass.micro_batch, .chunk = pass.chunk, .peer = 1 - stage});
        }
      };
      add(is_forward ? receive_forward : receive_backward, pass.chunk + (is_forward ? -1 : 1));
      actions.push_back(pass);
      add(is_forward ? send_forward : send_backward, pass.chunk + (is_forward ? 1 : -1));
    }
    stages[static_cast<std::size_t>(stage)].actions = std::move(actions);
  }
  EXPECT_THAT(find_problems(stages), Contains(HasSubstr("waits forever")));
}

TEST(ScheduleProblems, FindsWhatIsWrongWithChunks) {
  const auto problems = [](const auto& change) {
    std::vector<Schedule> stages = with_messages(kind("1f1b").make({.micro_batches = 2, .stages = 3}));
    change(stages);
    return find_problems(stages);
  };
  EXPECT_THAT(problems([](auto& stages) {
                stages[2].actions.push_back({forward, 0, 0});
              }),
              Contains("chunk 0 is on stages 0 and 2"));
  EXPECT_THAT(problems([](auto& stages) {
                std::erase_if(stages[1].actions, [](const Action& action) { return action.chunk == 1; });
              }),
              Contains("chunk 1 is on no stage"));
  EXPECT_THAT(problems([](auto& stages) { stages[1].micro_batches = 3; }),
              Contains("rank 1 has 3 micro-batches and 3 chunks, rank 0 2 and 3"));
  EXPECT_THAT(
      problems([](auto& stages) {
        auto& actions = stages[2].actions;
        actions.insert(std::ranges::find(actions, backward, &Action::kind) + 1, {backward_input, 0, 2});
      }),
      Contains(HasSubstr("backward_input 0 of chunk 2, step 1 is a second backward pass")));
  EXPECT_THAT(problems([](auto& stages) {
                std::erase(stages[0].actions, Action{backward, 1, 0});
              }),
              Contains("rank 0: backward 1 of chunk 0, step 1 is missing"));
  EXPECT_EQ(find_problems(kind("gpipe").make({.micro_batches = 64, .stages = 2})).size(), 20U);
}

/// The order of passes alone can make stages wait for each other, whatever the messages.
TEST(ScheduleProblems, FindsPassesThatWaitForEachOther) {
  std::vector<Schedule> stages = with_messages(kind("1f1b").make({.micro_batches = 2, .stages = 2}));
  stages[0] = of({{forward, 0, 0},
                  {.kind = send_forward, .micro_batch = 0, .chunk = 0, .peer = 1},
                  {.kind = receive_backward, .micro_batch = 0, .chunk = 0, .peer = 1},
                  {backward, 0, 0},
                  {forward, 1, 0},
                  {.kind = send_forward, .micro_batch = 1, .chunk = 0, .peer = 1},
                  {.kind = receive_backward, .micro_batch = 1, .chunk = 0, .peer = 1},
                  {backward, 1, 0}},
                 2, 2);
  stages[1] = of({{.kind = receive_forward, .micro_batch = 0, .chunk = 1, .peer = 0},
                  {.kind = receive_forward, .micro_batch = 1, .chunk = 1, .peer = 0},
                  {forward, 0, 1},
                  {forward, 1, 1},
                  {backward, 0, 1},
                  {.kind = send_backward, .micro_batch = 0, .chunk = 1, .peer = 0},
                  {backward, 1, 1},
                  {.kind = send_backward, .micro_batch = 1, .chunk = 1, .peer = 0}},
                 2, 2);
  EXPECT_THAT(find_problems(stages), Contains("rank 0 waits forever for the input of backward 0 of chunk 0, "
                                              "step 1"));
}

/// A file of passes in a random order in which all have their inputs, with the chunks at random places.
struct RandomFile {
  explicit RandomFile(Random& random)
      : scope{.micro_batches = random.number(1, 6),
              .stages = random.number(1, 5),
              .chunks = random.number(1, 3)},
        rows(static_cast<std::size_t>(scope.stages)) {
    for (int chunk = 0; chunk < scope.num_chunks(); ++chunk) row_of.push_back(chunk % scope.stages);
    random.shuffle(row_of);
    const int most_divided = random.number(0, 2);  // none, some or all
    for (int chunk = 0; chunk < scope.num_chunks(); ++chunk) {
      for (int m = 0; m < scope.micro_batches; ++m) {
        passes.push_back({forward, m, chunk});
        if (random.number(0, 1) + most_divided >= 2) {
          passes.push_back({backward_input, m, chunk});
          passes.push_back({backward_weight, m, chunk});
        } else {
          passes.push_back({backward, m, chunk});
        }
      }
    }
    std::vector<Action> done;
    while (done.size() < passes.size()) {
      std::vector<Action> ready;
      for (const Action& pass : passes) {
        if (std::ranges::find(done, pass) == done.end() && is_ready(pass, done)) ready.push_back(pass);
      }
      done.push_back(random.one_of(ready));
      rows[static_cast<std::size_t>(row_of[static_cast<std::size_t>(done.back().chunk)])].push_back(
          done.back());
    }
  }

  bool is_ready(const Action& pass, const std::vector<Action>& done) const {
    const auto is_open = [&](ActionKind kind, int chunk) {  // to be done, and not done
      const Action other{kind, pass.micro_batch, chunk};
      return std::ranges::find(passes, other) != passes.end() && std::ranges::find(done, other) == done.end();
    };
    if (pass.kind == forward) return !is_open(forward, pass.chunk - 1);
    const int next = pass.chunk + 1;
    // The first and the last chunk share a matrix, whose gradient the last one writes.
    const int last = scope.num_chunks() - 1;
    const bool has_both = pass.chunk == 0 && last > 0 && row_of.front() == row_of.back();
    if (pass.kind != backward_input && has_both && is_open(backward_weight, last)) return false;
    if (pass.kind == backward_weight) return !is_open(backward_input, pass.chunk);
    return !is_open(forward, pass.chunk) && !is_open(backward, next) && !is_open(backward_input, next);
  }

  std::string text() const {
    std::vector<Schedule> stages;
    for (const std::vector<Action>& row : rows) stages.push_back({.actions = row});
    return schedule_text(stages);
  }

  ScheduleScope scope;
  std::vector<int> row_of{};  // by chunk
  std::vector<Action> passes{};
  std::vector<std::vector<Action>> rows;
};

TEST(ScheduleFile, RandomOrdersHaveNoProblem) {
  Random random;
  for (int i = 0; i < 300; ++i) {
    RandomFile file(random);
    const std::string text = file.text();
    SCOPED_TRACE(text);
    const std::vector<Schedule> read = parse_schedule(text);
    ASSERT_EQ(read.size(), file.rows.size());
    for (std::size_t row = 0; row < read.size(); ++row) {
      EXPECT_EQ(read[row].actions,
                of(file.rows[row], file.scope.micro_batches, file.scope.num_chunks()).actions);
      EXPECT_EQ(read[row].micro_batches, file.scope.micro_batches);
      EXPECT_EQ(read[row].chunks, file.scope.num_chunks());
    }
    EXPECT_EQ(schedule_text(read), text);
    file.scope.file = text;
    file.scope.times = random.times(file.scope.num_chunks());
    EXPECT_EQ(kind("file").stages_of_chunks(file.scope), file.row_of);
    ASSERT_THAT(find_problems(with_messages(kind("file").make(file.scope), file.scope.times)), IsEmpty());
  }
}

std::string error_of(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}
std::string error_in(std::string_view text) {
  return error_of([&] { parse_schedule(text); });
}

TEST(ScheduleFile, RefusesDroppedDoubledRenamedAndMovedPasses) {
  Random random;
  for (int i = 0; i < 200; ++i) {
    RandomFile file(random);
    std::vector<Action>& row = file.rows[static_cast<std::size_t>(random.number(0, file.scope.stages - 1))];
    const auto place = row.begin() + random.number(0, static_cast<int>(row.size()) - 1);
    std::string change;
    switch (i % 4) {
      case 0:
        change = "dropped";
        row.erase(place);
        break;
      case 1:
        change = "doubled";
        row.insert(row.begin() + random.number(0, static_cast<int>(row.size())), Action(*place));
        break;
      case 2: {
        change = "renamed";
        const Action before = *place;
        while (*place == before) {
          *place = {random.one_of(std::vector{forward, backward, backward_input, backward_weight}),
                    random.number(0, file.scope.micro_batches), random.number(0, file.scope.num_chunks())};
        }
        break;
      }
      default: {
        change = "moved";
        const auto pass =
            std::find_if(row.begin(), row.end(), [](const Action& a) { return is_backward(a.kind); });
        const auto input = std::find_if(row.begin(), row.end(), [&](const Action& a) {
          return a.kind == forward && a.chunk == pass->chunk && a.micro_batch == pass->micro_batch;
        });
        std::rotate(input, pass, pass + 1);
      }
    }
    SCOPED_TRACE(change + "\n" + file.text());
    EXPECT_THAT(error_in(file.text()), HasSubstr("row "));
  }
}

TEST(ScheduleFile, NamesRowAndCell) {
  EXPECT_EQ(error_in("0F0,0X0\n"),
            "row 1, cell 2: '0X0' is no pass: a chunk, one of F, B, I and W, and a micro-batch, such as 0F0");
  for (const char* cell : {"F0", "0F", "-1F0", "0F-1", "0F0x", "0f0", "0", "99999999999F0", "0F 0"})
    EXPECT_THAT(error_in(fmt::format("0F0,,{}", cell)), HasSubstr("row 1, cell 3: '")) << cell;
  EXPECT_EQ(error_in(""), "the schedule is empty");
  EXPECT_EQ(error_in("0F0,0B0\n,,\n1F0,1B0\n"), "row 2 has no pass");
  EXPECT_EQ(error_in("0F0,0B0\n1F0,0F1\n"), "row 2, cell 2: 0F1 is of chunk 0, which lies on row 1");
  EXPECT_EQ(error_in("0F0,,0B0,0F0\n"), "row 1, cell 4: 0F0 is in cell 1 already");
  EXPECT_EQ(error_in("0F0,0I0,0W0,0B0\n"),
            "row 1, cell 4: 0B0 and cell 3 make the backward pass twice, whole and divided");
  EXPECT_EQ(error_in("0F0,0B0,0W0\n"),
            "row 1, cell 3: 0W0 and cell 2 make the backward pass twice, whole and divided");
  EXPECT_EQ(error_in("0F0,,0B0,0F1\n"), "row 1, cell 4: 0F1 has no backward pass, 0B1");
  EXPECT_EQ(error_in("0F0,0B0,0B1\n"), "row 1, cell 3: 0B1 has no forward pass, 0F1");
  EXPECT_EQ(error_in("0F0,0I0\n"), "row 1, cell 2: 0I0 has no weight gradients, 0W0");
  EXPECT_EQ(error_in("0F0,0W0\n"), "row 1, cell 2: 0W0 has no input gradient, 0I0");
  EXPECT_EQ(error_in("0F0,0B0,0F2,0B2\n"), "row 1: 0F1 is missing");
  EXPECT_EQ(error_in("0F0,0B0\n2F0,2B0\n"), "chunk 1 is on no row");
  EXPECT_EQ(error_in("0F0,0W0,0I0\n"), "row 1, cell 2: 0W0 comes before its input, 0I0 in cell 3");
  EXPECT_EQ(error_in("0B0,0F0\n"), "row 1, cell 1: 0B0 comes before its input, 0F0 in cell 2");
  EXPECT_EQ(error_in("1F0,0F0,1B0,0B0\n"), "row 1, cell 1: 1F0 comes before its input, 0F0 in cell 2");
  EXPECT_EQ(error_in("0F0,1F0,0B0,1B0\n"), "row 1, cell 3: 0B0 comes before its input, 1B0 in cell 4");
  EXPECT_EQ(error_in("0F0,0B0,0F1,0B1\n,1F1,1B1,1F0,1B0\n"),
            "row 1, cell 2: 0B0 waits forever for 1B0 of row 2, cell 5: rows wait for each other");
  EXPECT_EQ(error_in("0F0,999999999F999999999\n"),
            "row 1, cell 2: 999999999F999999999 would be one of 2e+18 passes or more, but the file has 2");
}

TEST(ScheduleFile, ToleratesSpacesEmptyCellsAndLineEnds) {
  const std::string text = "0F0,0B0\n1F0,1I0,1W0\n";
  for (const char* other :
       {"0F0,0B0\n1F0,1I0,1W0", " 0F0 ,,\t0B0,\r\n,1F0, 1I0,,1W0 \r\n\r\n", "0F0,0B0\n1F0,1I0,1W0\n ,\n"})
    EXPECT_EQ(error_of([&] { EXPECT_EQ(schedule_text(parse_schedule(other)), text) << other; }),
              std::string_view(other).ends_with(",\n") ? "row 3 has no pass" : "");
}

TEST(ScheduleFile, IsReadBackAsItWasWritten) {
  for_each_schedule([](const ScheduleKind& kind, const ScheduleScope& scope) {
    const std::vector<Schedule> stages = kind.make(scope);
    const std::vector<Schedule> read = parse_schedule(schedule_text(with_messages(stages)));
    ASSERT_EQ(read.size(), stages.size());
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      ASSERT_EQ(read[stage].actions, stages[stage].actions);
      ASSERT_EQ(read[stage].micro_batches, stages[stage].micro_batches);
      ASSERT_EQ(read[stage].chunks, stages[stage].chunks);
    }
  });
}

TEST(ScheduleFile, IsOfTheRunsStagesChunksAndMicroBatches) {
  const auto error = [](ScheduleScope scope) {
    scope.file = "0F0,1F0,0F1,1F1,1B0,0B0,1I1,0I1,1W1,0W1\n2F0,3F0,3B0,2B0,2F1,3F1,3B1,2B1\n";
    return error_of([&] {
      // A stage that divides one backward pass divides all.
      EXPECT_EQ(schedule_text(kind("file").make(scope)),
                "0F0,1F0,0F1,1F1,1I0,1W0,0I0,0W0,1I1,0I1,1W1,0W1\n2F0,3F0,3B0,2B0,2F1,3F1,3B1,2B1\n");
      EXPECT_THAT(kind("file").stages_of_chunks(scope), ElementsAre(0, 0, 1, 1));
    });
  };
  const ScheduleScope good{.micro_batches = 2, .stages = 2, .chunks = 2};
  EXPECT_EQ(error(good), "");
  const std::string file = "it has 2 stages, 4 chunks in all and 2 micro-batches, but the run has ";
  ScheduleScope bad = good;
  bad.micro_batches = 3;
  EXPECT_EQ(error(bad), file + "2, 4 and 3");
  bad = good;
  bad.stages = 4;
  bad.chunks = 1;
  EXPECT_EQ(error(bad), file + "4, 4 and 2");
  bad = good;
  bad.chunks = 1;
  EXPECT_EQ(error(bad), file + "2, 2 and 2");
  const auto file_error = [](std::string_view text) {
    return error_of([&] { kind("file").make({.micro_batches = 1, .stages = 2, .chunks = 2, .file = text}); });
  };
  EXPECT_EQ(file_error("0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0\n"),
            "row 2 has 1 chunks, but row 1 has 3: all stages have equally many");
  EXPECT_EQ(file_error("0F0"), "row 1, cell 1: 0F0 has no backward pass, 0B0");
}

/// The slots of the actions of a step, by index.
std::vector<int> slots_of(const Schedule& schedule) {
  SlotAssignment assignment(schedule);
  std::vector<int> slots;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    slots.push_back(-1);
    if (!is_of_micro_batch(schedule.actions[i].kind)) continue;
    slots.back() = assignment.of({i, 1});
    assignment.finish({i, 1});
  }
  return slots;
}

/// The excerpt's actions are those that they stand for, in the same slots, for consecutive micro-batches.
void expect_stands_for(const ScheduleExcerpt& excerpt, const Schedule& all) {
  const auto& [few, repeated] = excerpt;
  ASSERT_EQ(few.actions.size() + (repeated.times - 1) * (repeated.end - repeated.begin), all.actions.size());
  EXPECT_EQ(few.chunks, all.chunks);
  const std::vector<int> few_slots = slots_of(few);
  const std::vector<int> all_slots = slots_of(all);
  const int left_out = all.micro_batches - few.micro_batches;
  for (std::size_t i = 0; i < all.actions.size(); ++i) {
    const std::size_t place = repeated.place(i);
    Action action = all.actions[i];
    ASSERT_EQ(few_slots[place], all_slots[i]);
    if (is_backward(action.kind)) {
      ASSERT_EQ(few.is_last(place), all.is_last(i));
    }
    const bool is_after = i >= repeated.begin + repeated.times * (repeated.end - repeated.begin);
    if (is_of_micro_batch(action.kind) && is_after) action.micro_batch -= left_out;
    if (i >= repeated.end && !is_after) action.micro_batch = few.actions[place].micro_batch;
    ASSERT_EQ(few.actions[place], action);
  }
  std::vector<std::tuple<ActionKind, int, int>> passes;
  for (const Action& action : few.actions) {
    if (is_of_micro_batch(action.kind)) passes.emplace_back(action.kind, action.chunk, action.micro_batch);
  }
  std::ranges::sort(passes);
  EXPECT_EQ(std::ranges::adjacent_find(passes), passes.end());
  for (std::size_t i = 0; i < passes.size(); ++i)
    ASSERT_EQ(std::get<2>(passes[i]), static_cast<int>(i) % few.micro_batches);
}

TEST(ScheduleExcerpt, StandsForManyMicroBatchesOfAPipeline) {
  Random random;
  constexpr int many = 65536;
  ScheduleScope scope{.micro_batches = many, .stages = 8};
  std::vector<std::vector<PassTimes>> cases = {{}, random.times(8), random.times(8)};
  for (PassTimes& times : cases.back()) {  // nearly equal
    for (double* time : {&times.forward, &times.input, &times.weight}) *time = 1.0 + 1e-3 * *time;
  }
  for (const std::vector<PassTimes>& times : cases) {
    const std::vector<Schedule> stages = with_messages(kind("1f1b").make(scope), times);
    EXPECT_THAT(find_problems(stages), IsEmpty());
    for (const Schedule& all : stages) {
      const ScheduleExcerpt excerpt = excerpt_of(all);
      EXPECT_LE(excerpt.schedule.micro_batches, 60);
      expect_stands_for(excerpt, all);
    }
  }
  scope.micro_batches = 4096;
  scope.chunks = 2;
  for (const Schedule& all : with_messages(kind("interleaved").make(scope))) {
    const ScheduleExcerpt excerpt = excerpt_of(all);
    EXPECT_LE(excerpt.schedule.micro_batches, 512);
    expect_stands_for(excerpt, all);
  }
}

TEST(ScheduleExcerpt, IsOfTheListOfAnyStage) {
  Random random;
  for (int i = 0; i < 100; ++i) {
    ScheduleScope scope{.micro_batches = random.number(1, 300), .stages = random.number(2, 8)};
    const ScheduleKind& one = kind(random.one_of(std::vector{"accumulate", "gpipe", "1f1b", "interleaved"}));
    if (one.name == std::string_view("interleaved")) {
      scope.chunks = random.number(2, 4);
      scope.micro_batches *= scope.stages;
    }
    if (i % 2 == 0) scope.times = random.times(scope.num_chunks());
    SCOPED_TRACE(text_of(one, scope));
    for (const Schedule& all : with_messages(one.make(scope), scope.times)) {
      const ScheduleExcerpt excerpt = excerpt_of(all);
      expect_stands_for(excerpt, all);
      if (one.name == std::string_view("gpipe")) {
        EXPECT_EQ(excerpt.schedule.micro_batches, scope.micro_batches);
      }
      if (one.name == std::string_view("accumulate")) {
        EXPECT_EQ(excerpt.schedule.micro_batches, std::min(scope.micro_batches, 5));
      }
    }
  }
}

}  // namespace
}  // namespace mylos
