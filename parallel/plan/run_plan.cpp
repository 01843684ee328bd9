// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/run_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <tuple>
#include <utility>
#include <variant>

#include "core/model/model_programs.hpp"
#include "parallel/collectives/algorithm_choice.hpp"
#include "parallel/collectives/hierarchical.hpp"
#include "parallel/collectives/scratch_pool.hpp"
#include "parallel/engine/activation_plan.hpp"
#include "parallel/engine/training_step.hpp"
#include "parallel/engine/unit_events.hpp"

namespace mylos {

std::int64_t RunPlan::memory_total() const {
  return std::accumulate(memory.begin(), memory.end(), std::int64_t{0});
}

double model_flops_per_token(const ModelConfig& model, std::int64_t parameters, std::int64_t seq_len) {
  return 6.0 * static_cast<double>(parameters) +
         12.0 * static_cast<double>(model.layers * model.width * seq_len);
}

namespace {

/// Number of fp32 values per parameter in a checkpoint.
std::int64_t saved_values(const OptimizerKind& optimizer) {
  return 1 + std::ssize(optimizer.states);
}

}  // namespace

std::int64_t snapshot_bytes(const OptimizerKind& optimizer, const std::vector<UnitPart>& stored) {
  std::int64_t elements = 0;
  for (const UnitPart& part : stored) elements += part.count;
  const std::int64_t values = saved_values(optimizer) * elements * static_cast<std::int64_t>(sizeof(float));
  return values + values / pages_of_aligned_piece;
}

namespace {

std::uint64_t payload_bytes(const PlannedCall& call, const Coordinates& coordinates) {
  const bool is_divided =
      call.operation == CommOperation::all_gather || call.operation == CommOperation::reduce_scatter;
  const int parts = is_divided ? coordinates.extent(call.group) : 1;
  return static_cast<std::uint64_t>(call.count * parts) * size_of(call.dtype);
}

std::vector<TrafficRow> traffic_of(const std::vector<PlannedCall>& calls, const Coordinates& coordinates) {
  std::vector<TrafficRow> rows;
  for (const PlannedCall& call : calls) {
    if (coordinates.extent(call.group) == 1) continue;
    const std::string axis = ProcessGrid::label(coordinates, call.group);
    const auto same = [&](const TrafficRow& row) {
      return row.axis == axis && row.operation == call.operation;
    };
    auto row = std::ranges::find_if(rows, same);
    if (row == rows.end()) row = rows.insert(row, {.axis = axis, .operation = call.operation});
    row->calls += call.times;
    row->payload_bytes += call.times * payload_bytes(call, coordinates);
  }
  return rows;
}

/// The collectives of the programs that a step runs.
std::vector<PlannedCall> calls_of(const Schedule& schedule, const ModelPrograms& programs) {
  std::vector<PlannedCall> calls;
  const ScheduleExcerpt excerpt = excerpt_of(schedule);
  const Schedule& few = excerpt.schedule;
  const Repetition& repeated = excerpt.actions;
  few.for_each_action(1, false, 1, [&](const Occurrence& occurrence) {
    const Action& action = few.actions[occurrence.index];
    if (!is_of_micro_batch(action.kind) || is_message(action.kind)) return;
    const bool is_repeated = occurrence.index >= repeated.begin && occurrence.index < repeated.end;
    std::map<const void*, std::size_t> in_flight;  // by the address of the output
    for (const Entry& entry : program_of(action, programs).entries) {
      std::visit(
          [&]<class Op>(const Op& op) {
            if constexpr (std::is_same_v<Op, Await>) {
              calls[in_flight.at(op.output.data)].until = calls.size();
              in_flight.erase(op.output.data);
            } else if constexpr (is_collective<Op>) {
              const CommCall call = op.call();
              in_flight.emplace(call.output.data, calls.size());
              calls.push_back({.group = op.group,
                               .operation = call.operation,
                               .count = std::min(call.input.size(), call.output.size()),
                               .dtype = call.input.dtype,
                               .times = is_repeated ? repeated.times : 1});
            }
          },
          entry.operation);
    }
  });
  return calls;
}

/// Scratch bytes of one call on rank 0 if comm.algorithm is `name`; for "auto", of the algorithm that needs
/// the most. For the planned operations no rank needs more, except that halving_doubling may need one more
/// element on another rank.
std::size_t scratch_bytes(const std::string& name, const PlannedCall& call, const Coordinates& coordinates) {
  const int ranks = coordinates.extent(call.group);
  const auto of = [&](Algorithm algorithm) -> std::size_t {
    if (algorithm == Algorithm::native) return 0;
    const CollectiveCall collective{call.operation, ranks, call.count};
    return static_cast<std::size_t>(make_schedule(collective, algorithm, 0).scratch_count) *
           size_of(call.dtype);
  };
  if (name == "auto") return std::ranges::max(all_algorithms | std::views::transform(of));
  return of(AlgorithmChoice::parse(name).of(call.operation, payload_bytes(call, coordinates)));
}

/// The most scratch bytes that the pool holds while steps repeat these calls.
std::int64_t scratch_bytes(const std::string& name, const std::vector<PlannedCall>& calls,
                           const Coordinates& coordinates) {
  if (name == "native") return 0;
  std::map<std::tuple<CommOperation, AxisSet, std::int64_t, DType>, std::size_t> known;
  const auto bytes_of = [&](const PlannedCall& call) {
    const auto [found, is_new] = known.try_emplace({call.operation, call.group, call.count, call.dtype});
    if (is_new) found->second = scratch_bytes(name, call, coordinates);
    return found->second;
  };
  ScratchSizes pool;
  std::size_t most = 0;
  constexpr int steps = 2;  // later steps, and repeated micro-batches, reuse the same blocks
  for (int step = 0; step < steps; ++step) {
    std::multimap<std::size_t, std::size_t> lent;  // capacities by PlannedCall::until
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto still_lent = lent.lower_bound(i + 1);
      for (auto done = lent.begin(); done != still_lent; ++done) pool.give_back(done->second);
      lent.erase(lent.begin(), still_lent);
      const std::size_t bytes = bytes_of(calls[i]);
      if (bytes > 0) lent.emplace(calls[i].until, pool.take(bytes).capacity);
      most = std::max(most, pool.allocated());
    }
    for (const auto& [until, capacity] : lent) pool.give_back(capacity);
  }
  return static_cast<std::int64_t>(most);
}

/// The matrix products of the linear layers, one element per weight matrix.
std::vector<PlannedProduct> products(const StepConfig& config, std::int64_t threads,
                                     const ExchangePlan& exchange, const ModelPrograms& programs) {
  std::map<std::pair<int, std::int64_t>, PlannedProduct> planned;  // by unit and first element of the weight
  const auto product_of = [&](const TensorRef& weight) -> PlannedProduct& {
    const Place place = place_of(weight);
    return planned[{programs.roots.all()[static_cast<std::size_t>(place.root)].unit,
                    place.offset / static_cast<std::int64_t>(size_of(weight.dtype))}];
  };
  const auto add = [&](const auto& op) {
    if constexpr (requires { op.x, op.w, op.bias; }) {
      PlannedProduct& product = product_of(op.w);
      const std::int64_t rows = op.x.size() / op.w.shape[0];
      if (rows < product.rows) product.last_rows = rows;
      if (product.rows > 0) return;
      product = {.in = op.w.shape[0],
                 .out = op.w.shape[1],
                 .rows = rows,
                 .threads = static_cast<int>(threads),
                 .dtype = config.train.dtype,
                 .grad_dtype = config.train.grad_dtype,
                 .transposed = !op.w.contiguous(),
                 .bias = static_cast<bool>(op.bias),
                 .accumulates = config.train.accumulation > 1 && !exchange.reduces_each_micro_batch,
                 .versioned = exchange.keeps_weights};
    } else if constexpr (requires { op.dw, op.accumulate; }) {
      PlannedProduct& product = product_of(op.dw);
      product.accumulates = product.accumulates || op.accumulate;
    }
  };
  const auto add_all = [&](const Program& program) {
    for (const Entry& entry : program.entries) std::visit(add, entry.operation);
  };
  for (const ChunkPrograms& chunk : programs.chunks) add_all(chunk.forward);
  for (const ChunkPrograms& chunk : programs.chunks) std::ranges::for_each(chunk.backward, add_all);
  std::vector<PlannedProduct> products;
  for (const auto& [place, product] : planned) products.push_back(product);
  return products;
}

/// The attention that every block computes.
PlannedAttention attention(const ModelPrograms& programs) {
  for (const ChunkPrograms& chunk : programs.chunks) {
    for (const Entry& entry : chunk.forward.entries) {
      const auto* op = std::get_if<AttentionForward>(&entry.operation);
      if (op == nullptr) continue;
      return {.batch = op->query.shape[0],
              .heads = op->query.shape[2],
              .positions = op->query.shape[1],
              .head_size = op->query.shape[3],
              .dtype = op->query.dtype,
              .has_dropout = op->dropout.probability > 0.0F};
    }
  }
  return {};
}

}  // namespace

