// SPDX-License-Identifier: BSD-3-Clause
// The cases of the operations of a mixture of experts.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/ops/case_table.hpp"
#include "tests/ops/expert_oracle.hpp"

namespace mylos {

namespace {

constexpr std::array<RouterKind, 2> router_kinds = {RouterKind::topk_softmax, RouterKind::softmax_topk};
constexpr std::array<RouterNoise::Kind, 3> noises = {RouterNoise::Kind::none, RouterNoise::Kind::normal,
                                                     RouterNoise::Kind::learned};

std::string_view text_of(RouterNoise::Kind kind) {
  constexpr std::array<std::string_view, 3> texts = {"", "_normal", "_learned"};
  return texts[static_cast<std::size_t>(kind)];
}

std::vector<std::int32_t> integers_of(const oracle::Array& a) {
  std::vector<std::int32_t> values;
  for (const double value : a.values) values.push_back(static_cast<std::int32_t>(value));
  return values;
}

/// Packed rows; in results, those that do not exist must keep their old content.
Operand packed(Operand operand) {
  operand.packed = true;
  if (operand.is_result()) operand.role = Role::updated;
  return operand;
}

/// How tokens choose their experts, and who gets a place.
struct Routing {
  std::int64_t samples, length, experts, choices;
  std::int64_t parts = 1;
  std::int64_t capacity = 0;
  bool by_choice = false;
  bool is_even = false;    // otherwise low experts are chosen more often, and expert E / 2 never if k < E
  std::int64_t spare = 3;  // rows of the fullest part that do not exist
};

std::string detail_of(const Routing& s) {
  return fmt::format("B{}_T{}_E{}_k{}", s.samples, s.length, s.experts, s.choices) +
         (s.parts == 1 ? "" : fmt::format("_P{}", s.parts)) +
         (s.capacity == 0 ? "" : fmt::format("_cap{}", s.capacity)) + (s.by_choice ? "_by_choice" : "");
}

oracle::Array choices_of(const Routing& s) {
  oracle::Array likings({s.samples, s.length, s.experts});
  for (std::int64_t i = 0; i < likings.size(); ++i) {
    const std::int64_t expert = i % s.experts;
    const double u = static_cast<double>(mix64(static_cast<std::uint64_t>(i + 1)) >> 11U) * 0x1.0p-53;
    likings[i] = s.is_even ? u : u / (1.0 + 0.3 * static_cast<double>(expert));
    if (!s.is_even && s.choices < s.experts && expert == s.experts / 2) likings[i] = -1.0;
  }
  return oracle::largest_scores(likings, s.choices);
}

/// What ExpertPlaces computes from the choices.
struct Places {
  std::int64_t rows_of_part = 0;  // R
  std::vector<std::int64_t> part_rows;
  std::vector<std::int32_t> choices, places, pairs, offsets;

