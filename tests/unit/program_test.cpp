// SPDX-License-Identifier: BSD-3-Clause
// What is derived from recorded programs: completion and accumulation of gradients, access to units,
// recomputation, the split of the backward pass, and a place in the arena for every value.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/model_programs.hpp"
#include "core/model/parameters.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/schedule/problems.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/test_schedules.hpp"

namespace mylos {
namespace {

constexpr std::array recomputes = {Recompute::none, Recompute::selective, Recompute::block};

ModelConfig small_model(bool tied, float dropout) {
  ModelConfig model;
  model.layers = 3;
  model.heads = 2;
  model.width = 32;
  model.context = 64;
  model.vocab = 50257;  // several slices of logits
  model.tied = tied;
  model.dropout = dropout;
  return model;
}

/// A model's programs in fp32 for 32 x 64 tokens, or for 31 x 64 with sequence parallelism.
struct Recorded {
  explicit Recorded(const ModelConfig& model, const ProgramConfig& config = {})
      : table(parameters_of(model)), programs(record_programs(model, table, sized(config))) {}
  /// The programs of one of two ranks along the tensor axis.
  Recorded(const ModelConfig& model, const ProgramConfig& config, int rank,
           const TensorSplits& splits = {.vocab = true, .sequence = true})
      : table(parameters_of(model).local(Coordinates({{Axis::tensor, 2}}, 2, rank), splits)),
        programs(
            record_programs(model, table, splits.sequence ? divided(sized(config), rank) : sized(config))) {}

  const std::vector<Storage>& storages() const { return programs.storages.all(); }
  const Storage& storage(int index) const { return storages()[static_cast<std::size_t>(index)]; }
  const Program& forward() const { return programs.chunks.front().forward; }
  const Program& backward() const { return programs.chunks.front().backward.front(); }

  ParameterTable table;
  ModelPrograms programs;

