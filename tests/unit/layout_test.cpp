// SPDX-License-Identifier: BSD-3-Clause
// The parts of a model that the ranks of a grid hold, and the boxes that describe them. Weights and
// checkpoints do not depend on the grid.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "app/train/model_state.hpp"
#include "core/base/rng.hpp"
#include "core/layout/box.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/memory/pinned_buffer.hpp"
#include "core/model/parameters.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/parallel/lone_rank.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

using Shape = std::vector<std::int64_t>;

/// The flat indices of a box's elements, in the order of the box.
std::vector<std::int64_t> elements_of(const Box& box, const Shape& shape) {
  std::vector<std::int64_t> elements;
  for (std::int64_t i = 0; i < box.size(); ++i) {
    std::int64_t rest = i;
    std::int64_t element = 0;
    std::int64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      element += (box.start[d] + rest % box.count[d]) * stride;
      rest /= box.count[d];
      stride *= shape[d];
    }
    elements.push_back(element);
  }
  return elements;
}

/// Where the elements of a placed box lie in memory, in the order of the box.
std::vector<std::int64_t> places_of(const PlacedBox& placed) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < placed.box.size(); ++i) {
    std::int64_t rest = i;
    std::int64_t place = placed.offset;
    for (std::size_t d = placed.stride.size(); d-- > 0;) {
      place += rest % placed.box.count[d] * placed.stride[d];
      rest /= placed.box.count[d];
    }
    places.push_back(place);
  }
  return places;
}

/// Two dimensions make no matrix of them.
TEST(Parameters, BiasesOfExpertsAndPredictorsNeverDecay) {
  ModelConfig model{.layers = 2, .heads = 2, .width = 8, .context = 4, .vocab = 11};
  model.experts = {.count = 3, .width = 16, .has_shared = true, .noise = RouterNoise::Kind::learned};
  model.depths = {.capacity = 0.5, .every = 2};
  const ParameterTable table = parameters_of(model);
  EXPECT_EQ(table.find("h.1.depth.router.weight").shape, (Shape{8, 1}));
  EXPECT_EQ(table.find("h.1.depth.predictor.c_fc.weight").shape, (Shape{8, 1}));
  for (const Parameter& parameter : table.parameters()) {
    const bool is_matrix = parameter.name.ends_with(".weight") && !parameter.is_norm;
    EXPECT_EQ(parameter.decay, is_matrix) << parameter.name;
  }
}

TEST(Box, CoversARangeWithAFewBoxesInOrder) {
  const Shape shape = {3, 4, 5};
  for (std::int64_t begin = 0; begin <= 60; ++begin) {
    for (std::int64_t end = begin; end <= 60; ++end) {
      std::vector<std::int64_t> elements;
      std::vector<std::int64_t> places;
      const std::vector<PlacedBox> boxes = boxes_of_range(shape, begin, end);
      EXPECT_LE(boxes.size(), 5U);
      for (const PlacedBox& box : boxes) {
        std::ranges::copy(elements_of(box.box, shape), std::back_inserter(elements));
        std::ranges::copy(places_of(box), std::back_inserter(places));
      }
      std::vector<std::int64_t> expected(static_cast<std::size_t>(end - begin));
      std::iota(expected.begin(), expected.end(), begin);
      EXPECT_EQ(elements, expected);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(places, expected);
    }
  }
}

TEST(Box, CoverIsDisjointAndComplete) {
  const Shape shape = {4, 6};
  const Box left{{0, 0}, {4, 2}};
  const Box right{{0, 2}, {4, 4}};
  EXPECT_TRUE(cover_once(shape, {left, right}));
  EXPECT_TRUE(cover_once(shape, {right, {{2, 0}, {2, 2}}, {{0, 0}, {0, 6}}, {{0, 0}, {2, 2}}}));
  EXPECT_FALSE(cover_once(shape, {left}));
  EXPECT_FALSE(cover_once(shape, {left, right, {{1, 1}, {1, 1}}}));
  // As many elements as the shape has, but column 1 is covered twice, or a column is outside the shape.
  EXPECT_FALSE(cover_once(shape, {left, {{0, 2}, {4, 3}}, {{0, 1}, {4, 1}}}));
  EXPECT_FALSE(cover_once(shape, {left, {{0, 3}, {4, 4}}}));
}

