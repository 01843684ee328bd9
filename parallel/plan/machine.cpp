// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/machine.hpp"

#include <algorithm>
#include <cmath>
#include <variant>

#include <fmt/core.h>

#include "core/base/error.hpp"

namespace mylos {

bool has_gathered_weights(const Entry& entry, const Storages& storages) {
  return std::visit(
      [&]<class Op>(const Op& op) {
        if constexpr (Op::name.starts_with("linear_") && requires { op.w; })
          return !storages.at(place_of(op.w).storage).persists;
        return false;
      },
      entry.operation);
}

std::optional<ProductShape> product_of(const Entry& entry) {
  return std::visit(
      []<class Op>(const Op& op) -> std::optional<ProductShape> {
        if constexpr (Op::name.starts_with("linear_") || Op::name.starts_with("grouped_linear_")) {
          const auto& w = [&]() -> const TensorRef& {
            if constexpr (requires { op.w; }) {
              return op.w;
            } else {
              return op.dw;
            }
          }();
          const auto rank = Op::name.starts_with("grouped") ? 1U : 0U;  // experts come first
          const std::int64_t in = w.shape[rank];
          const std::int64_t out = w.shape[rank + 1];
          if (in == 0 || out == 0) return std::nullopt;
          const double rows = op.flops() / (2.0 * static_cast<double>(in) * static_cast<double>(out));
          return ProductShape{.rows = std::llround(rows), .in = in, .out = out};
        } else if constexpr (std::is_same_v<Op, MatrixProduct>) {
          // A stack of small matrices takes about as long as one product with all its rows.
          return ProductShape{.rows = op.z.shape[0] * op.z.shape[1], .in = op.inner(), .out = op.z.shape[2]};
        } else {
          return std::nullopt;
        }
      },
      entry.operation);
}

std::optional<AttentionShape> attention_of(const Entry& entry) {
  const AttentionForward* forward = std::get_if<AttentionForward>(&entry.operation);
  if (const auto* backward = std::get_if<AttentionBackward>(&entry.operation)) forward = &backward->forward;
  if (forward == nullptr) return std::nullopt;
  return AttentionShape{.batch = forward->query.shape[0],
                        .heads = forward->query.shape[2],
                        .positions = forward->query.shape[1],
                        .head_size = forward->query.shape[3]};
}

DType dtype_of(const Entry& entry) {
  std::optional<DType> found;
  std::visit(
      [&]<class Op>(const Op& op) {
        Op::operands(op, [&](const char* /*name*/, const TensorRef& tensor, Access /*access*/,
                             const auto&... /*adds*/) {
          if (tensor && !found && tensor.dtype <= DType::fp16) found = tensor.dtype;
        });
      },
      entry.operation);
  return found.value_or(DType::fp32);
}

double moved_bytes(const Entry& entry) {
  if (const auto* op = std::get_if<EmbeddingForward>(&entry.operation))
    return 3.0 * static_cast<double>(op->out.bytes());
  if (const auto* op = std::get_if<EmbeddingBackward>(&entry.operation)) {
    const double rows = 3.0 * static_cast<double>(op->dout.bytes());
    return op->accumulate_wte ? rows : rows + static_cast<double>(op->dwte.bytes());
  }
  return static_cast<double>(bytes_of(entry));
}

KernelKind kernel_kind(std::string_view operation) {
  if (operation == "adamw" || operation == "sgd" || operation == "muon" || operation == "nesterov_momentum" ||
      operation == "sum_of_squares")
    return KernelKind::optimizer;
  if (operation == "cross_entropy" || operation == "softmax_statistics") return KernelKind::loss;
  return operation.find("layernorm") != std::string_view::npos ? KernelKind::norm : KernelKind::elementwise;
}

namespace {

/// The rate of the nearest shapes in a table, weighted by their distance in the logarithms of the sizes.
template <class Shape, class Work, class Sizes>
double interpolated(const std::map<Shape, double>& table, const Shape& shape, const Work& work,
                    const Sizes& sizes) {
  if (const auto exact = table.find(shape); exact != table.end()) return exact->second;
  std::vector<std::pair<double, double>> near;  // distance and rate
  for (const auto& [other, seconds] : table) {
    double distance = 0.0;
    const auto own = sizes(shape);
    const auto theirs = sizes(other);
    for (std::size_t i = 0; i < own.size(); ++i)
      distance += std::pow(std::log(static_cast<double>(own[i]) / static_cast<double>(theirs[i])), 2.0);
    near.emplace_back(distance, work(other) / seconds);
  }
  constexpr std::size_t most = 4;
  const std::size_t count = std::min(most, near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end());
  double rate = 0.0;
  double weights = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const double weight = 1.0 / (near[i].first + 1e-3);
    rate += weight * std::log(near[i].second);
    weights += weight;
  }
  return work(shape) / std::exp(rate / weights);
}

}  // namespace

