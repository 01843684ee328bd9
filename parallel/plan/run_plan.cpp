// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/run_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "core/model/model_programs.hpp"
#include "parallel/collectives/algorithm_choice.hpp"
#include "parallel/collectives/hierarchical.hpp"
#include "parallel/collectives/scratch_pool.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

std::int64_t RunPlan::memory_total() const {
  return std::accumulate(memory.begin(), memory.end(), std::int64_t{0});
}

double model_flops_per_token(const ModelConfig& model, std::int64_t parameters, std::int64_t seq_len) {
  // A token uses some of the experts, and some tokens use a routed block.
  const ExpertConfig& experts = model.experts;
  const std::int64_t c = model.width;
  const auto layer_of = [&](std::int64_t inner) { return 2 * c * inner + c + inner; };  // feed-forward
  const std::int64_t expert = layer_of(experts.width);
  const double share = static_cast<double>(model.depths.tokens(seq_len)) / static_cast<double>(seq_len);
  auto weights = static_cast<double>(parameters);
  double attended = 0.0;  // positions
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    std::int64_t used = 4 * c * c + 8 * c;  // of a block by a token that it processes
    if (experts.are_in(layer)) {
      const std::int64_t routers = experts.noise == RouterNoise::Kind::learned ? 2 : 1;
      used += experts.count * c * routers + (experts.per_token + (experts.has_shared ? 1 : 0)) * expert;
      weights -= static_cast<double>((experts.count - experts.per_token) * expert);
    } else {
      used += layer_of(model.inner_width());
    }
    const double part = model.depths.are_in(layer) ? share : 1.0;
    weights -= (1.0 - part) * static_cast<double>(used);
    attended += part * part * static_cast<double>(seq_len);
  }
  return 6.0 * weights + 12.0 * static_cast<double>(c) * attended;
}

namespace {

/// The fp32 values that a checkpoint holds of a parameter's elements: the weight and the states.
std::int64_t saved_values(const OptimizerKind& optimizer, const Parameter& parameter) {
  return 1 + optimizer.num_states(parameter);
}

}  // namespace

std::int64_t snapshot_bytes(const RankProgram& program) {
  std::int64_t values = 0;
  const OptimizerKind& optimizer = program.optimizer().kind();
  const std::int64_t most = optimizer.values_per_element(DType::fp32, false);  // states of an element
  for (const UnitPart& part : program.holding().stored) {
    const std::int64_t older = std::ssize(program.versions_of_weights(part.unit)) - 1;
    values += part.count * (1 + most + older);
    for (const Piece& piece : pieces_of(program.table(), part))
      values -= piece.count * (most - optimizer.num_states(piece.parameter));
  }
  const std::int64_t bytes = values * static_cast<std::int64_t>(sizeof(float));
  return bytes + bytes / pages_of_aligned_piece;
}

namespace {

/// The elements of the versions of weights that a checkpoint holds in addition to the newest.
std::int64_t older_weights(const StepConfig& config) {
  const std::vector<VersionRule> rules = config.rules_of_units();
  if (rules.empty()) return 0;
  std::int64_t elements = 0;
  const ParameterTable whole = parameters_of(config.model);
  for (const Parameter& parameter : whole.parameters())
    elements += product(parameter.shape) * (rules[static_cast<std::size_t>(parameter.unit)].versions() - 1);
  return elements;
}

std::vector<TrafficRow> traffic_of(const RankProgram& program) {
  std::vector<TrafficRow> rows;
  program.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t times) {
    const std::optional<ListedCall> call = listed_call(entry);
    if (!call || program.coordinates().extent(call->group) == 1) return;
    const std::string axis = ProcessGrid::label(program.coordinates(), call->group);
    const auto same = [&](const TrafficRow& row) {
      return row.axis == axis && row.operation == call->operation;
    };
    auto row = std::ranges::find_if(rows, same);
    if (row == rows.end()) row = rows.insert(row, {.axis = axis, .operation = call->operation});
    row->calls += times;
    row->payload_bytes += times * call->payload_bytes;
  });
  return rows;
}

/// Scratch bytes of one call on the rank at `coordinates` if comm.algorithm is `name`; for "auto", of the
/// algorithm that needs the most. For the planned operations no rank needs more than the first of a group,
/// except that halving_doubling may need one more element on another rank. Messages need none.
std::size_t scratch_bytes(const std::string& name, const ListedCall& call, const Coordinates& coordinates) {
  if (call.operation > CommOperation::all_to_all) return 0;
  const int ranks = coordinates.extent(call.group);
  const auto of = [&](Algorithm algorithm) -> std::size_t {
    if (algorithm == Algorithm::native) return 0;
    const CollectiveCall collective{call.operation, ranks, call.count};
    return static_cast<std::size_t>(
               make_schedule(collective, algorithm, coordinates.index(call.group)).scratch_count) *
           size_of(call.dtype);
  };
  if (name == "auto") return std::ranges::max(all_algorithms | std::views::transform(of));
  return of(AlgorithmChoice::parse(name).of(call.operation, call.payload_bytes));
}