 private:
  static ProgramConfig sized(ProgramConfig config) {
    config.shape = {.batch = 32, .seq = 64};
    config.cache = {.rows = 2, .positions = 64, .passes = {{.texts = 2, .tokens = 1}}};
    return config;
  }
  /// With 31 samples in two parts, a part ends within a sample.
  static ProgramConfig divided(ProgramConfig config, int rank) {
    config.shape.batch = 31;
    config.shape.residual_parts = 2;
    config.shape.residual_part = rank;
    return config;
  }
};

/// Calls check(recorded) for every kind of model and recomputation.
void for_all_models(ProgramConfig config, const std::function<void(const Recorded&)>& check) {
  for (const bool tied : {true, false}) {
    for (const float dropout : {0.0F, 0.1F}) {
      for (const Recompute recompute : recomputes) {
        SCOPED_TRACE(
            fmt::format("tied {}, dropout {}, recompute {}", tied, dropout, static_cast<int>(recompute)));
        config.recompute = recompute;
        check(Recorded(small_model(tied, dropout), config));
        check(Recorded(small_model(tied, dropout), config, 1));
      }
    }
  }
}

template <class Op>
std::int64_t count(const Program& program, int block) {
  return std::ranges::count_if(program.entries, [&](const Entry& entry) {
    return entry.block == block && std::holds_alternative<Op>(entry.operation);
  });
}

/// Expects programs that run one after another to complete each parameter's gradient once.
void expect_completion(const Recorded& recorded, const std::vector<const Program*>& programs) {
  std::vector<GradientRange> ranges;
  for (const Program* program : programs) {
    for (const Entry& entry : program->entries)
      ranges.insert(ranges.end(), entry.completes.begin(), entry.completes.end());
  }
  for (const Parameter& parameter : recorded.table.parameters()) {
    EXPECT_EQ(std::ranges::count_if(ranges,
                                    [&](const GradientRange& range) {
                                      return range.unit == parameter.unit &&
                                             range.begin <= parameter.offset &&
                                             parameter.offset + parameter.padded_size() <= range.end;
                                    }),
              1)
        << parameter.name;
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      EXPECT_TRUE(ranges[i].unit != ranges[k].unit || ranges[i].begin >= ranges[k].end ||
                  ranges[k].begin >= ranges[i].end);
    }
  }
}

/// Expects the first contribution to each gradient to write it, and all others to add to it.
void expect_contributions(const Recorded& recorded, const std::vector<const Program*>& programs) {
  std::set<std::pair<int, std::int64_t>> begun;  // storage and offset
  for (const Program* program : programs) {
    for (const Entry& entry : program->entries) {
      for_each_place(entry, [&](const Place& place, Access access) {
        if (recorded.storage(place.storage).kind != StorageKind::gradients) return;
        const bool is_first = begun.insert({place.storage, place.offset}).second;
        EXPECT_EQ(access, is_first ? Access::write : Access::update);
      });
    }
  }
  EXPECT_EQ(begun.size(), recorded.table.parameters().size());
}

/// Expects the uses of units to be those of the entries, one per unit and pass through a block.
void expect_uses(const Recorded& recorded, const Program& program) {
  std::set<std::pair<int, int>> seen;  // visit and unit
  for (const UnitUse& use : program.uses) {
    EXPECT_TRUE(seen.insert({use.visit, use.unit}).second);
    EXPECT_EQ(program.entries[use.first].block, program.entries[use.last].block);
  }
  EXPECT_TRUE(std::ranges::is_sorted(program.uses, {}, &UnitUse::first));
  for (std::size_t i = 0; i < program.entries.size(); ++i) {
    for_each_place(program.entries[i], [&](const Place& place, Access /*access*/) {
      const Storage& storage = recorded.storage(place.storage);
      if (storage.unit < 0) return;
      const auto covers = [&](const UnitUse& use) {
        const bool is_used = storage.kind == StorageKind::weights ? use.reads_weights : use.adds_gradients;
        return use.unit == storage.unit && use.first <= i && i <= use.last && is_used;
      };
      EXPECT_EQ(std::ranges::count_if(program.uses, covers), 1) << i;
    });
  }
}

TEST(Program, CompletesEveryGradientOnce) {
  for_all_models({}, [](const Recorded& recorded) {
    expect_completion(recorded, {&recorded.backward()});
    expect_contributions(recorded, {&recorded.backward()});
  });
}

TEST(Program, KnowsTheUnitsThatABlockUses) {
  for_all_models({}, [](const Recorded& recorded) {
    const ModelPrograms& programs = recorded.programs;
    for (const Program* program :
         {&recorded.forward(), &recorded.backward(), &programs.chunks.front().evaluate,
          &programs.chunks.front().cached.front().program})
      expect_uses(recorded, *program);
    // In training the head does nothing in the forward pass.
    const auto is_of_head = [&](const UnitUse& use) { return use.unit == recorded.table.num_units() - 1; };
    EXPECT_TRUE(std::ranges::none_of(recorded.forward().uses, is_of_head));
  });
}

/// The products that end a block's branches add the residual, unless dropout or a sum over ranks lies
/// between.
TEST(Program, AddsTheResidualInProductsIfNothingLiesBetween) {
  const auto expect = [](const Program& program, int adding, int sums) {
    for (const int block : {1, 2, 3}) {
      EXPECT_EQ(count<LinearAddForward>(program, block), adding);
      EXPECT_EQ(count<DropoutAdd>(program, block) + count<DropoutAddLayernorm>(program, block), sums);
    }
  };
  const Recorded plain(small_model(true, 0.0F));
  expect(plain.forward(), 2, 0);
  expect(plain.programs.chunks.front().evaluate, 2, 0);
  const Recorded with_dropout(small_model(true, 0.1F));
  expect(with_dropout.forward(), 0, 2);
  expect(with_dropout.programs.chunks.front().evaluate, 2, 0);
  expect(with_dropout.programs.chunks.front().cached.front().program, 2, 0);
  expect(Recorded(small_model(true, 0.0F), {}, 1, {}).forward(), 0, 2);
}

TEST(Program, RepeatsDiscardedActivationsInBackward) {
  for (const auto& [recompute, products, norms, gelus] :
       {std::tuple(Recompute::none, 0, 0, 0), std::tuple(Recompute::selective, 0, 2, 1),
        std::tuple(Recompute::block, 3, 2, 0)}) {
    SCOPED_TRACE(static_cast<int>(recompute));
    const Recorded recorded(small_model(true, 0.0F), {.recompute = recompute});
    for (const int block : {1, 2, 3}) {
      const Program& backward = recorded.backward();
      // With Recompute::block, the backward pass repeats all operations whose results it reads; the last
      // product is not among them.
      EXPECT_EQ(count<LinearForward>(backward, block) + count<LinearAddForward>(backward, block) +
                    count<LinearGeluForward>(backward, block),
                products);
      EXPECT_EQ(count<LayernormForward>(backward, block) + count<DropoutAddLayernorm>(backward, block),
                norms);
      EXPECT_EQ(count<GeluForward>(backward, block), gelus);
      EXPECT_EQ(count<AttentionForward>(backward, block), recompute == Recompute::block ? 1 : 0);
    }
  }
}

/// If the residual stream is divided within a sample, a block's second norm, which includes dropout, is
/// recorded part by part, and each part is recomputed.
TEST(Program, RepeatsEveryPartOfANorm) {
  const auto norms = [](const Program& program, int block) {
    return count<LayernormForward>(program, block) + count<DropoutAddLayernorm>(program, block);
  };
  for (const Recompute recompute : {Recompute::selective, Recompute::block}) {
    for (const int rank : {0, 1}) {
      const Recorded recorded(small_model(true, 0.1F), {.recompute = recompute}, rank);
      for (const int block : {1, 2, 3}) {
        EXPECT_EQ(norms(recorded.forward(), block), 3);
        EXPECT_EQ(norms(recorded.backward(), block), 3) << static_cast<int>(recompute);
      }
    }
  }
}

/// A collective is awaited before its result is used or its input is changed, or at the end of the program,
/// once.
TEST(Program, AwaitsACollectiveBeforeItsBuffersAreUsed) {
  const ParameterTable table = parameters_of(small_model(true, 0.0F));
  const ProgramConfig config{.shape = {.batch = 2, .seq = 16}};
  Storages storages(table, config);
  const auto tensor = [&](const char* name) {
    return storages.tensor(name, {nullptr, DType::fp32, {1, 4, 16}});
  };
  const TensorRef input = tensor("input");
  const TensorRef output = tensor("output");
  const TensorRef other = tensor("other");
  const TensorRef result = tensor("result");
  const auto awaits = [&](const auto& op) {
    Program program;
    const PassConfig pass{.shape = config.shape, .training = true};
    Recorder run(storages, config, pass, "", 0, program.entries);
    run(AllGatherCall{.input = input, .output = output, .group = {Axis::tensor}});
    run(Fill{.y = other});
    run(op);
    Program* const programs[] = {&program};
    analyse(programs, storages.all(), table);
    EXPECT_EQ(program.entries.size(), 4U);
    const auto is_await = [&](std::size_t i) {
      const auto* await = std::get_if<Await>(&program.entries[i].operation);
      return await != nullptr && await->input.data == input.data && await->output.data == output.data;
    };
    EXPECT_FALSE(is_await(1));
    EXPECT_NE(is_await(2), is_await(3));  // before the operation, or at the end of the program
    return is_await(2);
  };
  EXPECT_TRUE(awaits(Cast{.x = output, .y = result}));
  EXPECT_TRUE(awaits(Fill{.y = output}));
  EXPECT_TRUE(awaits(Fill{.y = input}));
  EXPECT_TRUE(awaits(DropoutAdd{.x = input, .y = result})) << "which may lie on its operand";
  EXPECT_FALSE(awaits(Cast{.x = input, .y = result}));
  EXPECT_FALSE(awaits(Cast{.x = other, .y = result}));
}

/// Expects a product of a weight gradient between each sum of an input gradient and the first use of its
/// result.
template <class Sum>
void expect_hidden_sums(const Recorded& recorded) {
  const std::vector<Entry>& entries = recorded.backward().entries;
  int sums = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool is_of_block = entries[i].block >= 1 && entries[i].block <= 3;
    if (!is_of_block || !std::holds_alternative<Sum>(entries[i].operation)) continue;
    ++sums;
    int products = 0;
    const void* result = std::get<Sum>(entries[i].operation).call().output.data;
    for (std::size_t j = i + 1; j < entries.size(); ++j) {
      const auto* await = std::get_if<Await>(&entries[j].operation);
      if (await != nullptr && await->output.data == result) break;
      products += std::holds_alternative<LinearBackwardWeight>(entries[j].operation) ? 1 : 0;
    }
    EXPECT_GE(products, 1) << "block " << entries[i].block << ", entry " << i;
  }
  EXPECT_EQ(sums, 2 * 3);  // for the inputs of QKV and of the feed-forward layer
}