  explicit Places(const Routing& s) {
    const oracle::Array all_choices = choices_of(s);
    const std::int64_t local = s.experts / s.parts;
    oracle::Array loads, all_places, all_offsets({s.parts, local + 1});
    oracle::Array all_pairs({s.parts, all_choices.size()});
    oracle::expert_places(all_choices, s.capacity, s.by_choice, loads, all_places, all_pairs, all_offsets);
    for (std::int64_t part = 0; part < s.parts; ++part) {
      part_rows.push_back(static_cast<std::int64_t>(all_offsets[part * (local + 1) + local]));
    }
    rows_of_part = std::ranges::max(part_rows) + s.spare;
    all_pairs = oracle::Array({s.parts, rows_of_part});
    oracle::expert_places(all_choices, s.capacity, s.by_choice, loads, all_places, all_pairs, all_offsets);
    choices = integers_of(all_choices);
    places = integers_of(all_places);
    pairs = integers_of(all_pairs);
    offsets = integers_of(all_offsets);
  }
  std::int64_t rows() const { return std::accumulate(part_rows.begin(), part_rows.end(), std::int64_t{0}); }
};

// ---- Router

struct Router {
  std::int64_t samples, length, width, experts;
};

void router_products(CaseTable& table, bool full_size, const Router& s, DType dtype) {
  const std::string detail =
      fmt::format("{}_B{}_T{}_C{}_E{}", name_of(dtype), s.samples, s.length, s.width, s.experts);
  const double spread = unit_spread / std::sqrt(static_cast<double>(s.width));
  const Operand x = input("x", dtype, {s.samples, s.length, s.width});
  const Operand w = input("w", dtype, {s.width, s.experts}, -spread, spread);
  const Operand dlogits = input("dlogits", DType::fp32, {s.samples, s.length, s.experts});
  table.add({.op = Op::router_forward,
             .full_size = full_size,
             .detail = detail,
             .operands = {x, w, result("logits", DType::fp32, {s.samples, s.length, s.experts}, 2e-6)}});
  for (const std::string_view residual : {"", "_residual", "_into_residual"}) {
    if (full_size && residual != "_residual") continue;
    Operand dx = result("dx", dtype, {s.samples, s.length, s.width}, 2e-6);
    std::vector<Operand> operands = {dlogits, w};
    if (!residual.empty()) {
      operands.push_back(input("residual", dtype, {s.samples, s.length, s.width}));
      dx.floor = unit_spread;  // the terms may cancel
    }
    operands.push_back(residual == "_into_residual" ? in_storage(dx, "residual") : dx);
    table.add({.op = Op::router_backward_input,
               .full_size = full_size,
               .detail = fmt::format("{}{}", detail, residual),
               .operands = std::move(operands),
               .scale = std::string_view(residual).empty() ? 1.0F : 0.25F});
  }
  for (const DType gradient : gradient_types(dtype)) {
    for (const bool accumulate : {false, true}) {
      if (full_size && (!accumulate || gradient != DType::fp32)) continue;
      table.add({.op = Op::router_backward_weight,
                 .full_size = full_size,
                 .detail = fmt::format("{}_d{}{}", detail, name_of(gradient), accumulate ? "_add" : ""),
                 .operands = {x, dlogits, result("dw", gradient, {s.width, s.experts}, 2e-6, accumulate)},
                 .accumulate = accumulate});
    }
  }
}

struct Choice {
  std::int64_t samples, length, experts, choices;
};

std::string detail_of(const Choice& s) {
  return fmt::format("fp32_B{}_T{}_E{}_k{}", s.samples, s.length, s.experts, s.choices);
}

/// Logits far apart, since kernels draw noise in fp32.
Operand logits_of(const Choice& s, double largest) {
  return input("logits", DType::fp32, {s.samples, s.length, s.experts}, -largest, largest);
}

Operand noise_logits_of(const Choice& s) {
  return input("noise_logits", DType::fp32, {s.samples, s.length, s.experts}, -3.0, 3.0);
}

void router_choice(CaseTable& table, bool full_size, const Choice& s, RouterKind kind,
                   RouterNoise::Kind noise) {
  OpCase c{.op = Op::router_choice,
           .full_size = full_size,
           .detail = fmt::format("{}_{}{}", detail_of(s), name_of(kind), text_of(noise)),
           .operands = {logits_of(s, 8.0)},
           .router = kind,
           .noise = noise,
           .scalars = {.step = 3}};
  if (noise == RouterNoise::Kind::learned) c.operands.push_back(noise_logits_of(s));
  if (noise != RouterNoise::Kind::none) {
    c.operands.push_back(result("scores", DType::fp32, {s.samples, s.length, s.experts}, 2e-6));
  }
  c.operands.push_back(result("choices", DType::int32, {s.samples, s.length, s.choices}, 0.0));
  c.operands.push_back(result("gates", DType::fp32, {s.samples, s.length, s.choices}, 4e-6));
  table.add(std::move(c));
}

/// Logits that are whole numbers, many of them equal.
void router_ties(CaseTable& table, const Choice& s, RouterKind kind) {
  router_choice(table, false, s, kind, RouterNoise::Kind::none);
  OpCase c = std::move(table.cases.back());
  table.cases.pop_back();
  std::vector<std::int32_t> logits;
  for (std::int64_t i = 0; i < s.samples * s.length * s.experts; ++i) {
    logits.push_back(static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i + 1)) % 3) - 1);
  }
  c.integers = {{"logits", std::move(logits)}};
  c.detail += "_ties";
  table.add(std::move(c));
}