double MachineTimes::of_product(std::string_view operation, DType dtype, const ProductShape& shape) {
  const auto table = machine_.products.find({std::string(operation), dtype});
  if (table != machine_.products.end()) {
    return interpolated(
        table->second, shape, [](const ProductShape& own) { return own.flops(); },
        [](const ProductShape& own) {
          return std::array{own.rows, own.in, own.out};
        });
  }
  const auto type = static_cast<std::size_t>(dtype);
  const double peak = machine_.peak_of(dtype);
  if (machine_.peak[type] == 0.0)
    note(fmt::format("no rate of products in {}; the largest of other types is used", name_of(dtype)));
  double rate = machine_.product_share * peak;
  if (machine_.sustained[type] > 0.0) rate = std::min(rate, machine_.sustained[type]);
  return shape.flops() / rate + machine_.product_latency;
}

double MachineTimes::of_bytes(KernelKind kind, double bytes) {
  const double share = machine_.software ? machine_.software->bandwidth_share : 1.0;
  return bytes / (machine_.bandwidth * share * machine_.kernel_shares[static_cast<std::size_t>(kind)]) +
         machine_.launch;
}

double MachineTimes::of_attention(const Entry& entry, const AttentionShape& shape) {
  const bool is_backward = std::holds_alternative<AttentionBackward>(entry.operation);
  const DType dtype = dtype_of(entry);
  const std::string name = is_backward ? "attention_backward" : "attention_forward";
  const auto& software = machine_.software;
  if (software && software->attention_is_whole) {
    // Two products of T x T forward and four backward, and what is done to the scores in memory.
    const double scores = static_cast<double>(shape.batch * shape.heads) *
                          static_cast<double>(shape.positions) * static_cast<double>(shape.positions);
    const ProductShape product{
        .rows = shape.batch * shape.heads * shape.positions, .in = shape.head_size, .out = shape.positions};
    const double forward = 2.0 * of_product("linear_forward", dtype, product) +
                           of_bytes(KernelKind::norm, software->score_bytes * scores);
    if (!is_backward) return forward;
    const double backward = 4.0 * of_product("linear_forward", dtype, product) +
                            of_bytes(KernelKind::norm, software->score_backward_bytes * scores);
    return backward + (software->attention_is_recomputed ? forward : 0.0);
  }
  const auto table = machine_.attention.find({name, dtype});
  if (table != machine_.attention.end()) {
    return interpolated(
        table->second, shape,
        [](const AttentionShape& own) {
          return static_cast<double>(own.batch * own.heads * own.head_size) *
                 static_cast<double>(own.positions) * static_cast<double>(own.positions);
        },
        [](const AttentionShape& own) {
          return std::array{own.batch * own.heads, own.positions, own.head_size};
        });
  }
  double share = machine_.product_share / 2.0;
  if (machine_.attention_shares.empty()) {
    note("no rate of attention; half that of products is used");
  } else {
    auto next = machine_.attention_shares.lower_bound(shape.head_size);
    if (next == machine_.attention_shares.end()) --next;
    share = next->second;
  }
  const double speed = software ? software->attention_speed : 1.0;
  const double peak = machine_.peak_of(dtype);
  return flops_of(entry) / (share * speed * peak) + machine_.launch;
}