/// An input gradient is summed over the ranks while the gradient of the weight is computed.
TEST(Program, WeightGradientsHideTheSumsOfInputGradients) {
  for (const int rank : {0, 1}) {
    expect_hidden_sums<AllReduceCall>(Recorded(small_model(true, 0.0F), {}, rank, {.vocab = true}));
    expect_hidden_sums<ReduceScatterCall>(Recorded(small_model(true, 0.0F), {}, rank));
  }
}

TEST(Program, CountsTheBytesOfAChangedOperandTwice) {
  const TensorRef tensor(address_of(0), DType::bf16, {10});
  const auto bytes = [](const auto& op) {
    Entry entry;
    entry.operation = op;
    return bytes_of(entry);
  };
  EXPECT_EQ(bytes(Fill{.y = tensor}), 20);
  EXPECT_EQ(bytes(AllReduceCall{.buffer = tensor, .group = {Axis::tensor}}), 40);
}

TEST(Program, KnowsWhereItWasRecorded) {
  const Recorded recorded(small_model(true, 0.1F), {.recompute = Recompute::block});
  for (const Entry& entry : recorded.backward().entries) {
    const std::string_view file = entry.where.file_name();
    EXPECT_NE(file.find("core/model/"), std::string_view::npos) << file;
    EXPECT_EQ(file.find("recorder"), std::string_view::npos) << file;
  }
}

