// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/measure_machine.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <system_error>
#include <type_traits>

#include "app/commands/random_tokens.hpp"
#include "app/deck/machine_file.hpp"
#include "app/launch/run_directory.hpp"
#include "app/train/opened_model.hpp"
#include "core/base/clock.hpp"
#include "core/base/statistics.hpp"
#include "core/memory/device_buffer.hpp"
#include "io/file_util.hpp"
#include "io/io_thread.hpp"
#include "io/metrics/metrics.hpp"
#include "io/report/chrome_trace.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/engine/training_step.hpp"

namespace mylos {

namespace {

constexpr double tolerance = 0.1;  // within which two halves of a measurement agree

/// What distinguishes the entries of one time.
struct EntryKey {
  std::string name;
  DType dtype = DType::fp32;
  ProductShape product;
  AttentionShape attention;
  double bytes = 0.0;

  auto operator<=>(const EntryKey&) const = default;
};

EntryKey key_of(const Entry& entry, const Storages& storages) {
  EntryKey key{.name = std::string(name_of(entry)), .dtype = dtype_of(entry), .product = {}, .attention = {}};
  if (const auto product = product_of(entry)) {
    key.product = *product;
    if (has_gathered_weights(entry, storages)) key.name += gathered_suffix;
  } else if (const auto attention = attention_of(entry)) {
    key.attention = *attention;
  } else {
    key.bytes = moved_bytes(entry);
  }
  return key;
}

void put(Machine& machine, const EntryKey& key, double seconds) {
  const Machine::NameAndType name{key.name, key.dtype};
  if (key.product.rows > 0) {
    machine.products[name][key.product] = seconds;
  } else if (key.attention.batch > 0) {
    machine.attention[name][key.attention] = seconds;
  } else if (key.bytes > 0.0) {
    machine.operations[name].add(key.bytes, seconds);
  }
}

/// Whether events of other operations may be of this one: it has no kernel of its own and is composed.
bool is_composed(const Entry& entry) {
  return std::visit(
      []<class Op>(const Op& op) {
        return requires {
          op.compose([](const auto&) {});
        };
      },
      entry.operation);
}

/// Notes `name` if the medians of the two halves of `samples` differ.
void compare_halves(const std::vector<double>& samples, const std::string& name,
                    std::vector<std::string>& differing) {
  if (samples.size() < 4) return;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  const double first = median({samples.begin(), middle});
  const double second = median({middle, samples.end()});
  if (std::abs(first / second - 1.0) > tolerance)
    differing.push_back(fmt::format("{}: {:.4g} ms, then {:.4g} ms", name, 1e3 * first, 1e3 * second));
}

/// Times of the entries of a traced step, by key: of a host with what passes until the next operation; of a
/// device without `waiting`, what the shortest operation and the wait for it take.
double take_step(const Trace& trace, const Storages& storages, double waiting,
                 std::map<EntryKey, std::vector<double>>& samples) {
  double all = 0.0;
  std::map<const Entry*, double> seconds;
  std::int64_t operations = 0;
  double covered = 0.0;
  for (const TraceEvent& event : trace.events()) {
    const double own = 1e-9 * static_cast<double>(event.end - event.begin);
    if (event.kind == TraceKind::phase) {
      if (event.name == whole_step) all = own;
      continue;
    }
    covered += own;
    if (event.kind != TraceKind::operation || event.entry == nullptr) continue;
    const auto& entry = *static_cast<const Entry*>(event.entry);
    if (event.name != name_of(entry) && !is_composed(entry)) continue;
    seconds[&entry] += own;
    ++operations;
  }
  const double between =
      operations > 0 ? std::max(0.0, all - covered) / static_cast<double>(operations) : 0.0;
  constexpr double shortest = 1e-6;
  for (const auto& [entry, own] : seconds)
    samples[key_of(*entry, storages)].push_back(waiting > 0.0 ? std::max(shortest, own - waiting)
                                                              : own + between);
  return all;
}

}  // namespace

void measure_operations(Session& session, const RunConfig& config, int traced_steps,
                        MachineMeasurement& measured) {
  const ProcessGrid grid(session.world(), config.parallel.extents(), config.groups(), session.traffic(),
                         nullptr, session.compute().host_accessible(), &session.trace());
  const RankProgram program(config, grid.coordinates());
  check_lists(session.compute(), grid, program);
  TrainingStep training(session.compute(), session.ledger(), grid, program, session.trace());
  training.initialise();
  RandomTokens driver(config.model.vocab, config.train.seq_len);
  std::map<EntryKey, std::vector<double>> samples;
  std::vector<double> steps;
  constexpr int warm_up = 2;
  for (int step = 1; step <= warm_up + traced_steps; ++step) {
    session.world().barrier();
    if (step > warm_up) session.trace().start();
    training.run(step, step, driver);
    while (training.num_unread() > 0) training.read_results();
    session.trace().stop();
    if (step <= warm_up) continue;
    steps.push_back(take_step(session.trace(), program.storages(), measured.waiting, samples));
  }
  compare_halves(steps,
                 fmt::format("steps of width {}, {} x {} tokens", config.model.width,
                             config.train.micro_batch, config.train.seq_len),
                 measured.differing);
  for (const auto& [key, seconds] : samples) {
    const double middle = median(seconds);
    put(measured.machine, key, middle);
    if (middle > 0.0)
      measured.spreads.push_back(0.5 * (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / middle);
  }
}

namespace {

/// Medians of `repetitions` runs of `work`, which begins at the same time on all ranks.
double time_of(Communicator& world, ComputeBackend& compute, int repetitions,
               const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    world.barrier();
    const auto begin = Clock::now();
    work();
    compute.synchronize();
    if (i > 0) seconds.push_back(seconds_since(begin));
  }
  return median(seconds);
}

void measure_collectives(Session& session, Communicator& group, bool is_network, std::int64_t most_bytes,
                         MachineMeasurement& measured) {
  ComputeBackend& compute = session.compute();
  const auto bytes = static_cast<std::size_t>(most_bytes);
  const DeviceBuffer input(compute, session.ledger(), MemoryCategory::workspace, bytes, "mylos::measured");
  const DeviceBuffer output(compute, session.ledger(), MemoryCategory::workspace, bytes, "mylos::measured");
  const auto clear = [&](const DeviceBuffer& buffer) {
    compute.run(Fill{.y = {buffer.data(), DType::fp32, {most_bytes / 4}}, .value = 1.0F});
  };
  clear(input);
  clear(output);
  const int ranks = group.size();
  for (std::int64_t size = 1024; size <= most_bytes; size *= 8) {
    const std::int64_t count = size / 4 / ranks * ranks;
    const TensorRef whole(output.data(), DType::fp32, {count});
    const TensorRef other(input.data(), DType::fp32, {count});
    const TensorRef part(input.data(), DType::fp32, {count / ranks});
    const int repetitions = size >= 16 << 20 ? 3 : 9;
    const auto measure = [&](CommOperation operation, const std::function<Request()>& start) {
      try {
        const double seconds = time_of(group, compute, repetitions, [&] { start().host_wait(); });
        measured.machine.collectives[{std::string(name_of(operation)), is_network, ranks}].add(
            static_cast<double>(4 * count), seconds);
      } catch (const Error& error) {
        if (error.code() != ExitCode::usage) throw;  // such as native collectives over a simulated link
      }
    };
    measure(CommOperation::all_reduce, [&] { return group.all_reduce(whole, ReduceOp::sum); });
    measure(CommOperation::reduce_scatter, [&] { return group.reduce_scatter(whole, part, ReduceOp::sum); });
    measure(CommOperation::all_gather, [&] { return group.all_gather(part, whole); });
    measure(CommOperation::all_to_all, [&] { return group.all_to_all(other, whole); });
    measure(CommOperation::broadcast, [&] { return group.broadcast(whole, 0); });
    if (ranks != 2) continue;
    measure(CommOperation::send,
            [&] { return group.rank() == 0 ? group.send(whole, 1, 0) : group.recv(whole, 0, 0); });
  }
}

/// By what factor an all_reduce and products that run at the same time are slower than each by itself.
double overlap_of(Session& session, Communicator& group) {
  ComputeBackend& compute = session.compute();
  constexpr std::int64_t count = std::int64_t{4} << 20;
  constexpr std::int64_t n = 512;
  const auto buffer = [&](std::int64_t elements) {
    DeviceBuffer made(compute, session.ledger(), MemoryCategory::workspace,
                      static_cast<std::size_t>(elements) * sizeof(float), "mylos::measured");
    compute.run(Fill{.y = {made.data(), DType::fp32, {elements}}, .value = 1.0F});
    return made;
  };
  const DeviceBuffer summed = buffer(count);
  const DeviceBuffer x = buffer(n * n);
  const DeviceBuffer w = buffer(n * n);
  const DeviceBuffer y = buffer(n * n);
  const auto start = [&] { return group.all_reduce({summed.data(), DType::fp32, {count}}, ReduceOp::max); };
  const auto multiply = [&](int times) {
    for (int i = 0; i < times; ++i) {
      compute.run(LinearForward{.x = {x.data(), DType::fp32, {n, n}},
                                .w = {w.data(), DType::fp32, {n, n}},
                                .bias = {},
                                .y = {y.data(), DType::fp32, {n, n}}});
      group.progress();
    }
  };
  constexpr int repetitions = 5;
  const double communication = time_of(group, compute, repetitions, [&] { start().host_wait(); });
  const double one = time_of(group, compute, repetitions, [&] { multiply(1); });
  const int times = std::clamp(static_cast<int>(communication / one), 1, 1000);
  const double computation = time_of(group, compute, repetitions, [&] { multiply(times); });
  const double both = time_of(group, compute, repetitions, [&] {
    Request request = start();
    multiply(times);
    request.host_wait();
  });
  const double shorter = std::min(communication, computation);
  const double longer = std::max(communication, computation);
  return std::clamp((both - longer + shorter) / shorter, 1.0, 4.0);
}

}  // namespace

void measure_host(Session& session, MachineMeasurement& measured) {
  ComputeBackend& compute = session.compute();
  if (compute.host_accessible()) return;  // operations run on the host itself
  const DeviceBuffer buffer(compute, session.ledger(), MemoryCategory::workspace, sizeof(float),
                            "mylos::measured");
  const Fill smallest{.y = {buffer.data(), DType::fp32, {1}}, .value = 1.0F};
  constexpr int repetitions = 21;
  measured.waiting = time_of(session.world(), compute, repetitions, [&] { compute.run(smallest); });
  constexpr int queued = 1000;
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    compute.synchronize();
    const auto begin = Clock::now();
    for (int n = 0; n < queued; ++n) compute.run(smallest);
    seconds.push_back(seconds_since(begin) / queued);
  }
  compute.synchronize();
  measured.machine.host = measured.machine.graph_host = median(seconds);
  measured.machine.has_graphs = compute.can_capture();
}