ModelConfig model(bool tied = true) {
  ModelConfig model;
  model.layers = 2;
  model.heads = 6;
  model.width = 30;
  model.context = 10;
  model.vocab = 101;
  model.tied = tied;
  return model;
}

const std::vector<GridExtents>& grids() {
  static const std::vector<GridExtents> all = {{},
                                               {{Axis::tensor, 2}},
                                               {{Axis::tensor, 3}},
                                               {{Axis::replicate, 3}},
                                               {{Axis::replicate, 2}, {Axis::shard, 2}, {Axis::tensor, 3}},
                                               {{Axis::tensor, 6}, {Axis::context, 2}}};
  return all;
}

int world_of(const GridExtents& e) {
  int ranks = 1;
  for (const int extent : e.along) ranks *= extent;
  return ranks;
}

TEST(Layout, LocalShapesAreThoseOfMegatron) {
  const ParameterTable table = parameters_of(model()).local(Coordinates({{Axis::tensor, 3}}, 3, 1));
  EXPECT_EQ(table.find("wte.weight").local_shape(), (Shape{101, 30}));
  EXPECT_EQ(table.find("h.0.attn.c_attn.weight").local_shape(), (Shape{30, 30}));
  EXPECT_EQ(table.find("h.0.attn.c_attn.bias").local_shape(), (Shape{30}));
  EXPECT_EQ(table.find("h.0.attn.c_proj.weight").local_shape(), (Shape{10, 30}));
  EXPECT_EQ(table.find("h.0.mlp.c_fc.weight").local_shape(), (Shape{30, 40}));
  EXPECT_EQ(table.find("h.0.mlp.c_proj.weight").local_shape(), (Shape{40, 30}));
  EXPECT_EQ(table.find("h.0.mlp.c_proj.bias").local_shape(), (Shape{30}));
  EXPECT_EQ(table.find("h.0.attn.c_attn.weight").box.start, (Shape{0, 0, 2, 0}));
  EXPECT_EQ(table.find("h.0.ln_1.weight").copies, 3);
  EXPECT_EQ(table.find("h.0.mlp.c_fc.weight").copies, 1);
  EXPECT_EQ(table.num_parameters(), parameters_of(model()).num_parameters());
  EXPECT_THROW(parameters_of(model()).local(Coordinates({{Axis::tensor, 4}}, 4, 0)), Error);
}

/// 101 tokens are padded to a multiple of lcm(vocab_multiple, ranks); lcm(8, 3) gives 120.
TEST(Layout, AVocabularyIsDividedAfterPadding) {
  ModelConfig config = model();
  config.vocab_multiple = 8;
  const auto rows_of = [&](int ranks, int rank) {
    const ParameterTable table =
        parameters_of(config).local(Coordinates({{Axis::tensor, ranks}}, ranks, rank), {.vocab = true});
    const Parameter& tokens = table.find("wte.weight");
    EXPECT_EQ(tokens.parts, ranks);
    EXPECT_EQ(tokens.copies, 1);
    return std::vector<std::int64_t>{tokens.box.start[0], tokens.box.count[0], tokens.padded_rows};
  };
  EXPECT_EQ(rows_of(3, 0), (Shape{0, 40, 40}));
  EXPECT_EQ(rows_of(3, 2), (Shape{80, 21, 40}));
  config.vocab_multiple = 256;
  EXPECT_EQ(rows_of(6, 1), (Shape{101, 0, 128}));  // padded to 768, of which each of 6 ranks has 128
  EXPECT_EQ(rows_of(2, 0), (Shape{0, 101, 128}));
}

/// Ranks that divide the residual stream hold partial sums of the gradients of its norms. No other gradient
/// is summed along the tensor axis.
TEST(Layout, NormsOfADividedStreamAreSummed) {
  const Coordinates at({{Axis::tensor, 3}}, 3, 1);
  for (const bool divides : {false, true}) {
    const ParameterTable table = parameters_of(model()).local(at, {.sequence = divides});
    for (const Parameter& parameter : table.parameters()) {
      const bool is_norm = parameter.name.find("ln_") != std::string::npos;
      EXPECT_EQ(parameter.is_norm, is_norm);
      EXPECT_EQ(parameter.along(Axis::tensor).kind == Placement::Kind::summed, divides && is_norm)
          << parameter.name;
      EXPECT_EQ(parameter.twins, parameter.is_split(Axis::tensor) ? 1 : 3) << parameter.name;
    }
  }
}