/// A use of dropout. `first` is the index of its first element within a sample; `number` is the number of
/// elements of its tensor, which is the query in attention.
using Draw = std::tuple<int, std::int64_t, std::int64_t, std::int64_t>;  // block, sample, first, number
/// The draws of the dropout layers of a program, by key.
using Draws = std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<Draw>>;

Draws draws_of(const Program& program) {
  Draws draws;
  for (const Entry& entry : program.entries) {
    const auto add = [&](const Dropout& dropout, std::int64_t first, const TensorRef& values) {
      if (dropout.probability > 0.0F)
        draws[{dropout.key.k0, dropout.key.k1}].insert(
            {entry.block, dropout.first_sample, first, values.size()});
    };
    const auto add_attention = [&](const AttentionForward& attention) {
      add(attention.dropout, attention.place.element(0, 0, 0), attention.query);
    };
    std::visit(
        [&]<class Op>(const Op& op) {
          if constexpr (std::is_same_v<Op, AttentionForward>) {
            add_attention(op);
          } else if constexpr (std::is_same_v<Op, AttentionBackward>) {
            add_attention(op.forward);
          } else if constexpr (requires { op.dropout.index; }) {
            add(op.dropout, op.dropout.index.first, op.x);
          }
        },
        entry.operation);
  }
  return draws;
}

/// If two layers shared a mask, what they drop would be correlated.
TEST(Program, EveryDropoutLayerDrawsByItsOwnKeyTheSameInBothPasses) {
  const ModelConfig model = small_model(true, 0.1F);
  for (const Recompute recompute : recomputes) {
    SCOPED_TRACE(static_cast<int>(recompute));
    const ProgramConfig config{.recompute = recompute};
    for (const Recorded& recorded :
         {Recorded(model, config), Recorded(model, config, 0), Recorded(model, config, 1)}) {
      const Draws draws = draws_of(recorded.forward());
      // One layer in the embedding; in each block, one in attention and two on the residual stream.
      EXPECT_EQ(std::ssize(draws), 1 + 3 * model.layers);
      std::map<int, int> keys;  // by block
      for (const auto& [key, own] : draws) {
        EXPECT_EQ(std::get<0>(*own.begin()), std::get<0>(*own.rbegin())) << "two blocks share a key";
        ++keys[std::get<0>(*own.begin())];
      }
      EXPECT_EQ(keys[0], 1);
      EXPECT_EQ(keys[1], 3);
      EXPECT_EQ(draws_of(recorded.backward()), draws);
      EXPECT_TRUE(draws_of(recorded.programs.chunks.front().evaluate).empty());
      EXPECT_TRUE(draws_of(recorded.programs.chunks.front().cached.front().program).empty());
    }
  }
  const auto keys_of = [&](std::uint64_t seed) {
    const Draws draws = draws_of(Recorded(model, {.seed = seed}).forward());
    std::set<Draws::key_type> keys;
    for (const auto& [key, own] : draws) keys.insert(key);
    return keys;
  };
  EXPECT_EQ(keys_of(1), keys_of(1));
  EXPECT_TRUE(std::ranges::none_of(keys_of(1), [&](const auto& key) { return keys_of(2).contains(key); }));
}

/// Replays the passages of a rank with one label per granule of its arenas, and checks that each entry finds
/// the values that were written for it; an Await, those that the call may have used until then.
class Playback {
 public:
  explicit Playback(const RankProgram& rank) : rank_(rank), plan_(rank.places()) {
    for (const auto& [arena, bytes] : plan_.arenas()) owners_[arena].resize(bytes / granule);
  }