/// The most scratch bytes that the pool holds while steps repeat their calls.
std::int64_t scratch_bytes(const std::string& name, const RankProgram& program) {
  if (name == "native") return 0;
  std::map<std::tuple<CommOperation, AxisSet, std::int64_t, DType>, std::size_t> known;
  const auto bytes_of = [&](const ListedCall& call) {
    const auto [found, is_new] = known.try_emplace({call.operation, call.group, call.count, call.dtype});
    if (is_new) found->second = scratch_bytes(name, call, program.coordinates());
    return found->second;
  };
  ScratchSizes pool;
  std::size_t most = 0;
  std::multimap<const void*, std::size_t> lent;  // capacities by the output of the call
  constexpr int steps = 2;  // later steps, and repeated micro-batches, reuse the same blocks
  for (int step = 0; step < steps; ++step) {
    program.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t) {
      if (const auto* await = std::get_if<Await>(&entry.operation)) {
        const auto found = lent.find(await->output.data);
        if (found == lent.end()) return;
        pool.give_back(found->second);
        lent.erase(found);
      } else if (const std::optional<ListedCall> call = listed_call(entry)) {
        const std::size_t bytes = bytes_of(*call);
        if (bytes > 0) lent.emplace(call_of(entry)->call.output.data, pool.take(bytes).capacity);
        most = std::max(most, pool.allocated());
      }
    });
  }
  // The statistics, summed after each step.
  if (const auto sums = static_cast<std::int64_t>(program.num_statistics()); sums > 0) {
    const std::size_t bytes = bytes_of({.group = all_axes,
                                        .operation = CommOperation::all_reduce,
                                        .count = sums,
                                        .dtype = DType::fp32,
                                        .payload_bytes = static_cast<std::uint64_t>(sums) * sizeof(float)});
    if (bytes > 0) pool.take(bytes);
    most = std::max(most, pool.allocated());
  }
  return static_cast<std::int64_t>(most);
}

/// The matrix products of the linear layers, one element per weight matrix.
std::vector<PlannedProduct> products(const RankProgram& program, std::int64_t threads) {
  const StepConfig& config = program.config();
  const ModelPrograms& programs = program.programs();
  std::map<std::pair<int, std::int64_t>, PlannedProduct> planned;  // by unit and first element of the weight
  const auto key_of = [&](const TensorRef& weight) {
    const Place place = place_of(weight);
    return std::pair{program.storages().at(place.storage).unit,
                     place.offset / static_cast<std::int64_t>(size_of(weight.dtype))};
  };
  const auto persists = [&](int storage) { return program.storages().at(storage).persists; };
  const auto add = [&](const auto& op) {
    constexpr bool is_of_experts = requires {
      op.offsets;
    };
    if constexpr (!is_of_experts && requires { op.x, op.w, op.bias; }) {
      PlannedProduct& product = planned[key_of(op.w)];
      const int weights = place_of(op.w).storage;
      const int gradients = Storages::gradients_storage(program.storages().at(weights).unit);
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
                 .accumulates = config.train.accumulation > 1 && persists(gradients),
                 .versioned = persists(weights),
                 .places = static_cast<int>(
                     std::ssize(program.versions_of_weights(program.storages().at(weights).unit)))};
    } else if constexpr (is_of_experts && requires { op.x, op.w, op.bias; }) {
      PlannedProduct& product = planned[key_of(op.w)];
      product.in = op.w.shape[1];
      product.out = op.w.shape[2];
      product.rows = std::max(product.rows, op.x.shape[1]);
      product.threads = static_cast<int>(threads);
      product.dtype = config.train.dtype;
      product.is_grouped = true;
    } else if constexpr (requires { op.dy, op.w; }) {
      const auto found = planned.find(key_of(op.w));
      if (found != planned.end()) found->second.has_input_gradient = true;
    } else if constexpr (!is_of_experts && requires { op.dw, op.accumulate; }) {
      // Of the head's slices all but the first add, so of two unequal ones only the last.
      const auto found = planned.find(key_of(op.dw));
      if (found != planned.end() && op.x.size() / op.dw.shape[0] == found->second.rows)
        found->second.accumulates |= op.accumulate;
    }
  };
  const auto add_all = [&](const Program& own) {
    for (const Entry& entry : own.entries) std::visit(add, entry.operation);
  };
  for (const ChunkPrograms& chunk : programs.chunks) add_all(chunk.forward);
  for (const ChunkPrograms& chunk : programs.chunks) std::ranges::for_each(chunk.backward, add_all);
  // In evaluation a routed block has rows for all tokens.
  const auto add_evaluated = [&](const auto& op) {
    if constexpr (requires { op.x, op.w, op.bias; }) {
      const auto found = planned.find(key_of(op.w));
      if (found == planned.end()) return;
      PlannedProduct& product = found->second;
      const std::int64_t rows = product.is_grouped ? op.x.shape[1] : op.x.size() / op.w.shape[0];
      if (rows > product.rows) product.evaluated_rows = std::max(product.evaluated_rows, rows);
    }
  };
  for (const ChunkPrograms& chunk : programs.chunks) {
    for (const Entry& entry : chunk.evaluate.entries) std::visit(add_evaluated, entry.operation);
  }
  std::vector<PlannedProduct> products;
  for (const auto& [place, product] : planned) products.push_back(product);
  return products;
}