TEST(Layout, PiecesOfAllRanksCoverEachParameterOnce) {
  for (const GridExtents& extents : grids()) {
    const bool divides_vocab = extents[Axis::shard] > 1 || extents[Axis::tensor] == 2;
    const int ranks = world_of(extents);
    std::map<std::string, std::vector<Box>> boxes;
    for (int rank = 0; rank < ranks; ++rank) {
      const Coordinates at(extents, ranks, rank);
      if (at.index(loss_axes) > 0) continue;  // holds copies of the first replica's parts
      const ParameterTable table = parameters_of(model()).local(at, {.vocab = divides_vocab});
      bool has_part_of_twins = false;
      for (int unit = 0; unit < table.num_units(); ++unit) {
        const std::int64_t cut = table.unit(unit).size / 3 + 1;  // no parameter begins here
        for (const UnitPart& part :
             {UnitPart{unit, 0, cut}, UnitPart{unit, cut, table.unit(unit).size - cut}}) {
          for (const Piece& held : pieces_of(table, part)) {
            const Piece piece = held.share();
            has_part_of_twins |= piece.parameter.twins > 1 && piece.count > 0;
            for (const PlacedBox& placed : piece.boxes()) boxes[piece.parameter.name].push_back(placed.box);
          }
        }
      }
      // Each twin stores some of the parameters, which are too small to be divided.
      EXPECT_EQ(has_part_of_twins, extents[Axis::tensor] > 1) << "rank " << rank << " of " << ranks;
    }
    const ParameterTable whole = parameters_of(model());
    for (const Parameter& parameter : whole.parameters()) {
      EXPECT_TRUE(cover_once(parameter.shape, boxes[parameter.name])) << parameter.name << ", " << ranks;
    }
  }
}

TEST(Layout, BoxesAndGlobalIndicesAgree) {
  for (int rank = 0; rank < 3; ++rank) {
    const ParameterTable table = parameters_of(model()).local(Coordinates({{Axis::tensor, 3}}, 3, rank));
    for (const Parameter& parameter : table.parameters()) {
      const UnitPart part{parameter.unit, parameter.offset + 7, parameter.size() - 9};
      for (const Piece& piece : pieces_of(table, part)) {
        if (piece.parameter.name != parameter.name) continue;
        const GlobalIndex index = piece.global_index();
        std::int64_t elements = 0;
        for (const PlacedBox& placed : piece.boxes()) {
          const std::vector<std::int64_t> global = elements_of(placed.box, parameter.shape);
          const std::vector<std::int64_t> places = places_of(placed);
          for (std::size_t i = 0; i < places.size(); ++i)
            ASSERT_EQ(index(places[i] - piece.offset), global[i]) << parameter.name;
          elements += placed.box.size();
        }
        EXPECT_EQ(elements, piece.count) << parameter.name;
      }
    }
  }
}

RunConfig held_config(DType dtype, bool keeps_master = true) {
  RunConfig config = mini_config(model(), 1, 1);
  config.train.dtype = dtype;
  config.optimizer.keeps_master = keeps_master;
  return config;
}

/// The master weights that the rank holds, without padding.
std::vector<float> held(ComputeBackend& backend, LoneRank& rank, const Parameter& parameter) {
  const TensorRef master = rank.state().master(static_cast<std::size_t>(parameter.unit));
  std::vector<float> values(static_cast<std::size_t>(parameter.size()));
  const TensorRef place = master.flat(parameter.offset, parameter.size());
  backend.copy_to_host(place.data, values.data(), place.bytes());
  backend.synchronize();
  return values;
}