  void play(const Passage& passage) {
    for (int slot = passage.slot; slot < passage.slot + passage.loads; ++slot) {
      for (const char* name : {"tokens", "targets", "rows", "positions"}) {
        const int storage = rank_.storages().find(passage.prefix + name);
        if (storage >= 0 && plan_.has(slot, storage))
          write(slot, {storage, 0}, rank_.storages().at(storage).bytes);
      }
    }
    for_each_entry(*passage.pass, rank_.pool(), [&](const Entry& entry, const EntryPlace& place) {
      const int slot = place.slot < 0 ? passage.slot : place.slot;
      std::visit([&](const auto& op) { play(op, slot); }, entry.operation);
    });
  }
  int num_reads() const { return num_reads_; }

 private:
  static constexpr std::size_t granule = 256;
  /// The slot and the storage whose value the bytes of a granule hold.
  using Label = std::tuple<int, int>;

  const Storage& storage(int index) const { return rank_.storages().at(index); }
  bool is_planned(int index) const {
    return !storage(index).persists && storage(index).kind != StorageKind::bound;
  }
  bool is_gradient(int index) const { return storage(index).kind == StorageKind::gradients; }
  Label label(int slot, int index) const {
    return {storage(index).kind == StorageKind::activation ? slot : -1, index};
  }

  template <class Op>
  void play(const Op& op, int slot) {
    const auto each = [&](const auto& visit) {
      Op::operands(op,
                   [&](const char* name, const TensorRef& tensor, Access access, const auto&... /*adds*/) {
                     if (tensor && is_planned(place_of(tensor).storage)) visit(name, tensor, access);
                   });
    };
    each([&](const char* name, const TensorRef& tensor, Access access) {
      if (access != Access::read && access != Access::update) return;
      ++num_reads_;
      EXPECT_TRUE(is_there(slot, tensor))
          << Op::name << " reads " << name << ", " << storage(place_of(tensor).storage).name;
    });
    // A result may overlap an operand only if the operation allows it in place, and only if both begin at the
    // same address.
    std::set<std::pair<int, int>> allowed;
    if constexpr (requires { Op::in_place(op, [](const TensorRef&, const TensorRef&) {}); }) {
      Op::in_place(op, [&](const TensorRef& result, const TensorRef& operand) {
        if (result && operand && result.bytes() == operand.bytes())
          allowed.insert({place_of(result).storage, place_of(operand).storage});
      });
    }
    each([&](const char* result_name, const TensorRef& result, Access access) {
      if (access != Access::write && access != Access::scratch) return;
      each([&](const char* operand_name, const TensorRef& operand, Access of_operand) {
        const int a = place_of(result).storage;
        const int b = place_of(operand).storage;
        if (a == b || of_operand == Access::scratch || arena_of(storage(a)) != arena_of(storage(b))) return;
        const std::size_t first = plan_.offset(slot, a);
        const std::size_t second = plan_.offset(slot, b);
        const bool is_apart = first + storage(a).bytes <= second || second + storage(b).bytes <= first;
        EXPECT_TRUE(is_apart || (first == second && allowed.contains({a, b})))
            << Op::name << ", " << result_name << " on " << operand_name;
      });
    });
    each([&](const char* /*name*/, const TensorRef& tensor, Access access) {
      if (access == Access::write || access == Access::scratch)
        write(slot, place_of(tensor), span_of(tensor));
    });
  }

  /// Bytes from the first element of a tensor to its last; of a gradient, without the padding after its unit,
  /// which nothing writes.
  std::size_t span_of(const TensorRef& tensor) const {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < tensor.rank; ++i) last += (tensor.shape[i] - 1) * tensor.stride[i];
    const std::int64_t bytes = (last + 1) * static_cast<std::int64_t>(size_of(tensor.dtype));
    const Place place = place_of(tensor);
    if (!is_gradient(place.storage)) return static_cast<std::size_t>(bytes);
    const std::int64_t end = rank_.table().unit(storage(place.storage).unit).size *
                             static_cast<std::int64_t>(size_of(tensor.dtype));
    return static_cast<std::size_t>(std::clamp<std::int64_t>(end - place.offset, 0, bytes));
  }
  std::pair<std::size_t, std::size_t> granules(int slot, const Place& place, std::size_t bytes) const {
    const std::size_t begin = plan_.offset(slot, place.storage) + static_cast<std::size_t>(place.offset);
    return {begin / granule, (begin + bytes + granule - 1) / granule};
  }
  void write(int slot, const Place& place, std::size_t bytes) {
    std::vector<Label>& owner = owners_.at(arena_of(storage(place.storage)));
    const auto [begin, end] = granules(slot, place, bytes);
    for (std::size_t i = begin; i < std::min(end, owner.size()); ++i) owner[i] = label(slot, place.storage);
  }
  bool is_there(int slot, const TensorRef& tensor) const {
    const Place place = place_of(tensor);
    const std::vector<Label>& owner = owners_.at(arena_of(storage(place.storage)));
    const auto [begin, end] = granules(slot, place, span_of(tensor));
    for (std::size_t i = begin; i < end; ++i) {
      if (owner[i] != label(slot, place.storage)) return false;
    }
    return true;
  }

  const RankProgram& rank_;
  const StoragePlan& plan_;
  std::map<ArenaKey, std::vector<Label>> owners_;  // by granule
  int num_reads_ = 0;
};