RunPlan make_plan(const StepConfig& config, const Platform& platform) {
  const ModelConfig& model = config.model;
  const Coordinates coordinates = config.parallel.first();
  const ParameterTable table = config.table(coordinates);
  const Schedule schedule = config.parallel.schedule->make(static_cast<int>(config.train.accumulation));
  const ModelPrograms programs = record_programs(model, table, config.programs(schedule, coordinates));
  const ActivationPlan activations(programs.roots, passages_of(schedule, programs));

  RunPlan plan;
  plan.parameters = table.num_parameters();
  const auto bytes = [&](MemoryCategory category) -> std::int64_t& {
    return plan.memory[static_cast<std::size_t>(category)];
  };
  const OptimizerKind& optimizer = *config.optimizer.kind;
  const ExchangePlan exchange =
      config.parallel.exchange->plan(config.parallel.values, {.table = table,
                                                              .coordinates = coordinates,
                                                              .compute_type = config.train.dtype,
                                                              .gradient_type = config.train.grad_dtype,
                                                              .events = unit_events_of(schedule, programs)});
  std::int64_t elements = 0;
  std::size_t segments = 0;
  for (const UnitPart& part : exchange.owned) {
    elements += part.count;
    segments += segments_of(table, part, 0).size();
  }
  bytes(MemoryCategory::parameters) = exchange.weight_bytes;
  bytes(MemoryCategory::gradients) = exchange.gradient_bytes;
  bytes(MemoryCategory::gathered_weights) = exchange.gathered_bytes;
  bytes(MemoryCategory::full_gradients) = exchange.full_gradient_bytes;
  bytes(MemoryCategory::optimizer) =
      elements * 4 * optimizer.values_per_element(config.train.dtype, config.optimizer.keeps_master);
  bytes(MemoryCategory::activations) = static_cast<std::int64_t>(activations.bytes());
  // The optimizer's table of segments, and the device memory that TrainingStep itself allocates.
  bytes(MemoryCategory::workspace) =
      static_cast<std::int64_t>(segments * sizeof(Segment) + TrainingStep::workspace_bytes(schedule));
  if (platform.plan_compute != nullptr) {
    const std::vector<PlannedProduct> planned = products(config, platform.threads, exchange, programs);
    const PlannedWork work{.products = planned, .attention = attention(programs)};
    bytes(MemoryCategory::workspace) += static_cast<std::int64_t>(platform.plan_compute(work));
  }
  std::vector<PlannedCall> of_programs = calls_of(schedule, programs);
  const std::vector<PlannedCall> of_terms =
      TrainingStep::tensor_calls(table, exchange.owned, config.train.grad_dtype, of_programs.size());
  of_programs.insert(of_programs.end(), of_terms.begin(), of_terms.end());
  const bool nodes_are_joined = platform.communicator.ranks < config.parallel.world_size();
  const auto groups =
      1 + static_cast<int>(ProcessGrid::distinct(coordinates, config.parallel.groups()).size());
  const int communicators =
      groups * (nodes_are_joined ? HierarchicalCommunicator::num_node_communicators : 1);
  bytes(MemoryCategory::communication) =
      communicators * static_cast<std::int64_t>(platform.communicator.bytes) +
      scratch_bytes(platform.algorithm, exchange.calls, coordinates) +
      scratch_bytes(platform.algorithm, of_programs, coordinates);
  if (platform.keeps_snapshot) bytes(MemoryCategory::snapshot) = snapshot_bytes(optimizer, exchange.stored);
  plan.checkpoint_bytes = plan.parameters * 4 * saved_values(optimizer);
  plan.tokens_per_step = config.train.global_batch * config.train.seq_len;
  std::vector<PlannedCall> calls = of_programs;
  calls.insert(calls.end(), exchange.calls.begin(), exchange.calls.end());
  calls.push_back(TrainingStep::guard_call());
  plan.traffic = traffic_of(calls, coordinates);
  plan.flops_per_token = model_flops_per_token(model, plan.parameters, config.train.seq_len);
  return plan;
}

}  // namespace mylos
