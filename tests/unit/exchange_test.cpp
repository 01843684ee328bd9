// SPDX-License-Identifier: BSD-3-Clause
// Exchanges of units whose parameters are split along a data axis, as those of experts will be.
#include "parallel/exchange/exchange.hpp"

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/recorder.hpp"
#include "tests/parallel/mini_trainer.hpp"

namespace mylos {
namespace {

constexpr int num_units = 3;
constexpr int split_unit = 1;
constexpr std::int64_t in = 96;
constexpr std::int64_t out = 40;

/// Three units with a matrix each, of which the second is split along the expert axis.
ParameterTable table_of(const Coordinates& coordinates) {
  ParameterTable table;
  for (int unit = 0; unit < num_units; ++unit) {
    table.begin_unit(fmt::format("unit {}", unit));
    Parameter& matrix = table.add(fmt::format("matrix {}", unit), {in, out}, {{"in", in}, {"out", out}},
                                  Initialisation::normal, 1.0F);
    if (unit == split_unit) ParameterTable::split(matrix, Axis::expert, "in");
  }
  table.lay_out();
  return table.local(coordinates);
}

/// One rank's forward and backward pass through three linear layers, lowered by an exchange.
struct Lowered {
  Lowered(const ExchangeKind& exchange, const ParamValues& values, const Coordinates& at)
      : coordinates(at), table(table_of(at)), storages(table, {}) {
    for (int unit = 0; unit < num_units; ++unit) {
      Recorder run = recorder(unit, forward);
      run(LinearForward{.x = input(unit), .w = run.weight(matrix(unit)), .y = output(unit)});
    }
    for (int unit = num_units; unit-- > 0;) {
      Recorder run = recorder(unit, backward);
      run(LinearBackwardWeight{.x = input(unit), .dy = output(unit), .dw = run.gradient(matrix(unit))});
    }
    Program* const programs[] = {&forward, &backward};
    analyse(programs, storages.all(), table);
    Pass passes[] = {{.program = &forward, .micro_batch = 0},
                     {.program = &backward, .micro_batch = 0, .is_first = true, .is_last = true}};
    Lowering lowering(table, coordinates, DType::fp32, DType::fp32, storages, pool);
    lowering.step = {&passes[0], &passes[1]};
    holding = exchange.lower(values, lowering);
  }

  const Parameter& matrix(int unit) const { return table.parameters()[static_cast<std::size_t>(unit)]; }
  TensorRef input(int unit) {
    return storages.tensor(fmt::format("x{}", unit),
                           {nullptr, DType::fp32, {2, matrix(unit).local_shape()[0]}});
  }
  TensorRef output(int unit) {
    return storages.tensor(fmt::format("y{}", unit), {nullptr, DType::fp32, {2, out}});
  }
  Recorder recorder(int unit, Program& program) {
    return {storages, config, pass, "", unit, program.entries};
  }
  const HeldUnit& held(int unit) const { return holding.units[static_cast<std::size_t>(unit)]; }
  /// The calls on a unit's weights or gradients: operation, axes and elements of the smaller buffer.
  using Call = std::tuple<CommOperation, AxisSet, std::int64_t>;
  std::set<Call> calls_on(int unit) {
    std::set<Call> calls;
    for (const Entry& entry : pool) {
      const auto call = call_of(entry);
      if (!call) continue;
      for (const TensorRef& own : {held(unit).weights, held(unit).gradient}) {
        const Storages::Extent extent = storages.extent_of(own);
        if (!extent.overlaps(storages.extent_of(call->call.input)) &&
            !extent.overlaps(storages.extent_of(call->call.output)))
          continue;
        calls.insert(
            {call->call.operation, call->group, std::min(call->call.input.size(), call->call.output.size())});
      }
    }
    return calls;
  }