/// The passages of a step with all its micro-batches.
std::vector<Passage> whole_step(const RankProgram& rank) {
  std::vector<Passage> passages;
  SlotAssignment slots(rank.schedule());
  rank.schedule().for_each_action(1, false, 1, [&](const Occurrence& occurrence) {
    Passage& passage = passages.emplace_back();
    passage.pass = &rank.pass_of(occurrence.index);
    passage.loads = 0;
    if (!is_of_micro_batch(rank.schedule().actions[occurrence.index].kind)) return;
    passage.slot = slots.of(occurrence);
    passage.loads = slots.is_new() ? 1 : 0;
    slots.finish(occurrence);
  });
  return passages;
}

/// Plays `passages` as often as `rounds` says.
void expect_intact(const RankProgram& rank, const std::vector<Passage>& passages, int rounds = 2) {
  Playback playback(rank);
  for (int round = 0; round < rounds; ++round) {
    for (const Passage& passage : passages) playback.play(passage);
  }
  EXPECT_GT(playback.num_reads(), 100);
}

using enum ActionKind;

const ScheduleKind two_in_flight{
    .name = "two in flight", .doc = "", .make = [](const ScheduleScope& /*scope*/) {
      return std::vector{Schedule{.actions = {{forward, 0},
                                              {forward, 1},
                                              {backward, 0},
                                              {forward, 2},
                                              {backward, 1},
                                              {backward, 2},
                                              {reduce},
                                              {step}},
                                  .micro_batches = 3}};
    }};
/// Micro-batches go through two chunks, the backward pass has two parts, and steps overlap.
const ScheduleKind overlapping_steps{
    .name = "overlapping_steps", .doc = "", .chunks = 2, .make = [](const ScheduleScope& /*scope*/) {
      return std::vector{Schedule{.actions = {{forward, 0, 0, 1},
                                              {forward, 0, 1, 1},
                                              {backward_input, 0, 1},
                                              {backward_input, 0, 0},
                                              {backward_weight, 0, 1},
                                              {backward_weight, 0, 0},
                                              {reduce},
                                              {step},
                                              {step, 0, 1}},
                                  .chunks = 2,
                                  .rules = {{1, 1}, {1, 1}}}};
    }};
/// Calls check(rank) with ranks of every kind of model and recomputation, alone and as one of two along the
/// data and tensor axes, with the first exchanges in turn.
void for_all_ranks(const ScheduleKind& schedule, int micro_batches,
                   const std::function<void(const RankProgram&)>& check,
                   std::size_t most_exchanges = exchanges().size()) {
  std::size_t number = 0;
  for (const bool tied : {true, false}) {
    for (const float dropout : {0.0F, 0.1F}) {
      for (const Recompute recompute : recomputes) {
        for (const int ranks : {1, 2}) {
          RunConfig config = mini_config(small_model(tied, dropout), std::int64_t{32} * ranks * micro_batches,
                                         64, ranks, micro_batches);
          config.parallel.schedule = &schedule;
          config.parallel.tensor = ranks;
          config.parallel.splits = {.vocab = true, .sequence = true};
          config.train.recompute = recompute;
          const ExchangeKind& exchange = *exchanges()[number++ % most_exchanges];
          set_exchange(config, exchange.name, exchange.shards ? ranks : 1);
          SCOPED_TRACE(fmt::format("tied {}, dropout {}, recompute {}, {}, {} ranks", tied, dropout,
                                   static_cast<int>(recompute), exchange.name, ranks));
          check(RankProgram(config, {config.parallel.extents(), ranks * ranks, 0}));
        }
      }
    }
  }
}