void router_statistics(CaseTable& table, bool full_size, const Choice& s, RouterNoise::Kind noise,
                       std::int64_t capacity, bool accumulate) {
  OpCase c{
      .op = Op::router_statistics,
      .full_size = full_size,
      .detail = fmt::format("{}{}{}{}", detail_of(s), text_of(noise),
                            capacity == 0 ? "" : fmt::format("_cap{}", capacity), accumulate ? "_add" : ""),
      .operands = {logits_of(s, 3.0), derived("loads", DType::int32, {s.samples, s.experts}),
                   result("sums", DType::fp32, {3 + s.experts}, 2e-6, accumulate)},
      .accumulate = accumulate,
      .choices = s.choices,
      .capacity = capacity,
      .noise = noise,
      .scalars = {.step = 3}};
  if (accumulate) {  // to whole numbers, so that counts stay exact
    std::vector<std::int32_t> old(static_cast<std::size_t>(3 + s.experts));
    std::iota(old.begin(), old.end(), 5);
    c.integers = {{"sums", std::move(old)}};
  }
  if (noise != RouterNoise::Kind::none) {
    c.operands.push_back(derived("scores", DType::fp32, {s.samples, s.length, s.experts}));
  }
  table.add(std::move(c));
}

void router_gradient(CaseTable& table, bool full_size, const Choice& s, RouterKind kind,
                     RouterNoise::Kind noise, float balance_scale, float z_scale) {
  const Shape scores = {s.samples, s.length, s.experts};
  const Shape chosen = {s.samples, s.length, s.choices};
  const auto gradient = [&](std::string name) {
    Operand operand = result(std::move(name), DType::fp32, scores, 1e-5);
    operand.floor = 0.1;  // the gate of the only choice has no gradient
    return operand;
  };
  OpCase c{.op = Op::router_gradient,
           .full_size = full_size,
           .detail = fmt::format("{}_{}{}{}{}", detail_of(s), name_of(kind), text_of(noise),
                                 balance_scale == 0.0F ? "" : "_balance", z_scale == 0.0F ? "" : "_z"),
           .operands = {logits_of(s, 3.0), derived("choices", DType::int32, chosen),
                        derived("gates", DType::fp32, chosen), input("dgates", DType::fp32, chosen),
                        derived("loads", DType::int32, {s.samples, s.experts}), gradient("dlogits")},
           .choices = s.choices,
           .router = kind,
           .noise = noise,
           .balance_scale = balance_scale,
           .z_scale = z_scale,
           .scalars = {.step = 3, .loss_scale = 2.0F}};
  if (noise != RouterNoise::Kind::none) c.operands.push_back(derived("scores", DType::fp32, scores));
  if (noise == RouterNoise::Kind::learned) {
    c.operands.push_back(noise_logits_of(s));
    c.operands.push_back(gradient("dnoise_logits"));
  }
  table.add(std::move(c));
}

// ---- Packed rows

void expert_places(CaseTable& table, bool full_size, const Routing& s) {
  const Places places(s);
  const Shape chosen = {s.samples, s.length, s.choices};
  Operand pairs = packed(result("pairs", DType::int32, {s.parts, places.rows_of_part}, 0.0));
  pairs.low = 1e6;  // no pair
  pairs.high = 2e6;
  table.add({.op = Op::expert_places,
             .full_size = full_size,
             .detail = detail_of(s),
             .operands = {input("choices", DType::int32, chosen),
                          result("loads", DType::int32, {s.samples, s.experts}, 0.0),
                          result("places", DType::int32, chosen, 0.0), pairs,
                          result("offsets", DType::int32, {s.parts, s.experts / s.parts + 1}, 0.0)},
             .capacity = s.capacity,
             .by_choice = s.by_choice,
             .rows = places.rows(),
             .integers = {{"choices", places.choices}},
             .part_rows = places.part_rows});
}