  Coordinates coordinates;
  ProgramConfig config;
  PassConfig pass{.shape = config.shape, .training = true};
  ParameterTable table;
  Storages storages;
  Program forward, backward;
  std::vector<Entry> pool;
  Holding holding;
};

class SplitUnits : public testing::Test {
 protected:
  static constexpr GridExtents extents{
      {Axis::replicate, 2}, {Axis::shard, 2}, {Axis::expert, 2}, {Axis::context, 2}};
  static constexpr int ranks = 16;
  RunConfig config_ = mini_config({}, 1, 1);
  Lowered lowered(const ExchangeKind& exchange, int rank) const {
    return {exchange, config_.parallel.values, Coordinates(extents, ranks, rank)};
  }
};

/// A gradient is summed over the ranks that hold the same parameters, which divide it.
TEST_F(SplitUnits, AreSummedAndDividedAlongTheOtherAxes) {
  using enum CommOperation;
  const AxisSet split = loss_axes.without({Axis::expert});
  const AxisSet of_whole = loss_axes.without({Axis::replicate});
  const AxisSet of_split = split.without({Axis::replicate});
  constexpr AxisSet replicate = {Axis::replicate};
  constexpr std::int64_t whole_part = in * out / 8;  // among shard, expert and context
  constexpr std::int64_t split_part = in / 2 * out / 4;
  for (const ExchangeKind* exchange : exchanges()) {
    SCOPED_TRACE(exchange->name);
    if (!exchange->shards) {
      // No reduction spans units of different ranks, even if it waits for a large bucket.
      for (const auto& [mode, bucket_mb] :
           {std::pair("bucketed", 0.001), std::pair("bucketed", 25.0), std::pair("flat", 25.0),
            std::pair("overlapped", 25.0), std::pair("per_parameter", 25.0)}) {
        SCOPED_TRACE(mode);
        set_ddp(config_, mode, bucket_mb);
        Lowered rank = lowered(*exchange, 5);
        EXPECT_EQ(rank.calls_on(0), (std::set<Lowered::Call>{{all_reduce, loss_axes, in * out}}));
        EXPECT_EQ(rank.calls_on(split_unit), (std::set<Lowered::Call>{{all_reduce, split, in / 2 * out}}));
      }
      continue;
    }
    Lowered rank = lowered(*exchange, 5);
    EXPECT_EQ(rank.calls_on(0), (std::set<Lowered::Call>{{all_gather, of_whole, whole_part + 32},
                                                         {reduce_scatter, of_whole, whole_part + 32},
                                                         {all_reduce, replicate, whole_part + 32}}));
    EXPECT_EQ(rank.calls_on(split_unit), (std::set<Lowered::Call>{{all_gather, of_split, split_part + 32},
                                                                  {reduce_scatter, of_split, split_part + 32},
                                                                  {all_reduce, replicate, split_part + 32}}));
  }
}

/// The ranks that hold the same parameters store every element once, and step it once per copy.
TEST_F(SplitUnits, AreSteppedAndStoredCompletely) {
  for (const ExchangeKind* exchange : exchanges()) {
    SCOPED_TRACE(exchange->name);
    std::map<std::pair<int, int>, std::vector<int>> stepped, stored;  // by unit and expert, by element
    for (int number = 0; number < ranks; ++number) {
      const Lowered rank = lowered(*exchange, number);
      const auto add = [&](const std::vector<UnitPart>& parts, auto& counts) {
        for (const UnitPart& part : parts) {
          const int expert = part.unit == split_unit ? rank.coordinates.index(Axis::expert) : 0;
          std::vector<int>& of_unit = counts[{part.unit, expert}];
          of_unit.resize(static_cast<std::size_t>(rank.table.unit(part.unit).size));
          for (std::int64_t i = part.begin; i < part.begin + part.count; ++i)
            ++of_unit[static_cast<std::size_t>(i)];
        }
      };
      add(rank.holding.owned(), stepped);
      add(rank.holding.stored, stored);
    }
    EXPECT_EQ(stored.size(), 4U);
    for (const auto& [unit, counts] : stored) EXPECT_THAT(counts, testing::Each(1)) << unit.first;
    for (const auto& [unit, counts] : stepped) {
      const int copies = exchange->shards ? 2 : unit.first == split_unit ? 8 : 16;
      EXPECT_THAT(counts, testing::Each(copies)) << unit.first;
    }
  }
}

}  // namespace
}  // namespace mylos
