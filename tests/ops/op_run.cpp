// SPDX-License-Identifier: BSD-3-Clause
#include "tests/ops/op_run.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "tests/ops/depth_oracle.hpp"
#include "tests/ops/expert_oracle.hpp"
#include "tests/ops/matrix_oracle.hpp"

namespace mylos {

namespace {

using oracle::Array;

constexpr std::size_t margin = 64;  // keeps the alignment of `allocate`

/// Calls `visit(dense, place)` for each element: its row-major index and its place in the storage.
template <class Visit>
void for_each_element(const Operand& operand, Visit&& visit) {
  const TensorRef& view = operand.view;
  std::array<std::int64_t, TensorRef::max_rank> index{};
  std::int64_t place = operand.offset;
  for (std::int64_t dense = 0; dense < view.size(); ++dense) {
    visit(dense, place);
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      place += view.stride[axis];
      if (++index[axis] < view.shape[axis]) break;
      place -= view.shape[axis] * view.stride[axis];
      index[axis] = 0;
    }
  }
}

std::int64_t extent(const Operand& operand) {
  std::int64_t last = operand.offset;
  for (int axis = 0; axis < operand.view.rank; ++axis) {
    last += (operand.view.shape[axis] - 1) * operand.view.stride[axis];
  }
  return last + 1;
}

template <class T>
T load(const std::byte* storage, std::int64_t place) {
  T value;
  std::memcpy(&value, storage + margin + static_cast<std::size_t>(place) * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* storage, std::int64_t place, T value) {
  std::memcpy(storage + margin + static_cast<std::size_t>(place) * sizeof(T), &value, sizeof(T));
}

double load(const std::byte* storage, std::int64_t place, DType dtype) {
  if (dtype == DType::int32) return load<std::int32_t>(storage, place);
  return dispatch_float(dtype, [&](auto element) -> double {
    return static_cast<float>(load<decltype(element)>(storage, place));
  });
}

void store(std::byte* storage, std::int64_t place, DType dtype, double value) {
  if (dtype == DType::int32) {
    store(storage, place, static_cast<std::int32_t>(std::floor(value)));
  } else {
    dispatch_float(dtype, [&](auto element) {
      store(storage, place, static_cast<decltype(element)>(static_cast<float>(value)));
    });
  }
}

void write(const Operand& operand, Contents& contents, const Array& values) {
  std::byte* storage = contents.at(operand.storage).data();
  for_each_element(operand, [&](std::int64_t dense, std::int64_t place) {
    store(storage, place, operand.view.dtype, values[dense]);
  });
}

void fill_uniform(const Operand& operand, Contents& contents) {
  const PhiloxKey key = stream_key(1, operand.name);
  const std::uint64_t seed = (static_cast<std::uint64_t>(key.k1) << 32U) | key.k0;
  std::byte* storage = contents.at(operand.storage).data();
  for_each_element(operand, [&](std::int64_t dense, std::int64_t place) {
    const double u = static_cast<double>(mix64(seed + static_cast<std::uint64_t>(dense)) >> 11U) * 0x1.0p-53;
    store(storage, place, operand.view.dtype, operand.low + u * (operand.high - operand.low));
  });
}

/// The operand of this name, or an absent one.
const Array& get(const Arrays& arrays, std::string_view name) {
  static const Array absent;
  const auto found = arrays.find(name);
  return found == arrays.end() ? absent : found->second;
}

oracle::AttentionInput attention_input(const OpCase& c, const Arrays& arrays) {
  return {.query = arrays.at("query"),
          .key = arrays.at("key"),
          .value = arrays.at("value"),
          .query_offset = c.position,
          .scale = c.scale,
          .dropout = dropout_of(c, nullptr),
          .place = c.place,
          .step = c.scalars.step};
}

oracle::RouterGradientInput router_gradient_input(const OpCase& c, const Arrays& arrays) {
  return {.logits = arrays.at("logits"),
          .noise_logits = get(arrays, "noise_logits"),
          .scores = get(arrays, "scores"),
          .choices = arrays.at("choices"),
          .gates = arrays.at("gates"),
          .dgates = arrays.at("dgates"),
          .loads = arrays.at("loads"),
          .kind = c.router,
          .noise = noise_of(c, nullptr),
          .step = c.scalars.step,
          .balance_scale = static_cast<double>(c.balance_scale) * c.scalars.loss_scale,
          .z_scale = static_cast<double>(c.z_scale) * c.scalars.loss_scale};
}

/// Makes the packed rows of an input that do not exist NaN, so that a result shows who reads them.
void spoil_missing_rows(const OpCase& c, const Operand& operand, Contents& contents) {
  const bool is_shared = std::ranges::any_of(c.operands, [&](const Operand& other) {
    return other.is_result() && other.storage == operand.storage;
  });
  if (!operand.packed || operand.is_result() || is_shared) return;
  const std::int64_t rows = operand.view.shape[0] * operand.view.shape[1];
  const std::size_t size = size_of(operand.view.dtype);
  std::byte* storage = contents.at(operand.storage).data();
  for_each_element(operand, [&](std::int64_t dense, std::int64_t place) {
    const std::int64_t row = dense / (operand.view.size() / rows);
    const std::int64_t part = row / operand.view.shape[1];
    if (row % operand.view.shape[1] < c.part_rows.at(static_cast<std::size_t>(part))) return;
    std::fill_n(storage + margin + static_cast<std::size_t>(place) * size, size, std::byte{0xFF});
  });
}

void derive_inputs(const OpCase& c, Contents& contents) {
  const Arrays arrays = read_all(c, contents);
  Arrays derived;
  if (c.op == Op::attention_backward) {
    oracle::attention_forward(attention_input(c, arrays), derived["output"], derived["lse"]);
  } else if (c.op == Op::router_statistics || c.op == Op::router_gradient) {
    const Array scores = oracle::router_scores(arrays.at("logits"), get(arrays, "noise_logits"),
                                               noise_of(c, nullptr), c.scalars.step);
    const Array choices = oracle::largest_scores(scores, c.choices);
    derived["loads"] = oracle::router_loads(choices, scores.dim(2));
    if (c.find("scores") != nullptr) derived["scores"] = scores;
    if (c.op == Op::router_gradient) {
      derived["gates"] = oracle::router_gates(scores, choices, c.router);
      derived["choices"] = choices;
    }
  } else {
    const Array& x = arrays.at("x");
    const Array unused({x.dim(1)});
    oracle::layernorm_forward(x, unused, unused, derived["mean"], derived["rstd"]);
  }
  for (const auto& [name, values] : derived) write(*c.find(name), contents, values);
}

}  // namespace

Contents initial_contents(const OpCase& c) {
  Contents contents;
  for (const Operand& operand : c.operands) {
    std::vector<std::byte>& storage = contents[operand.storage];
    const std::size_t bytes =
        static_cast<std::size_t>(extent(operand)) * size_of(operand.view.dtype) + 2 * margin;
    if (storage.size() < bytes) storage.resize(bytes, std::byte{0xFF});
  }
  bool derives = false;
  for (const Operand& operand : c.operands) {
    if (operand.role == Role::input || operand.role == Role::updated) fill_uniform(operand, contents);
    derives = derives || operand.role == Role::derived;
  }
  for (const auto& [name, values] : c.integers) {
    Array array({static_cast<std::int64_t>(values.size())});
    std::ranges::copy(values, array.values.begin());
    write(*c.find(name), contents, array);
  }
  for (const Operand& operand : c.operands) spoil_missing_rows(c, operand, contents);
  if (derives) derive_inputs(c, contents);
  return contents;
}

Array read(const Operand& operand, const Contents& contents) {
  Array values(
      std::vector<std::int64_t>(operand.view.shape.begin(), operand.view.shape.begin() + operand.view.rank));
  const std::byte* storage = contents.at(operand.storage).data();
  for_each_element(operand, [&](std::int64_t dense, std::int64_t place) {
    values[dense] = load(storage, place, operand.view.dtype);
  });
  return values;
}

Arrays read_all(const OpCase& c, const Contents& contents) {
  Arrays arrays;
  for (const Operand& operand : c.operands) arrays[operand.name] = read(operand, contents);
  return arrays;
}

void run_oracle(const OpCase& c, Arrays& arrays) {
  const auto in = [&](std::string_view name) -> const Array& { return get(arrays, name); };
  const auto sum_into_out = [&](auto&& term) {
    double sum = c.accumulate ? arrays.at("out")[0] : 0.0;
    for (const double x : in("x").values) sum += term(x);
    arrays.at("out")[0] = sum;
  };
  switch (c.op) {
    case Op::fill:
      std::ranges::fill(arrays.at("y").values, static_cast<double>(c.scale));
      break;
    case Op::cast:
      arrays["y"] = in("x");
      break;
    case Op::fill_normal:
      arrays["y"] = oracle::fill_normal(in("y").size(), stream_key(1234, "normal"), c.index, c.scale);
      break;
    case Op::sum:
      sum_into_out([](double x) { return x; });
      break;
    case Op::sum_of_squares:
      sum_into_out([&](double x) { return c.scale * x * x; });
      break;
    case Op::linear_forward:
      arrays["y"] = oracle::linear_forward(in("x"), in("w"), in("bias"));
      break;
    case Op::linear_backward_input:
      arrays["dx"] = oracle::linear_backward_input(in("dy"), in("w"));
      break;
    case Op::linear_backward_weight: {
      Array absent;
      Array& dbias = in("dbias") ? arrays.at("dbias") : absent;
      oracle::linear_backward_weight(in("x"), in("dy"), c.accumulate, arrays.at("dw"), dbias);
      break;
    }
    case Op::embedding_forward:
      arrays["out"] = oracle::embedding_forward(in("tokens"), c.first_token, in("wte"), in("wpe"), c.position,
                                                in("positions"));
      break;
    case Op::embedding_backward:
      oracle::embedding_backward(in("tokens"), c.first_token, in("dout"), c.position, arrays.at("dwte"),
                                 c.accumulate, arrays.at("dwpe"), c.accumulate_second);
      break;
    case Op::layernorm_forward:
      arrays["y"] =
          oracle::layernorm_forward(in("x"), in("gamma"), in("beta"), arrays.at("mean"), arrays.at("rstd"));
      break;
    case Op::layernorm_backward_input:
      arrays["dx"] = oracle::layernorm_backward_input(in("dy"), in("x"), in("gamma"), in("mean"), in("rstd"),
                                                      in("residual"));
      break;
    case Op::layernorm_backward_weight:
      oracle::layernorm_backward_weight(in("dy"), in("x"), in("mean"), in("rstd"), c.accumulate,
                                        arrays.at("dgamma"), arrays.at("dbeta"));
      break;
    case Op::layernorm_backward:
      oracle::layernorm_backward_weight(in("dy"), in("x"), in("mean"), in("rstd"), c.accumulate,
                                        arrays.at("dgamma"), arrays.at("dbeta"));
      arrays["dx"] = oracle::layernorm_backward_input(in("dy"), in("x"), in("gamma"), in("mean"), in("rstd"),
                                                      in("residual"));
      break;
    case Op::gelu_forward:
      arrays["y"] = oracle::gelu_forward(in("x"));
      break;
    case Op::gelu_backward:
      arrays["dx"] = oracle::gelu_backward(in("x"), in("dy"));
      break;
    case Op::dropout_add:
      arrays["y"] = oracle::dropout_add(in("x"), in("residual"), dropout_of(c, nullptr), c.scalars.step);
      break;
    case Op::attention_forward:
      oracle::attention_forward(attention_input(c, arrays), arrays.at("output"), arrays.at("lse"));
      break;
    case Op::attention_backward: {
      oracle::AttentionGradients gradients =
          oracle::attention_backward(attention_input(c, arrays), in("output"), in("lse"), in("output_grad"));
      arrays["query_grad"] = std::move(gradients.query);
      arrays["key_grad"] = std::move(gradients.key);
      arrays["value_grad"] = std::move(gradients.value);
      break;
    }
    case Op::cache_append:
      oracle::cache_append(in("key"), in("rows"), in("positions"), arrays.at("keys"));
      oracle::cache_append(in("value"), in("rows"), in("positions"), arrays.at("values"));
      break;
    case Op::cached_attention:
      arrays["output"] = oracle::cached_attention(in("query"), in("keys"), in("values"), in("rows"),
                                                  in("positions"), c.scale);
      break;
    case Op::softmax_statistics:
      arrays["statistics"] = oracle::softmax_statistics(in("logits"), in("targets"), c.vocab, c.first_token);
      break;
    case Op::cross_entropy:
      arrays["gradient"] = oracle::cross_entropy(in("logits"), in("targets"), c.vocab,
                                                 static_cast<double>(c.scale) * c.scalars.loss_scale,
                                                 arrays["losses"], arrays["correct"]);
      break;
    case Op::dropout_add_layernorm: {
      arrays["sum"] = oracle::dropout_add(in("x"), in("residual"), dropout_of(c, nullptr), c.scalars.step);
      Array rows = in("sum");
      rows.shape = {in("mean").size(), in("gamma").size()};
      arrays["y"] =
          oracle::layernorm_forward(rows, in("gamma"), in("beta"), arrays.at("mean"), arrays.at("rstd"));
      break;
    }
    case Op::linear_add_forward: {
      arrays["y"] = oracle::linear_forward(in("x"), in("w"), in("bias"));
      for (std::int64_t i = 0; i < arrays["y"].size(); ++i) arrays["y"][i] += in("residual")[i];
      break;
    }
    case Op::linear_gelu_forward:
      arrays["pre"] = oracle::linear_forward(in("x"), in("w"), in("bias"));
      arrays["y"] = oracle::gelu_forward(arrays["pre"]);
      break;
    case Op::linear_gelu_backward_input:
      arrays["dpre"] = oracle::gelu_backward(in("pre"), oracle::linear_backward_input(in("dy"), in("w")));
      break;
    case Op::adamw:
    case Op::sgd:
    case Op::muon: {
      const bool has_master = in("master").size() > 0;
      Array& truth = arrays.at(has_master ? "master" : "weights");
      if (c.op == Op::adamw) {
        oracle::adamw({}, c.scalars, c.segments, in("gradient"), truth, arrays.at("first_moment"),
                      arrays.at("second_moment"));
      } else if (c.op == Op::muon) {
        oracle::muon({.rate_factor = c.second_scale, .scale = c.scale}, c.scalars, c.segments, in("gradient"),
                     truth);
      } else {
        oracle::sgd({}, c.scalars, c.segments, in("gradient"), truth, arrays.at("momentum"));
      }
      if (has_master) {
        arrays["weights"] = truth;
      } else {
        oracle::round_stochastically(c.segments, c.scalars.step, c.find("weights")->view.dtype, truth);
      }
      break;
    }
    case Op::guard_step:
      break;
    case Op::router_forward:
      arrays["logits"] = oracle::router_forward(in("x"), in("w"));
      break;
    case Op::router_backward_input: {
      Array scaled = in("dlogits");
      for (double& value : scaled.values) value *= c.scale;
      arrays["dx"] = oracle::router_backward_input(scaled, in("w"), in("residual"));
      break;
    }
    case Op::router_backward_weight:
      oracle::router_backward_weight(in("x"), in("dlogits"), c.accumulate, arrays.at("dw"));
      break;
    case Op::router_choice: {
      const Array scores =
          oracle::router_scores(in("logits"), in("noise_logits"), noise_of(c, nullptr), c.scalars.step);
      const Array choices = oracle::largest_scores(scores, in("choices").dim(2));
      arrays["gates"] = oracle::router_gates(scores, choices, c.router);
      arrays["choices"] = choices;
      if (in("scores")) arrays["scores"] = scores;
      break;
    }
    case Op::expert_places:
      oracle::expert_places(in("choices"), c.capacity, c.by_choice, arrays.at("loads"), arrays.at("places"),
                            arrays.at("pairs"), arrays.at("offsets"));
      break;
    case Op::gather_rows:
      oracle::gather_rows(in("x"), in("pairs"), in("offsets"), c.choices, arrays.at("rows"));
      break;
    case Op::combine_rows:
      arrays["y"] = oracle::combine_rows(in("rows"), in("places"), in("gates"), in("residual"));
      break;
    case Op::combine_rows_backward:
      oracle::combine_rows_backward(in("dy"), in("rows"), in("places"), in("gates"), arrays.at("drows"),
                                    arrays.at("dgates"));
      break;
    case Op::grouped_linear_forward: {
      Array absent;
      Array& activated = in("activated") ? arrays.at("activated") : absent;
      oracle::grouped_linear_forward(in("x"), in("w"), in("bias"), in("offsets"), arrays.at("y"), activated);
      break;
    }
    case Op::grouped_linear_backward_input:
      oracle::grouped_linear_backward_input(in("dy"), in("w"), in("offsets"), in("pre"), arrays.at("dx"));
      break;
    case Op::grouped_linear_backward_weight: {
      Array absent;
      Array& dbias = in("dbias") ? arrays.at("dbias") : absent;
      oracle::grouped_linear_backward_weight(in("x"), in("dy"), in("offsets"), c.accumulate, arrays.at("dw"),
                                             dbias);
      break;
    }
    case Op::router_statistics:
      oracle::router_statistics(in("logits"), in("scores"), in("loads"), c.choices, c.capacity, c.accumulate,
                                arrays.at("sums"));
      break;
    case Op::router_gradient: {
      Array unused;
      oracle::router_gradient(router_gradient_input(c, arrays), arrays.at("dlogits"),
                              in("dnoise_logits") ? arrays.at("dnoise_logits") : unused);
      break;
    }
    case Op::top_tokens:
    case Op::positive_tokens: {
      const Array& scores = in("scores");
      oracle::PackedTokens packed = c.op == Op::top_tokens
                                        ? oracle::top_tokens(scores, in("pairs").size() / scores.dim(0))
                                        : oracle::positive_tokens(scores);
      if (in("taken")) {
        arrays["own_positions"] =
            oracle::count_taken(packed.places, in("rows"), in("positions"), arrays.at("taken"));
      }
      arrays["places"] = std::move(packed.places);
      arrays["pairs"] = std::move(packed.pairs);
      arrays["offsets"] = std::move(packed.offsets);
      break;
    }
    case Op::subtract:
      for (std::int64_t i = 0; i < in("y").size(); ++i) arrays.at("y")[i] = in("a")[i] - in("b")[i];
      break;
    case Op::depth_predictor_loss:
      arrays["dlogits"] = oracle::depth_predictor_loss(in("logits"), in("places"),
                                                       static_cast<double>(c.scale) * c.scalars.loss_scale,
                                                       c.accumulate, arrays.at("sums"));
      break;
    case Op::matrix_product:
      arrays["z"] = oracle::matrix_product(in("x"), c.x_transposed, in("y"), c.y_transposed);
      break;
    case Op::scaled_sum:
      arrays["z"] = oracle::scaled_sum(c.scale, in("x"), c.second_scale, in("y"));
      break;
    case Op::normalise_matrices:
      oracle::normalise_matrices(c.scale, arrays.at("x"));
      break;
    case Op::nesterov_momentum:
      arrays["direction"] = oracle::nesterov_momentum({}, c.scalars, in("gradient"), arrays.at("momentum"));
      break;
    case Op::copy_blocks:
      oracle::copy_blocks(c.blocks, in("from"), in("other"), arrays.at("to"));
      break;
  }
}

std::string stray_write(const OpCase& c, const Contents& before, const Contents& after) {
  for (const auto& [name, old_bytes] : before) {
    std::vector<bool> may_change(old_bytes.size());
    for (const Operand& operand : c.operands) {
      if (operand.storage != name || !(operand.is_result() || operand.role == Role::workspace)) continue;
      const std::size_t size = size_of(operand.view.dtype);
      for_each_element(operand, [&](std::int64_t, std::int64_t place) {
        const auto first =
            may_change.begin() + static_cast<std::ptrdiff_t>(margin + static_cast<std::size_t>(place) * size);
        std::fill_n(first, size, true);
      });
    }
    const std::vector<std::byte>& new_bytes = after.at(name);
    for (std::size_t i = 0; i < old_bytes.size(); ++i) {
      if (old_bytes[i] != new_bytes[i] && !may_change[i]) {
        return fmt::format("{} at byte {}", name,
                           static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(margin));
      }
    }
  }
  return {};
}

OpRun::OpRun(const OpCase& c, ComputeBackend& backend, const Contents& initial)
    : case_(c),
      backend_(backend),
      initial_(initial),
      control_(allocate(sizeof(Control))),
      blocks_(allocate(std::max<std::size_t>(c.blocks.size(), 1) * sizeof(CopiedBlock))) {
  for (const auto& [name, bytes] : initial) memory_.emplace(name, allocate(bytes.size()));
  reset();
}

void OpRun::reset() {
  for (const auto& [name, bytes] : initial_) {
    backend_.copy_to_device(bytes.data(), memory_.at(name).get(), bytes.size());
  }
  Control control{.scalars = case_.scalars, .guard_input = {3.5F, 4.0F}, .guard_state = {}, .segments = {}};
  std::ranges::copy(case_.segments, control.segments);
  if (!case_.blocks.empty()) {
    backend_.copy_to_device(case_.blocks.data(), blocks_.get(), case_.blocks.size() * sizeof(CopiedBlock));
  }
  set_control(control);
}

Contents OpRun::contents() {
  Contents contents;
  for (const auto& [name, memory] : memory_) {
    std::vector<std::byte>& bytes = contents[name];
    bytes.resize(initial_.at(name).size());
    backend_.copy_to_host(memory.get(), bytes.data(), bytes.size());
  }
  synchronize();
  return contents;
}

OpRun::Control OpRun::control() {
  Control control{};
  backend_.copy_to_host(control_.get(), &control, sizeof(control));
  synchronize();
  return control;
}

void OpRun::set_control(const Control& control) {
  backend_.copy_to_device(&control, control_.get(), sizeof(control));
  synchronize();
}

Allocation OpRun::allocate(std::size_t bytes) {
  return backend_.allocate(bytes, "mylos::tests::case");
}

TensorRef OpRun::tensor(std::string_view name) const {
  const Operand* operand = case_.find(name);
  if (operand == nullptr) return {};
  TensorRef view = operand->view;
  view.data = static_cast<std::byte*>(memory_.at(operand->storage).get()) + margin +
              static_cast<std::size_t>(operand->offset) * size_of(view.dtype);
  return view;
}

void OpRun::run() {
  auto* control = static_cast<Control*>(control_.get());
  const CaseMemory memory{&control->scalars, &control->guard_input, &control->guard_state, control->segments,
                          static_cast<const CopiedBlock*>(blocks_.get())};
  with_operation(
      case_, [this](std::string_view name) { return tensor(name); }, memory,
      [this](const auto& operation) { backend_.run(operation); });
}

}  // namespace mylos