void packed_rows(CaseTable& table, bool full_size, const Routing& s, std::int64_t width, DType dtype) {
  const Places places(s);
  const std::string detail = fmt::format("{}_{}_C{}", name_of(dtype), detail_of(s), width);
  const Shape row_shape = {s.parts, places.rows_of_part, width};
  const Shape token_shape = {s.samples, s.length, width};
  const Shape chosen = {s.samples, s.length, s.choices};
  const Operand rows = packed(input("rows", dtype, row_shape));
  const Operand place = input("places", DType::int32, chosen);
  const Operand gates = input("gates", DType::fp32, chosen, 0.0, 1.0);
  table.add({.op = Op::gather_rows,
             .full_size = full_size,
             .detail = detail,
             .operands = {input("x", dtype, token_shape),
                          packed(input("pairs", DType::int32, {s.parts, places.rows_of_part})),
                          input("offsets", DType::int32, {s.parts, s.experts / s.parts + 1}),
                          packed(result("rows", dtype, row_shape, 0.0, false, 0.0))},
             .choices = s.choices,
             .rows = places.rows(),
             .integers = {{"pairs", places.pairs}, {"offsets", places.offsets}},
             .part_rows = places.part_rows});

  for (const bool has_gates : {false, true}) {
    for (const std::string_view residual : {"", "_residual", "_into_residual"}) {
      if (full_size && (!has_gates || residual != "_residual")) continue;
      Operand y = result("y", dtype, token_shape, 2e-6);
      y.floor = 0.5;  // the terms may cancel
      std::vector<Operand> operands = {rows, place};
      if (has_gates) operands.push_back(gates);
      if (!residual.empty()) operands.push_back(input("residual", dtype, token_shape));
      operands.push_back(residual == "_into_residual" ? in_storage(y, "residual") : y);
      table.add({.op = Op::combine_rows,
                 .full_size = full_size,
                 .detail = fmt::format("{}{}{}", detail, has_gates ? "_gates" : "", residual),
                 .operands = std::move(operands),
                 .rows = places.rows(),
                 .integers = {{"places", places.places}},
                 .part_rows = places.part_rows});
    }
  }

  for (const bool in_place : {false, true}) {
    if (full_size && in_place) continue;
    Operand drows = packed(result("drows", dtype, row_shape, 2e-6));
    table.add({.op = Op::combine_rows_backward,
               .full_size = full_size,
               .detail = fmt::format("{}{}", detail, in_place ? "_into_rows" : ""),
               .operands = {input("dy", dtype, token_shape), rows, place, gates,
                            in_place ? in_storage(drows, "rows") : drows,
                            result("dgates", DType::fp32, chosen, 4e-6)},
               .rows = places.rows(),
               .integers = {{"places", places.places}},
               .part_rows = places.part_rows});
  }
}

// ---- Linear layers of experts

struct Grouped {
  std::int64_t parts, experts, inputs, outputs;
  std::vector<std::int32_t> counts;  // (P, L): rows of each part for each expert
  std::int64_t spare = 3;            // rows of the fullest part that do not exist
  std::int64_t offset = 0;           // shifts floating-point tensors off their 64-byte boundary
};