double MachineTimes::of_operation(const Entry& entry, bool is_gathered) {
  if (communicates(entry)) return 0.0;
  const std::string name(name_of(entry));
  const DType dtype = dtype_of(entry);
  if (const auto product = product_of(entry)) {
    if (product->rows == 0) return 0.0;
    const std::string gathered = name + std::string(gathered_suffix);
    const bool is_known = is_gathered && machine_.products.contains({gathered, dtype});
    return of_product(is_known ? gathered : name, dtype, *product);
  }
  if (const auto attention = attention_of(entry)) return of_attention(entry, *attention);
  const double bytes = moved_bytes(entry);
  const auto curve = machine_.operations.find({name, dtype});
  if (curve != machine_.operations.end()) return curve->second(bytes);
  if (!machine_.operations.empty())
    note(fmt::format("{} in {} was not measured; the bandwidth counts", name, name_of(dtype)));
  return of_bytes(kernel_kind(name), bytes);
}

double MachineTimes::of_message(double bytes, bool is_network, int sharing) {
  const auto curve = machine_.collectives.find({"send", is_network, 2});
  if (curve != machine_.collectives.end()) return curve->second(bytes);
  const double bandwidth = is_network ? machine_.network_bandwidth / sharing : machine_.node_bandwidth;
  return (is_network ? machine_.network_latency : machine_.node_latency) +
         (bandwidth > 0.0 ? bytes / bandwidth : 0.0);
}

namespace {

/// The bytes that pass a rank's link per byte of payload, as rings and pairwise exchanges need at least
/// (Thakur, Rabenseifner and Gropp, 2005).
double bus_factor(CommOperation operation, int ranks) {
  const double part = static_cast<double>(ranks - 1) / ranks;
  if (operation == CommOperation::all_reduce) return 2.0 * part;
  const bool is_whole = operation == CommOperation::broadcast || operation == CommOperation::reduce;
  return is_whole ? 1.0 : part;
}

}  // namespace

double MachineTimes::of_call(CommOperation operation, double payload_bytes, const GroupPlace& place) {
  if (place.ranks == 1) return 0.0;
  const bool is_network = place.nodes > 1;
  const auto table_of = [&](CommOperation own) -> const CostCurve* {
    const auto found = machine_.collectives.find({std::string(name_of(own)), is_network, place.ranks});
    return found == machine_.collectives.end() ? nullptr : &found->second;
  };
  if (const CostCurve* own = table_of(operation)) return (*own)(payload_bytes);
  const bool is_half = operation == CommOperation::all_gather || operation == CommOperation::reduce_scatter ||
                       operation == CommOperation::all_to_all || operation == CommOperation::all_to_all_v;
  if (const CostCurve* sum = table_of(CommOperation::all_reduce); sum != nullptr) {
    if (is_half) return machine_.gather_share * (*sum)(payload_bytes);
    note(fmt::format("{} among {} ranks was not measured; half an all_reduce is used", name_of(operation),
                     place.ranks));
    return 0.5 * (*sum)(payload_bytes);
  }
  if (!is_network && machine_.node_bandwidth == 0.0) {
    note(fmt::format("no link within a node for {}: it takes no time", name_of(operation)));
    return 0.0;
  }
  if (is_network && machine_.network_bandwidth == 0.0) {
    note(fmt::format("no network for {}: it takes no time", name_of(operation)));
    return 0.0;
  }
  double bandwidth = machine_.node_bandwidth;
  double latency = machine_.node_latency;
  if (is_network) {
    const double network = machine_.network_bandwidth / place.sharing;
    bandwidth = bandwidth > 0.0 && place.ranks > place.nodes ? std::min(bandwidth, network) : network;
    latency += 2.0 * machine_.network_latency * std::ceil(std::log2(place.nodes));
  } else {
    latency *= std::ceil(std::log2(place.ranks));
  }
  return latency + bus_factor(operation, place.ranks) * payload_bytes / bandwidth;
}

}  // namespace mylos