/// The products of whole matrices in updates.
std::vector<PlannedMatrixProduct> matrix_products(const RankProgram& program, std::int64_t threads) {
  std::set<PlannedMatrixProduct> planned;
  program.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t) {
    const auto* op = std::get_if<MatrixProduct>(&entry.operation);
    if (op == nullptr) return;
    planned.insert({.m = op->z.shape[1],
                    .n = op->z.shape[2],
                    .k = op->inner(),
                    .threads = static_cast<int>(threads),
                    .dtype = op->x.dtype,
                    .x_transposed = op->x_transposed,
                    .y_transposed = op->y_transposed});
  });
  return {planned.begin(), planned.end()};
}

/// The attention that every block computes, over the most positions.
PlannedAttention attention(const ModelPrograms& programs) {
  PlannedAttention most;
  const auto look_at = [&](const Program& program) {
    for (const Entry& entry : program.entries) {
      const auto* op = std::get_if<AttentionForward>(&entry.operation);
      if (op == nullptr || op->query.shape[1] <= most.positions) continue;
      most = {.batch = op->query.shape[0],
              .heads = op->query.shape[2],
              .positions = op->query.shape[1],
              .head_size = op->query.shape[3],
              .dtype = op->query.dtype,
              .has_dropout = most.has_dropout || op->dropout.probability > 0.0F};
    }
  };
  for (const ChunkPrograms& chunk : programs.chunks) look_at(chunk.forward);
  for (const ChunkPrograms& chunk : programs.chunks) look_at(chunk.evaluate);
  return most;
}

}  // namespace

namespace {

/// `schedule` is the rank's.
RunPlan plan_of(const StepConfig& config, const Platform& platform, int rank, Schedule schedule) {
  const ModelConfig& model = config.model;
  const RankProgram program(config, config.parallel.coordinates(rank), std::move(schedule));
  RunPlan plan;
  plan.rank = rank;
  plan.parameters = program.table().num_parameters();
  const auto bytes = [&](MemoryCategory category) -> std::int64_t& {
    return plan.memory[static_cast<std::size_t>(category)];
  };
  for (const Storage& storage : program.storages().all()) {
    if (storage.persists && storage.within < 0)
      bytes(storage.category) += static_cast<std::int64_t>(storage.bytes);
  }
  for (const auto& [arena, size] : program.places().arenas())
    bytes(arena.category) += static_cast<std::int64_t>(size);
  if (platform.plan_compute != nullptr) {
    const std::vector<PlannedProduct> planned = products(program, platform.threads);
    const std::vector<PlannedMatrixProduct> of_matrices = matrix_products(program, platform.threads);
    const PlannedWork work{
        .products = planned, .matrix_products = of_matrices, .attention = attention(program.programs())};
    bytes(MemoryCategory::workspace) += static_cast<std::int64_t>(platform.plan_compute(work));
  }
  const bool nodes_are_joined = platform.communicator.ranks < config.parallel.world_size();
  std::size_t of_communicators = platform.communicator.bytes;  // of all ranks
  for (const AxisSet group : ProcessGrid::distinct(program.coordinates(), config.groups()))
    of_communicators += platform.communicator.bytes_of(program.coordinates().extent(group));
  if (nodes_are_joined) of_communicators *= HierarchicalCommunicator::num_node_communicators;
  bytes(MemoryCategory::communication) =
      static_cast<std::int64_t>(of_communicators) + scratch_bytes(platform.algorithm, program);
  const OptimizerKind& optimizer = *config.optimizer.kind;
  if (platform.keeps_snapshot) bytes(MemoryCategory::snapshot) = snapshot_bytes(program);
  std::int64_t saved = older_weights(config);
  const ParameterTable whole = parameters_of(model);
  for (const Parameter& parameter : whole.parameters())
    saved += product(parameter.shape) * saved_values(optimizer, parameter);
  plan.checkpoint_bytes = saved * static_cast<std::int64_t>(sizeof(float));
  plan.tokens_per_step = config.train.global_batch * config.train.seq_len;
  plan.traffic = traffic_of(program);
  plan.flops_per_token = model_flops_per_token(model, plan.parameters, config.train.seq_len);
  return plan;
}

}  // namespace

std::vector<RunPlan> make_plans(const StepConfig& config, const Platform& platform) {
  const ParallelLayout& layout = config.parallel;
  std::vector<Schedule> schedules = config.parallel.schedules(config.train.accumulation, config.model.tied);
  std::vector<RunPlan> plans;
  for (int stage = 0; stage < layout.pipeline; ++stage) {
    const auto rank = static_cast<int>(layout.first_rank(stage));
    const auto list = static_cast<std::size_t>(layout.list_of(layout.coordinates(rank)));
    plans.push_back(plan_of(config, platform, rank, std::move(schedules[list])));
  }
  return plans;
}

const RunPlan& largest_of(const std::vector<RunPlan>& plans) {
  return *std::ranges::max_element(plans, {}, &RunPlan::memory_total);
}

}  // namespace mylos