void grouped_linear(CaseTable& table, bool full_size, const Grouped& s, DType dtype) {
  std::vector<std::int32_t> offsets;
  std::vector<std::int64_t> part_rows;
  for (std::int64_t part = 0; part < s.parts; ++part) {
    offsets.push_back(0);
    for (std::int64_t expert = 0; expert < s.experts; ++expert) {
      offsets.push_back(offsets.back() + s.counts.at(static_cast<std::size_t>(part * s.experts + expert)));
    }
    part_rows.push_back(offsets.back());
  }
  const std::int64_t rows = std::accumulate(part_rows.begin(), part_rows.end(), std::int64_t{0});
  const std::int64_t rows_of_part = std::ranges::max(part_rows) + s.spare;
  const std::string detail = fmt::format("{}_P{}_L{}_N{}_I{}_O{}{}", name_of(dtype), s.parts, s.experts, rows,
                                         s.inputs, s.outputs, s.offset == 0 ? "" : "_unaligned");
  const auto shifted = [&](Operand operand) {
    operand.offset = s.offset;
    return operand;
  };
  const auto row_operand = [&](const Operand& operand) { return packed(shifted(operand)); };
  const Shape input_shape = {s.parts, rows_of_part, s.inputs};
  const Shape output_shape = {s.parts, rows_of_part, s.outputs};
  const double spread = unit_spread / std::sqrt(static_cast<double>(s.inputs));
  const Operand x = row_operand(input("x", dtype, input_shape));
  const Operand dy = row_operand(input("dy", dtype, output_shape));
  const Operand w = shifted(input("w", dtype, {s.experts, s.inputs, s.outputs}, -spread, spread));
  const Operand offset_operand = input("offsets", DType::int32, {s.parts, s.experts + 1});
  const auto add = [&](Op op, std::string_view suffix, std::vector<Operand> operands,
                       bool accumulate = false) {
    table.add({.op = op,
               .full_size = full_size,
               .detail = fmt::format("{}{}", detail, suffix),
               .operands = std::move(operands),
               .accumulate = accumulate,
               .rows = rows,
               .integers = {{"offsets", offsets}},
               .part_rows = part_rows});
  };

  for (const bool bias : {false, true}) {
    for (const bool activated : {false, true}) {
      if (full_size && !bias) continue;
      std::vector<Operand> operands = {x, w, offset_operand,
                                       row_operand(result("y", dtype, output_shape, 2e-6))};
      if (bias) operands.push_back(shifted(input("bias", dtype, {s.experts, s.outputs})));
      if (activated) {
        operands.push_back(row_operand(result("activated", dtype, output_shape, 2e-6, false, bf16_chained)));
      }
      add(Op::grouped_linear_forward, fmt::format("{}{}", bias ? "_bias" : "", activated ? "_activated" : ""),
          std::move(operands));
    }
  }
  for (const bool pre : {false, true}) {
    std::vector<Operand> operands = {dy, w, offset_operand};
    if (pre) operands.push_back(row_operand(input("pre", dtype, input_shape, -3.0, 3.0)));
    operands.push_back(row_operand(
        result("dx", dtype, input_shape, pre ? 4e-6 : 2e-6, false, pre ? bf16_chained : bf16_rounded)));
    add(Op::grouped_linear_backward_input, pre ? "_pre" : "", std::move(operands));
  }
  bool bias = s.outputs % 2 == 0;
  for (const DType gradient : gradient_types(dtype)) {
    for (const bool accumulate : {false, true}) {
      if (full_size && (!accumulate || gradient != DType::fp32)) continue;
      bias = !bias;
      std::vector<Operand> operands = {
          x, dy, offset_operand,
          shifted(result("dw", gradient, {s.experts, s.inputs, s.outputs}, 2e-6, accumulate))};
      if (bias || full_size) {
        operands.push_back(shifted(result("dbias", gradient, {s.experts, s.outputs}, 2e-6, accumulate)));
      }
      add(Op::grouped_linear_backward_weight,
          fmt::format("_d{}{}{}", name_of(gradient), bias || full_size ? "_bias" : "",
                      accumulate ? "_add" : ""),
          std::move(operands), accumulate);
    }
    bias = !bias;  // the other type has the other combination
  }
}

}  // namespace

