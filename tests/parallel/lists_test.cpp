// SPDX-License-Identifier: BSD-3-Clause
// What a rank's list says, the run does; lists that do not fit each other end the run before it starts.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/rng.hpp"
#include "core/communication/call_site.hpp"
#include "core/communication/forwarding_communicator.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// The calls of programs that reach a communicator of several ranks, in order, as "operation, axes, bytes,
/// program".
std::vector<std::string> calls;
int num_progressed = 0;

class NotedCalls final : public ForwardingCommunicator {
 public:
  explicit NotedCalls(NextCommunicator next) : ForwardingCommunicator(std::move(next)) {}
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<NotedCalls>(next().split(color, key));
  }
  void progress() override {
    ++num_progressed;
    next().progress();
  }

 private:
  Request start(const CommCall& call) override {
    if (const CallSite* site = current_call_site(); site != nullptr && next().size() > 1) {
      calls.push_back(fmt::format("{} of {} bytes among {}, {} {}:{}", name_of(call.operation),
                                  call.payload_bytes(), next().size(), site->program, site->where.file_name(),
                                  site->where.line()));
    }
    return call.on(next());
  }
};

class Lists : public testing::Test {
 protected:
  int ranks() const { return world_->size(); }

  /// Calls visit(config) for each exchange with tensor, vocabulary and sequence parallelism, accumulation,
  /// types, experts and depths.
  template <class Visit>
  void for_all_layouts(const Visit& visit) {
    for (const ExchangeKind* exchange : exchanges()) {
      for (const std::int64_t tensor : {1, 2}) {
        if (ranks() % tensor != 0) continue;
        const std::int64_t data = ranks() / tensor;
        if (exchange->shards && data == 1) continue;
        for (const std::int64_t accumulation : {1, 3, 7}) {
          for (const bool divides_more : {false, true}) {
            if (divides_more && tensor == 1) continue;
            RunConfig config = mini_config(small_model(), data * accumulation, 16, data, accumulation);
            config.model.heads = 6;
            config.parallel.tensor = tensor;
            config.parallel.splits = {.vocab = divides_more, .sequence = divides_more};
            config.train.dtype = accumulation == 3 ? DType::bf16 : DType::fp32;
            config.parallel.values.set("parallel.bucket_mb", 0.01);
            for (const std::int64_t shard : {data, std::int64_t{2}}) {
              if (!exchange->shards && shard != data) continue;
              if (shard == 2 && (data <= 2 || data % 2 != 0)) continue;
              set_exchange(config, exchange->name, exchange->shards ? shard : 1);
              SCOPED_TRACE(fmt::format("{} among {}, tensor {}, divides more {}, accumulation {}",
                                       exchange->name, shard, tensor, divides_more, accumulation));
              visit(config);
              for (const std::int64_t expert : {1, 2}) {
                if (accumulation != 3 || data % expert != 0 || (exchange->shards && shard % expert != 0))
                  continue;
                RunConfig routed = config;
                routed.model.experts = {.count = 4, .width = 36, .has_shared = true, .capacity = 1.25};
                routed.parallel.expert = expert;
                visit(routed);
                if (divides_more) continue;
                routed.model.depths = {.capacity = 0.3, .every = 1};
                visit(routed);
              }
            }
          }
        }
      }
    }
  }