TEST(StoragePlan, KeepsEveryValueUntilItsLastReader) {
  for (const int micro_batches : {1, 3, 7})
    for_all_ranks(*schedules().front(), micro_batches, [](const RankProgram& rank) {
      expect_intact(rank, rank.passages());
      expect_intact(rank, whole_step(rank));
    });
}

TEST(StoragePlan, KeepsTheValuesOfTwoMicroBatchesInFlight) {
  const auto check = [](const RankProgram& rank) { expect_intact(rank, rank.passages()); };
  for_all_ranks(two_in_flight, 3, check);
  for_all_ranks(deferred_weights, 2, check, 2);
}

/// The head's gradient of a micro-batch would be overwritten by that of the next before it is complete.
TEST(RankProgram, RefusesDividedGradientsThatMicroBatchesMix) {
  RunConfig config = mini_config(small_model(false, 0.0F), 64, 64, 1, 2);
  config.parallel.schedule = &deferred_weights;
  for (const char* name : {"zero2", "zero3"}) {
    set_exchange(config, name, 1);
    try {
      const RankProgram rank(config, {});
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
    }
  }
}

TEST(StoragePlan, KeepsTheValuesOfOverlappingSteps) {
  const Schedule schedule = overlapping_steps.make({}).front();
  EXPECT_EQ(find_problems({&schedule, 1}), std::vector<std::string>());
  for_all_ranks(
      overlapping_steps, 1,
      [](const RankProgram& rank) {
        const std::vector<Passage> passages = rank.passages();
        // Slot 1 takes the six passages of at least two steps. Evaluation, the last passage, uses slot 0.
        EXPECT_GE(std::ranges::count_if(passages, [](const Passage& passage) { return passage.slot == 1; }),
                  12);
        expect_intact(rank, passages, 1);
      },
      1);
}

/// A gather that the update of one step starts would be awaited by the first pass of the next, wherever that
/// lies.
TEST(RankProgram, RefusesCollectivesBetweenOverlappingSteps) {
  RunConfig config = mini_config(small_model(true, 0.0F), 64, 64, 2);
  config.parallel.schedule = &overlapping_steps;
  const auto make = [&](const char* exchange) {
    set_exchange(config, exchange, exchange == std::string_view("ddp") ? 1 : 2);
    const RankProgram rank(config, config.parallel.coordinates(0));
  };
  EXPECT_NO_THROW(make("ddp"));
  EXPECT_THROW(make("zero1"), Error);
}

/// A step late, as with pipedream_2bw.
const ScheduleKind late_step{
    .name = "late_step", .doc = "", .make = [](const ScheduleScope& /*scope*/) {
      return std::vector{Schedule{.actions = {{forward}, {backward}, {reduce}, {step}}, .rules = {{1, 1}}}};
    }};

/// The versions of zero1's weights would be gathered by every rank.
TEST(RankProgram, RefusesVersionsOfWeightsThatAreGathered) {
  RunConfig config = mini_config(small_model(true, 0.0F), 64, 64, 2);
  config.parallel.schedule = &late_step;
  EXPECT_NO_THROW(RankProgram(config, config.parallel.coordinates(0)));
  set_exchange(config, "zero1", 2);
  EXPECT_THROW(RankProgram(config, config.parallel.coordinates(0)), Error);
}

/// Weights that are set while those of the update are being gathered are gathered after them.
TEST(RankProgram, APublicationAwaitsTheOneBefore) {
  RunConfig config = mini_config(small_model(true, 0.0F), 64, 64, 2);
  set_exchange(config, "zero1", 2);
  const RankProgram rank(config, config.parallel.coordinates(0));
  std::set<const void*> awaited;
  int gathers = 0;
  for_each_entry(rank.publication(), rank.pool(), [&](const Entry& entry, const EntryPlace&) {
    if (const auto* await = std::get_if<Await>(&entry.operation)) awaited.insert(await->output.data);
    if (const auto* gather = std::get_if<AllGatherCall>(&entry.operation)) {
      EXPECT_TRUE(awaited.contains(gather->output.data));
      ++gathers;
    }
  });
  EXPECT_EQ(gathers, rank.table().num_units());
}

TEST(StoragePlan, IsNoLargerForMoreMicroBatches) {
  std::vector<std::size_t> bytes, passages;
  const auto note = [&](const RankProgram& rank) {
    for (const auto& [arena, size] : rank.places().arenas()) bytes.push_back(size);
    passages.push_back(rank.passages().size());
  };
  for_all_ranks(*schedules().front(), 5, note);
  const auto bytes_of_few = std::exchange(bytes, {});
  const auto passages_of_few = std::exchange(passages, {});
  for_all_ranks(*schedules().front(), 200, note);
  EXPECT_EQ(bytes, bytes_of_few);
  for (std::size_t i = 0; i < passages.size(); ++i) EXPECT_EQ(passages[i], passages_of_few[i]);
}