void measure_communication(Session& session, std::int64_t ranks_per_node, std::int64_t most_bytes,
                           MachineMeasurement& measured) {
  const int ranks = session.size();
  const int rank = session.rank();
  for (int size = 2; size <= ranks; size = size < ranks ? std::min(2 * size, ranks) : ranks + 1) {
    if (ranks % size != 0) continue;
    // All groups of a size work at the same time, as those of a run do.
    const std::unique_ptr<Communicator> group = session.world().split(rank / size, rank % size);
    measure_collectives(session, *group, ranks_per_node > 0 && size > ranks_per_node, most_bytes, measured);
  }
  if (ranks > 1) {
    const double slower = overlap_of(session, session.world());
    measured.machine.overlap = {.computation = slower, .communication = slower};
  }
}

namespace {

/// Replaces a table by that of all ranks: each row has the median of those that have it.
template <class Table>
void take_medians(const std::vector<Machine>& ranks, Table Machine::*table, Machine& all) {
  const auto rows_of = [](const auto& own) -> const auto& {
    if constexpr (requires { own.points(); }) {
      return own.points();
    } else {
      return own;
    }
  };
  using Rows = std::remove_cvref_t<decltype(rows_of((all.*table).begin()->second))>;
  std::map<typename Table::key_type, std::map<typename Rows::key_type, std::vector<double>>> samples;
  for (const Machine& rank : ranks) {
    for (const auto& [key, own] : rank.*table) {
      for (const auto& [row, seconds] : rows_of(own)) samples[key][row].push_back(seconds);
    }
  }
  for (const auto& [key, rows] : samples) {
    auto& merged = (all.*table)[key] = {};
    for (const auto& [row, seconds] : rows) {
      if constexpr (requires { merged.points(); }) {
        merged.add(row, median(seconds));
      } else {
        merged[row] = median(seconds);
      }
    }
  }
}

}  // namespace