  /// Expects the lists of `config` to be refused on every rank.
  void expect_refused(const RunConfig& config, ExitCode code, const std::string& text) {
    TrafficCounter traffic;
    const ProcessGrid grid(*world_, config.parallel.extents(), config.groups(), traffic, nullptr);
    try {
      check_lists(backend_, grid, RankProgram(config, grid.coordinates()));
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

/// The collectives of each rank's list, in order, are those that its communicators saw in a step.
TEST_F(Lists, SayWhatRunsCall) {
  for_all_layouts([&](const RunConfig& config) {
    MemoryLedger ledger;
    NotedCalls noted{NextCommunicator(*world_)};
    MiniTrainer trainer(backend_, ledger, noted, config);
    trainer.step(walk_tokens(config, 1));
    calls.clear();
    const std::vector<TrafficRow> before = trainer.traffic().table();
    trainer.step(walk_tokens(config, 2));
    const std::vector<TrafficRow> counted = subtract(trainer.traffic().table(), before);
    const RankProgram& program = trainer.program();
    std::vector<std::string> listed;
    const Schedule& schedule = program.schedule();
    for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
      for_each_entry(program.pass_of(i), program.pool(), [&](const Entry& entry, const EntryPlace&) {
        const auto call = listed_call(entry);
        if (!call || program.coordinates().extent(call->group) == 1) return;
        listed.push_back(fmt::format("{} of {} bytes among {}, {} {}:{}", name_of(call->operation),
                                     call->payload_bytes, program.coordinates().extent(call->group),
                                     name_of(schedule.actions[i].kind), entry.where.file_name(),
                                     entry.where.line()));
      });
    }
    EXPECT_EQ(listed, calls);
    EXPECT_TRUE(ranks() == 1 || !calls.empty());
    // The plan counts rank 0's, from the excerpt of the list.
    if (world_->rank() != 0) return;
    const std::vector<TrafficRow> planned = make_plan(config).traffic;
    EXPECT_THAT(counted, testing::UnorderedElementsAreArray(planned));
  });
}

/// Calls in flight are advanced at the boundaries of blocks.
TEST_F(Lists, CallsInFlightAreAdvancedBetweenBlocks) {
  RunConfig config = mini_config(small_model(), 12, 16, ranks());
  const auto progressed = [&](const char* mode) {
    set_ddp(config, mode);
    MemoryLedger ledger;
    NotedCalls noted{NextCommunicator(*world_)};
    MiniTrainer trainer(backend_, ledger, noted, config);
    num_progressed = 0;
    trainer.step(walk_tokens(config, 1));
    return num_progressed;
  };
  // The head's gradients are complete first: two blocks, the embedding and the reduction follow.
  EXPECT_EQ(progressed("overlapped"), ranks() > 1 ? 4 : 0);
  EXPECT_EQ(progressed("flat"), 0);
}

TEST_F(Lists, FitEachOtherInEveryLayout) {
  for_all_layouts([&](const RunConfig& config) {
    TrafficCounter traffic;
    const ProcessGrid grid(*world_, config.parallel.extents(), config.groups(), traffic, nullptr);
    EXPECT_NO_THROW(check_lists(backend_, grid, RankProgram(config, grid.coordinates())));
  });
}

/// A change to the list of one rank. A call that it leaves out is one that the others make twice.
enum class Change : std::uint8_t { left_out, doubled, resized, other_group, swapped };
constexpr int num_changes = 5;
Change change = Change::left_out;
std::uint32_t drawn = 0;
bool is_changed = false;  ///< on this rank

/// ddp with a reduction per parameter, changed on one rank.
const ExchangeKind changed_ddp{
    .name = "changed ddp",
    .doc = "",
    .params = {},
    .shards = false,
    .lower = [](const ParamValues& values, Lowering& lowering) {
      Holding holding = exchanges().front()->lower(values, lowering);
      const bool is_edited = change == Change::left_out ? !is_changed : is_changed;
      if (!is_edited) return holding;
      Pass& pass = *lowering.step.back();
      const std::size_t place = drawn % (pass.inserted.size() - 1);
      Insertion& insertion = pass.inserted[place];
      AllReduceCall call = std::get<AllReduceCall>(lowering.entry(insertion.entry).operation);
      switch (change) {
        case Change::left_out:
        case Change::doubled:
          pass.inserted.insert(pass.inserted.begin() + static_cast<std::ptrdiff_t>(place), insertion);
          break;
        case Change::resized:
          call.buffer = call.buffer.flat(0, call.buffer.size() - 1);
          insertion.entry = lowering.add(call);
          break;
        case Change::other_group:
          call.group = {Axis::tensor};
          insertion.entry = lowering.add(call);
          break;
        case Change::swapped:
          std::swap(insertion.entry, pass.inserted[place + 1].entry);
          break;
      }
      return holding;
    }};

/// All ranks name the first call that differs.
TEST_F(Lists, ThatDifferAreRefusedBeforeTheFirstStep) {
  if (ranks() != 2 && ranks() != 4) GTEST_SKIP() << "needs 2 or 4 ranks";
  const std::uint64_t seed = test::seed_of_tests();
  for (int i = 0; i < 20; ++i) {
    const std::uint32_t word =
        philox(stream_key(seed, "changes"), static_cast<std::uint32_t>(i), 0, 0, 0).x[0];
    change = static_cast<Change>(i % num_changes);
    drawn = word / 8;
    const std::int64_t tensor = ranks() == 4 ? 2 : 1;
    RunConfig config = mini_config(small_model(), 12, 16, ranks() / tensor);
    config.model.heads = 6;
    config.model.width = 54;
    config.parallel.tensor = tensor;
    set_ddp(config, "overlapped");
    config.parallel.exchange = &changed_ddp;
    TrafficCounter traffic;
    const ProcessGrid grid(*world_, config.parallel.extents(), config.groups(), traffic, nullptr);
    const int culprit = static_cast<int>(word) & (ranks() - 1);
    is_changed = world_->rank() == culprit;
    SCOPED_TRACE(fmt::format("seed {}, change {} on rank {}", seed, static_cast<int>(change), culprit));
    std::string message;
    const RankProgram program(config, grid.coordinates());
    try {
      check_lists(backend_, grid, program);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      message = error.what();
    }
    EXPECT_THAT(message, testing::ContainsRegex("\\.cpp:[0-9]+\\) on rank"));
    EXPECT_THAT(message, testing::HasSubstr(" bytes of fp32"));
    EXPECT_THAT(message, testing::HasSubstr(fmt::format("on rank {}", culprit)));
  }
}

/// ddp with an all_to_all_v before the first pass, of which one rank may send one element to another rank
/// than that one expects.
const ExchangeKind uneven_exchange{
    .name = "uneven exchange",
    .doc = "",
    .params = {},
    .shards = false,
    .lower = [](const ParamValues& values, Lowering& lowering) {
      const int ranks = lowering.coordinates().extent(loss_axes);
      const int own = lowering.coordinates().index(loss_axes);
      const auto count = [](int from, int to) { return std::int64_t{5} + from + 3 * to; };
      std::vector<std::int64_t> sent;
      std::vector<std::int64_t> received;
      for (int other = 0; other < ranks; ++other) {
        sent.push_back(count(own, other));
        received.push_back(count(other, own));
      }
      if (is_changed) {
        ++sent.front();
        --sent.back();
      }
      const auto buffer = [&](const char* name, const std::vector<std::int64_t>& counts) {
        const std::int64_t size = std::reduce(counts.begin(), counts.end());
        const int storage = lowering.keep(name, MemoryCategory::workspace, size, DType::fp32);
        return Storages::flat(storage, 0, DType::fp32, size);
      };
      const TensorRef input = buffer("sent", sent);
      const TensorRef output = buffer("received", received);
      Pass& pass = *lowering.step.front();
      Lowering::before(pass, 0, lowering.add(Fill{.y = input, .value = 1.0F}));
      Lowering::before(pass, 0,
                       lowering.add(AllToAllVCall{
                           .input = input,
                           .output = output,
                           .group = loss_axes,
                           .send_counts = std::make_shared<const std::vector<std::int64_t>>(sent),
                           .receive_counts = std::make_shared<const std::vector<std::int64_t>>(received)}));
      Lowering::before(pass, 0, lowering.add(Await{.input = input, .output = output}));
      return exchanges().front()->lower(values, lowering);
    }};

TEST_F(Lists, CountsThatDoNotFitEachOtherAreRefused) {
  if (ranks() == 1) GTEST_SKIP() << "needs another rank";
  RunConfig config = mini_config(small_model(), 12, 16, ranks());
  config.parallel.exchange = &uneven_exchange;
  is_changed = false;
  {
    TrafficCounter traffic;
    const ProcessGrid grid(*world_, config.parallel.extents(), config.groups(), traffic, nullptr);
    EXPECT_NO_THROW(check_lists(backend_, grid, RankProgram(config, grid.coordinates())));
  }
  is_changed = world_->rank() == ranks() - 1;
  expect_refused(config, ExitCode::usage, "ranks do not receive as much as the others send them");
}

/// ddp whose ranks share a window, which is larger on one rank.
const ExchangeKind larger_window{.name = "larger window",
                                 .doc = "",
                                 .params = {},
                                 .shards = false,
                                 .lower = [](const ParamValues& values, Lowering& lowering) {
                                   lowering.keep("extra", MemoryCategory::workspace, is_changed ? 128 : 64,
                                                 DType::fp32, loss_axes);
                                   return exchanges().front()->lower(values, lowering);
                                 }};

TEST_F(Lists, WindowsOfDifferentSizesAreRefused) {
  if (ranks() == 1) GTEST_SKIP() << "needs another rank";
  RunConfig config = mini_config(small_model(), 12, 16, ranks());
  config.parallel.exchange = &larger_window;
  is_changed = world_->rank() == 1;
  expect_refused(config, ExitCode::usage,
                 "a window of 256 bytes for extra on rank 0, but a window of 512 bytes for extra on rank 1");
}

/// Takes the first unit from the parts that are stepped or stored.
bool takes_owned = false;
const ExchangeKind incomplete{.name = "incomplete",
                              .doc = "",
                              .params = {},
                              .shards = false,
                              .lower = [](const ParamValues& values, Lowering& lowering) {
                                Holding holding = exchanges().front()->lower(values, lowering);
                                if (takes_owned) {
                                  holding.units.front().owned.count -= 64;
                                } else {
                                  holding.stored.front().begin += 1;
                                }
                                return holding;
                              }};

TEST_F(Lists, ElementsThatNoRankStepsOrStoresAreRefused) {
  for (const bool owned : {true, false}) {
    takes_owned = owned;
    RunConfig config = mini_config(small_model(), 12, 16, ranks());
    config.parallel.exchange = &incomplete;
    expect_refused(config, ExitCode::internal, owned ? "of embedding are stepped by" : "are stored by");
  }
}

/// An entry that reads what nothing wrote, and an Await of what nothing started.
bool awaits_nothing = false;
const ExchangeKind unfounded{.name = "unfounded",
                             .doc = "",
                             .params = {},
                             .shards = false,
                             .lower = [](const ParamValues& values, Lowering& lowering) {
                               Pass& pass = *lowering.step.front();
                               const TensorRef x =
                                   Storages::flat(lowering.storages().find("head.ln"), 0, DType::fp32, 16);
                               if (awaits_nothing) {
                                 Lowering::before(pass, 0, lowering.add(Await{.input = x, .output = x}));
                               } else {
                                 Lowering::before(pass, 0, lowering.add(Cast{.x = x, .y = x.flat(0, 16)}));
                               }
                               return exchanges().front()->lower(values, lowering);
                             }};

TEST_F(Lists, EntriesWithoutAReasonAreRefusedWithTheirLine) {
  for (const bool awaits : {false, true}) {
    awaits_nothing = awaits;
    RunConfig config = mini_config(small_model(), 12, 16);
    config.parallel.exchange = &unfounded;
    try {
      const RankProgram program(config, {});
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_THAT(error.what(), testing::MatchesRegex("tests/parallel/lists_test.cpp:[0-9]+: .*noth.*"));
    }
  }
}

/// ddp whose ranks each clip by the norm that they compute by themselves.
const ExchangeKind own_norms{.name = "own norms",
                             .doc = "",
                             .params = {},
                             .shards = false,
                             .lower = [](const ParamValues& values, Lowering& lowering) {
                               Holding holding = exchanges().front()->lower(values, lowering);
                               holding.norm_axes = {};
                               return holding;
                             }};

/// The gradients are the same on all ranks, so each finds the same norm, but its own samples' loss.
TEST_F(Lists, NormAndLossAreOfTheRanksThatTheHoldingNames) {
  RunConfig config = mini_config(small_model(), 12, 16, ranks());
  config.guard.clip_norm = 0.5F;
  const auto train_by = [&](const ExchangeKind& exchange) {
    config.parallel.exchange = &exchange;
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, config);
    const std::vector<TrafficRow> before = trainer.traffic().table();
    const StepScalars scalars = trainer.step(walk_tokens(config, 1));
    std::uint64_t sums = 0;
    for (const TrafficRow& row : subtract(trainer.traffic().table(), before)) {
      if (row.operation == CommOperation::all_reduce) sums += row.calls;
    }
    return std::pair(scalars, sums);
  };
  const auto [common, all_sums] = train_by(*exchanges().front());
  const auto [own, own_sums] = train_by(own_norms);
  EXPECT_NEAR(own.gradient_norm / common.gradient_norm, 1.0, 1e-5);
  EXPECT_NEAR(own.clip_factor / common.clip_factor, 1.0, 1e-5);
  EXPECT_EQ(own_sums, all_sums - (ranks() > 1 ? 1 : 0));
  float sum = own.loss;
  world_->all_reduce({&sum, DType::fp32, {1}}, ReduceOp::sum).host_wait();
  EXPECT_NEAR(sum / static_cast<float>(ranks()), common.loss, 1e-5);
  EXPECT_TRUE(ranks() == 1 || own.loss != common.loss);
}

}  // namespace
}  // namespace mylos