class LayoutOnBackend : public testing::TestWithParam<std::string> {
 protected:
  ComputeBackend& backend_ = test_backends().at(GetParam());
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::map<DType, RunConfig> configs_ = {{DType::fp32, held_config(DType::fp32)},
                                         {DType::bf16, held_config(DType::bf16)}};

  /// All ranks of a grid.
  std::vector<std::unique_ptr<LoneRank>> ranks_of(const GridExtents& extents, DType dtype) {
    std::vector<std::unique_ptr<LoneRank>> ranks;
    const int world = world_of(extents);
    for (int rank = 0; rank < world; ++rank) {
      const Coordinates at(extents, world, rank);
      ranks.push_back(std::make_unique<LoneRank>(backend_, *self_, configs_[dtype], at));
    }
    return ranks;
  }

  /// Expects the ranks to hold the weights of `whole`.
  void expect_same(LoneRank& whole, const std::vector<std::unique_ptr<LoneRank>>& ranks) {
    for (const auto& rank : ranks) {
      for (const Parameter& parameter : rank->table().parameters()) {
        const std::vector<float> all = held(backend_, whole, whole.table().find(parameter.name));
        const std::vector<float> part = held(backend_, *rank, parameter);
        const GlobalIndex index = parameter.global_index();
        for (std::size_t i = 0; i < part.size(); ++i) {
          ASSERT_EQ(part[i], all[static_cast<std::size_t>(index(static_cast<std::int64_t>(i)))])
              << parameter.name << " " << i;
        }
      }
    }
  }
};

TEST_P(LayoutOnBackend, InitialWeightsAreTheSameOnEveryGrid) {
  LoneRank whole(backend_, *self_, configs_[DType::bf16]);
  whole.initialise(3);
  for (const GridExtents& extents : grids()) {
    const auto ranks = ranks_of(extents, DType::bf16);
    for (const auto& rank : ranks) rank->initialise(3);
    expect_same(whole, ranks);
  }
}

TEST_P(LayoutOnBackend, ACheckpointOfAnyGridRestoresAnyOther) {
  LoneRank whole(backend_, *self_, configs_[DType::fp32]);
  whole.initialise(5);
  const test::ScratchDirectory scratch;
  IoThread io;
  for (const GridExtents& from : {grids()[0], grids()[2]}) {
    const auto writers = ranks_of(from, DType::fp32);
    CheckpointContent content;  // what all writers write together
    for (const auto& writer : writers) {
      writer->initialise(5);
      CheckpointContent own = writer->content();
      if (content.tensors.empty()) {
        content = std::move(own);
        continue;
      }
      for (std::size_t i = 0; i < content.tensors.size(); ++i) {
        ASSERT_EQ(content.tensors[i].info.name, own.tensors[i].info.name);
        std::ranges::copy(own.tensors[i].parts, std::back_inserter(content.tensors[i].parts));
      }
    }
    content.state = {.step = world_of(from), .json = "{}"};
    CheckpointStore store(io, io, scratch.path(), {});
    store.write(content);
    CheckpointReader reader(io, store.path_of(world_of(from)));
    for (const GridExtents& to : grids()) {
      const auto readers = ranks_of(to, DType::fp32);
      for (const auto& rank : readers) rank->restore_from(reader);
      expect_same(whole, readers);
    }
  }
}

TEST_P(LayoutOnBackend, ASnapshotKeepsWhatTrainingChanges) {
  const test::ScratchDirectory scratch;
  IoThread io;
  for (const bool keeps_master : {true, false}) {
    const RunConfig config = held_config(DType::bf16, keeps_master);
    LoneRank whole(backend_, *self_, config);
    whole.initialise(3);
    CheckpointStore store(io, io, scratch.path(), {});
    CheckpointContent as_it_is = whole.content();
    CheckpointContent copied = whole.snapshot();
    as_it_is.state = {.step = 1, .json = "{}"};
    copied.state = {.step = 2, .json = "{}"};
    store.write(as_it_is);
    whole.initialise(5);
    store.write(copied);
    store.finish();
    for (const char* file : {"weights.h5", "optimizer.h5"})
      EXPECT_TRUE(test::slurp(store.path_of(1) / file) == test::slurp(store.path_of(2) / file)) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LayoutOnBackend, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

}  // namespace
}  // namespace mylos