void take_medians_of_ranks(Session& session, MachineMeasurement& measured) {
  Machine& machine = measured.machine;
  make_curves_rise(machine);
  const std::string head = "[machine]\nname = rank\n[device]\nbandwidth = 1\npeak_fp32 = 1\n";
  std::vector<Machine> ranks;
  for (const std::string& text : session.gather(head + machine_tables_text(machine)))
    ranks.push_back(parse_machine(text, "a rank's times"));
  take_medians(ranks, &Machine::products, machine);
  take_medians(ranks, &Machine::attention, machine);
  take_medians(ranks, &Machine::operations, machine);
  take_medians(ranks, &Machine::collectives, machine);
  make_curves_rise(machine);
}

void make_curves_rise(Machine& machine) {
  const auto raise = [](auto& curves) {
    for (auto& [key, curve] : curves) {
      curve.rise();
      // A curve has two points: of one size, in proportion.
      const auto [size, seconds] = *curve.points().begin();
      if (curve.points().size() == 1) curve.add(2.0 * size, 2.0 * seconds);
    }
  };
  raise(machine.operations);
  raise(machine.collectives);
}

void take_operations_from_run(const std::string& folder, const std::string& plugin_path, Machine& machine) {
  const RunPaths paths{folder};
  std::error_code unknown;
  if (!std::filesystem::exists(paths.resolved_deck(), unknown))
    fail(ExitCode::usage, "--from={} holds no run: it has no resolved.deck", folder);
  const std::map<std::int64_t, std::filesystem::path> traces = traces_of(paths);
  if (traces.empty()) fail(ExitCode::usage, "{} has no trace: set [profile] step in its deck", folder);
  const std::optional<TraceSummary> summary = read_summary(traces.rbegin()->second);
  if (!summary) fail(ExitCode::usage, "{} is not a trace of this version", traces.rbegin()->second.string());
  IoThread io;
  const MetricsTable launches = read_metrics(io, paths.metrics(), "launches");
  if (!launches.contains("ranks")) fail(ExitCode::usage, "{} has no metrics of a launch", folder);
  const auto ranks = static_cast<std::int64_t>(launches.at("ranks").back());
  const Setup setup = make_setup(read_deck(paths.resolved_deck().string()), paths.resolved_deck().string(),
                                 {}, plugin_path, {ranks, ranks}, shape_at);
  const RankProgram program(setup.config, setup.config.parallel.coordinates(0));
  std::map<std::string, double> seconds;  // of an operation's name and shape
  for (const OperationTime& operation : summary->profile.operations) {
    if (operation.kind == TraceKind::operation)
      seconds[operation.label.substr(0, operation.label.find(" ("))] += operation.seconds;
  }
  const auto label_of = [](const Entry& entry) {
    const auto product = product_of(entry);
    return product ? fmt::format("{} {}x{}", name_of(entry), product->in, product->out)
                   : std::string(name_of(entry));
  };
  const auto work_of = [](const Entry& entry) {
    return product_of(entry) || attention_of(entry) ? flops_of(entry) : moved_bytes(entry);
  };
  // The operations that the trace has of an entry: its own, or those that it is composed of.
  const auto for_each_traced = [&](const Entry& entry, const auto& visit) {
    if (seconds.contains(label_of(entry))) return visit(entry);
    std::visit(
        [&]<class Op>(const Op& op) {
          if constexpr (requires { op.compose([](const auto&) {}); })
            op.compose([&](const auto& part) {
              visit(Entry{.operation = part, .block = entry.block, .where = {}});
            });
        },
        entry.operation);
  };
  std::map<std::string, double> work;  // of all operations of a label
  program.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t times) {
    if (communicates(entry)) return;
    for_each_traced(
        entry, [&](const Entry& own) { work[label_of(own)] += work_of(own) * static_cast<double>(times); });
  });
  program.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t) {
    if (communicates(entry)) return;
    double own_seconds = 0.0;
    for_each_traced(entry, [&](const Entry& own) {
      const std::string label = label_of(own);
      if (seconds.contains(label) && work[label] > 0.0)
        own_seconds += seconds[label] * work_of(own) / work[label];
    });
    if (own_seconds > 0.0) put(machine, key_of(entry, program.storages()), own_seconds);
  });
  make_curves_rise(machine);
}

}  // namespace mylos