void add_small_expert_cases(CaseTable& table) {
  const std::vector<Router> routers = {{1, 1, 25, 1},  {2, 7, 25, 5},    {3, 13, 64, 8},
                                       {2, 33, 33, 2}, {1, 130, 128, 8}, {2, 9, 100, 33}};
  for (const DType dtype : float_types) {
    for (const Router& s : routers) router_products(table, false, s, dtype);
  }

  const std::vector<Choice> choices = {{1, 1, 1, 1},  {2, 7, 2, 1}, {1, 13, 2, 2},
                                       {2, 33, 5, 2}, {3, 9, 5, 3}, {2, 65, 8, 1},
                                       {2, 33, 8, 2}, {1, 7, 8, 3}, {2, 9, 33, 2}};
  for (const Choice& s : choices) {
    for (const RouterNoise::Kind noise : noises) {
      for (const RouterKind kind : router_kinds) {
        router_choice(table, false, s, kind, noise);
        router_gradient(table, false, s, kind, noise, 0.5F, 0.1F);
      }
      if (noise == RouterNoise::Kind::learned) continue;
      const std::int64_t even_load = std::max<std::int64_t>(s.length * s.choices / s.experts, 1);
      for (const std::int64_t capacity : {std::int64_t{0}, even_load}) {
        for (const bool accumulate : {false, true})
          router_statistics(table, false, s, noise, capacity, accumulate);
      }
    }
  }
  for (const RouterKind kind : router_kinds) {
    router_ties(table, {2, 33, 5, 3}, kind);
    router_ties(table, {1, 33, 8, 2}, kind);
    const Choice s{2, 9, 5, 2};
    router_gradient(table, false, s, kind, RouterNoise::Kind::learned, 0.0F, 0.0F);
    router_gradient(table, false, s, kind, RouterNoise::Kind::learned, 0.5F, 0.0F);
    router_gradient(table, false, s, kind, RouterNoise::Kind::learned, 0.0F, 0.1F);
  }

  const std::vector<Routing> routings = {
      {1, 1, 1, 1},
      {.samples = 2, .length = 7, .experts = 2, .choices = 1, .spare = 0},
      {2, 13, 5, 2},
      {3, 9, 5, 3},
      {2, 33, 8, 2, 2},
      {2, 13, 8, 3, 4},
      {2, 33, 8, 1, 4, 5},
      {.samples = 2, .length = 13, .experts = 5, .choices = 2, .capacity = 4},
      {.samples = 2, .length = 13, .experts = 5, .choices = 2, .capacity = 4, .by_choice = true},
      {3, 33, 8, 3, 2, 7},
      {3, 33, 8, 3, 2, 7, true},
      {.samples = 2, .length = 9, .experts = 2, .choices = 2, .parts = 2, .capacity = 1, .is_even = true},
  };
  for (const Routing& s : routings) expert_places(table, false, s);
  expert_places(table, false, {4, 700, 8, 2, 1, 150});  // many pairs
  expert_places(table, false, {4, 700, 8, 2, 2, 150, true});
  expert_places(table, false, {2, 65, 33, 2});
  for (const DType dtype : float_types) {
    packed_rows(table, false, routings[0], 1, dtype);
    for (std::size_t i = 1; i < routings.size(); ++i) {
      constexpr std::array<std::int64_t, 3> widths = {25, 64, 33};
      packed_rows(table, false, routings[i], widths[i % 3], dtype);
    }
  }

  const std::vector<Grouped> layers = {
      {1, 1, 1, 1, {1}},
      {1, 2, 25, 33, {5, 0}},
      {1, 5, 33, 40, {7, 0, 13, 1, 64}},
      {1, 8, 64, 64, {30, 1, 0, 16, 17, 2, 40, 9}, 0},
      {2, 2, 25, 33, {3, 6, 0, 9}},
      {4, 2, 64, 80, {17, 1, 0, 0, 33, 5, 2, 70}},
      {2, 4, 100, 257, {4, 8, 15, 0, 16, 0, 23, 0}},
      {1, 2, 96, 384, {130, 126}},
      {1, 3, 16, 48, {0, 0, 0}},
      {.parts = 2, .experts = 2, .inputs = 48, .outputs = 40, .counts = {20, 13, 0, 5}, .offset = 3},
  };
  for (const DType dtype : float_types) {
    for (const Grouped& s : layers) grouped_linear(table, false, s, dtype);
  }
}

void add_full_size_expert_cases(CaseTable& table) {
  constexpr std::int64_t samples = 4, length = 256, width = FullSize::width, experts = 8;
  static_assert(samples * length == FullSize::rows);
  for (const std::int64_t count : {1, 2}) {
    const Choice choice{samples, length, experts, count};
    router_choice(table, true, choice, RouterKind::topk_softmax, RouterNoise::Kind::normal);
    router_statistics(table, true, choice, RouterNoise::Kind::normal, length * count / experts, true);
    router_gradient(table, true, choice, RouterKind::topk_softmax, RouterNoise::Kind::normal, 1e-2F, 1e-3F);
    Routing routing{samples, length, experts, count};
    routing.is_even = true;
    routing.spare = 0;
    expert_places(table, true, routing);
    const Places places(routing);
    std::vector<std::int32_t> rows_of_experts;
    for (std::size_t e = 0; e < experts; ++e) {
      rows_of_experts.push_back(places.offsets[e + 1] - places.offsets[e]);
    }
    for (const DType dtype : float_types) {
      packed_rows(table, true, routing, width, dtype);
      grouped_linear(table, true, {1, experts, width, 4 * width, rows_of_experts, 0}, dtype);
      grouped_linear(table, true, {1, experts, 4 * width, width, rows_of_experts, 0}, dtype);
    }
  }
  for (const DType dtype : float_types)
    router_products(table, true, {samples, length, width, experts}, dtype);
}

}  // namespace mylos
