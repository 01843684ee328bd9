// SPDX-License-Identifier: BSD-3-Clause
#include "core/layout/parameter_table.hpp"

#include <set>

#include <gtest/gtest.h>

#include "core/model/parameters.hpp"

namespace mylos {
namespace {

ModelConfig model_of(std::int64_t layers, std::int64_t heads, std::int64_t width) {
  ModelConfig model;
  model.layers = layers;
  model.heads = heads;
  model.width = width;
  return model;
}

TEST(ParameterTable, CountsThePublishedModels) {
  EXPECT_EQ(parameters_of(model_of(12, 12, 768)).num_parameters(), 124'439'808);
  EXPECT_EQ(parameters_of(model_of(24, 16, 1024)).num_parameters(), 354'823'168);
  EXPECT_EQ(parameters_of(model_of(36, 20, 1280)).num_parameters(), 774'030'080);
  EXPECT_EQ(parameters_of(model_of(48, 25, 1600)).num_parameters(), 1'557'611'200);
}

ModelConfig odd_model(bool tied) {
  ModelConfig model = model_of(3, 3, 45);
  model.context = 37;
  model.vocab = 211;
  model.tied = tied;
  return model;
}

TEST(ParameterTable, HasHuggingFacesNamesAndShapes) {
  const ParameterTable table = parameters_of(odd_model(true));
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(table.find("wte.weight").shape, (Shape{211, 45}));
  EXPECT_EQ(table.find("wpe.weight").shape, (Shape{37, 45}));
  EXPECT_EQ(table.find("h.2.ln_1.weight").shape, (Shape{45}));
  EXPECT_EQ(table.find("h.2.ln_1.bias").shape, (Shape{45}));
  EXPECT_EQ(table.find("h.2.attn.c_attn.weight").shape, (Shape{45, 135}));
  EXPECT_EQ(table.find("h.2.attn.c_attn.bias").shape, (Shape{135}));
  EXPECT_EQ(table.find("h.2.attn.c_proj.weight").shape, (Shape{45, 45}));
  EXPECT_EQ(table.find("h.2.attn.c_proj.bias").shape, (Shape{45}));
  EXPECT_EQ(table.find("h.2.ln_2.weight").shape, (Shape{45}));
  EXPECT_EQ(table.find("h.2.ln_2.bias").shape, (Shape{45}));
  EXPECT_EQ(table.find("h.2.mlp.c_fc.weight").shape, (Shape{45, 180}));
  EXPECT_EQ(table.find("h.2.mlp.c_fc.bias").shape, (Shape{180}));
  EXPECT_EQ(table.find("h.2.mlp.c_proj.weight").shape, (Shape{180, 45}));
  EXPECT_EQ(table.find("h.2.mlp.c_proj.bias").shape, (Shape{45}));
  EXPECT_EQ(table.find("ln_f.weight").shape, (Shape{45}));
  EXPECT_EQ(table.find("ln_f.bias").shape, (Shape{45}));
  EXPECT_EQ(table.parameters().size(), 2U + 3 * 12 + 2);
  EXPECT_THROW(table.find("lm_head.weight"), Error);
  EXPECT_EQ(parameters_of(odd_model(false)).find("lm_head.weight").shape, (Shape{211, 45}));
}

TEST(ParameterTable, HasFeedForwardLayersOfAnyWidth) {
  ModelConfig model = odd_model(true);
  const std::int64_t parameters = parameters_of(model).num_parameters();
  model.feed_forward = 77;
  const ParameterTable table = parameters_of(model);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(table.find("h.2.mlp.c_fc.weight").shape, (Shape{45, 77}));
  EXPECT_EQ(table.find("h.2.mlp.c_fc.bias").shape, (Shape{77}));
  EXPECT_EQ(table.find("h.2.mlp.c_proj.weight").shape, (Shape{77, 45}));
  EXPECT_EQ(table.num_parameters(), parameters - 3 * (180 - 77) * (2 * 45 + 1));
}

TEST(ParameterTable, PadsTheVocabularyOnly) {
  const ParameterTable table = parameters_of(odd_model(false));
  for (const Parameter& parameter : table.parameters()) {
    const bool vocabulary = parameter.name == "wte.weight" || parameter.name == "lm_head.weight";
    EXPECT_EQ(parameter.padded_rows, vocabulary ? 256 : parameter.shape[0]) << parameter.name;
  }
}

TEST(ParameterTable, LaysUnitsOutWithoutOverlap) {
  for (const bool tied : {true, false}) {
    const ParameterTable table = parameters_of(odd_model(tied));
    std::set<std::string> names;
    for (int unit = 0; unit < table.num_units(); ++unit) {
      std::int64_t end = 0;
      for (const int index : table.units()[static_cast<std::size_t>(unit)].parameters) {
        const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
        EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
        EXPECT_EQ(parameter.unit, unit) << parameter.name;
        EXPECT_EQ(parameter.offset % ParameterTable::alignment, 0) << parameter.name;
        EXPECT_GE(parameter.offset, end) << parameter.name;
        EXPECT_LT(parameter.offset, end + ParameterTable::alignment) << parameter.name;
        end = parameter.offset + parameter.padded_size();
      }
      EXPECT_LE(end, table.units()[static_cast<std::size_t>(unit)].size);
    }
    EXPECT_EQ(names.size(), table.parameters().size());
  }
}

TEST(ParameterTable, DecaysMatricesOnly) {
  const ParameterTable table = parameters_of(odd_model(false));
  for (const Parameter& parameter : table.parameters())
    EXPECT_EQ(parameter.decay, parameter.shape.size() >= 2) << parameter.name;
}

TEST(ParameterTable, ScalesResidualProjectionsByDepth) {
  const ParameterTable table = parameters_of(model_of(8, 4, 64));
  for (const Parameter& parameter : table.parameters()) {
    const bool norm_weight =
        parameter.name.find("ln_") != std::string::npos && parameter.name.ends_with("weight");
    const Initialisation expected = parameter.decay ? Initialisation::normal
                                    : norm_weight   ? Initialisation::ones
                                                    : Initialisation::zeros;
    EXPECT_EQ(parameter.initialisation, expected) << parameter.name;
    if (!parameter.decay) continue;
    const bool residual = parameter.name.ends_with("c_proj.weight");
    EXPECT_FLOAT_EQ(parameter.stddev, residual ? 0.005F : 0.02F) << parameter.name;  // 0.02 / sqrt(2 * 8)
  }
}

}  // namespace
}  // namespace mylos