/// Lifetimes written by hand, with a block as the smallest unit of time, needed 10.232, 6.483 and 0.905 GB.
TEST(StoragePlan, TakesNoMoreThanHandWrittenLifetimes) {
  ModelConfig model;
  model.layers = 48;
  model.heads = 25;
  model.width = 1600;
  const auto bytes = [&](Recompute recompute) {
    RunConfig config = mini_config(model, 4, 1024);
    config.train.dtype = DType::bf16;
    config.train.recompute = recompute;
    return static_cast<double>(RankProgram(config, {}).places().bytes(MemoryCategory::activations));
  };
  EXPECT_LE(bytes(Recompute::none), 10.2325e9);
  EXPECT_LE(bytes(Recompute::selective), 6.4835e9);
  EXPECT_LE(bytes(Recompute::block), 0.95 * 0.9045e9);
}

TEST(SplitProgram, DefersTheGradientsOfWeights) {
  for_all_models({.splits_backward = true}, [](const Recorded& recorded) {
    const Program& input = recorded.programs.chunks.front().backward.front();
    const Program& weight = recorded.programs.chunks.front().backward.back();
    for (const int block : {1, 2, 3}) {
      EXPECT_EQ(count<LinearBackwardWeight>(input, block), 0);
      EXPECT_EQ(count<LayernormBackwardWeight>(input, block) + count<LayernormBackward>(input, block), 0);
      EXPECT_EQ(count<LayernormBackwardWeight>(weight, block), 2);
      EXPECT_EQ(count<LinearBackwardWeight>(weight, block), 4);
      EXPECT_EQ(count<LinearBackwardInput>(weight, block), 0);
    }
    // The next slice reuses the memory of the logits, so the head's weight gradient is not deferred_weights.
    EXPECT_GE(count<LinearBackwardWeight>(input, 4), 1);
    EXPECT_EQ(count<EmbeddingBackward>(weight, 0), 1);
    expect_completion(recorded, {&input, &weight});
    expect_contributions(recorded, {&input, &weight});
    expect_uses(recorded, input);
    expect_uses(recorded, weight);
  });
}

/// If the head is on the same rank, a tied embedding adds to the gradient that the head wrote. On a stage
/// without the head it must overwrite, because it would otherwise add to the gradient of the previous step.
TEST(Program, TheFirstContributionOnARankWrites) {
  const auto adds = [](const Recorded& recorded) {
    const Program& stage = recorded.programs.chunks.front().backward.front();
    return std::get<EmbeddingBackward>(stage.entries.back().operation).accumulate_wte;
  };
  const Recorded together(small_model(true, 0.0F), {.cuts = {.chunks = 2}});
  EXPECT_TRUE(adds(together));
  const Program& first = together.programs.chunks.front().backward.front();
  const Program& last = together.programs.chunks.back().backward.front();
  expect_completion(together, {&last, &first});
  expect_contributions(together, {&last, &first});
  EXPECT_FALSE(adds(Recorded(small_model(true, 0.0F), {.cuts = {.chunks = 2}, .held = {0}})));
}

/// Without drops there are more rows than in training, in which the block also takes fewer tokens: slices.
TEST(Experts, EvaluationOfARoutedBlockNeedsNoMoreRowsThanTraining) {
  ModelConfig model{.layers = 1, .heads = 2, .width = 16, .context = 32, .vocab = 11};
  model.experts = {.count = 4, .per_token = 2, .width = 8, .capacity = 1.0};
  model.depths = {.capacity = 0.25, .every = 1};
  const ParameterTable table = parameters_of(model);
  const ModelPrograms programs = record_programs(model, table, {.shape = {.batch = 2, .seq = 32}});
  const int trained = programs.storages.find("h.0.experts.rows");
  ASSERT_GE(trained, 0);
  int slices = 0;
  for (const Storage& storage : programs.storages.all()) {
    if (!storage.name.starts_with("evaluated h.0.experts.rows")) continue;
    EXPECT_LE(storage.bytes, programs.storages.at(trained).bytes) << storage.name;
    ++slices;
  }
  EXPECT_GT(slices, 0);
}

}  // namespace
}  // namespace mylos
