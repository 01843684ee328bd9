// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/session.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

#include "app/launch/environment.hpp"
#include "core/base/clock.hpp"
#include "core/base/rng.hpp"
#include "core/memory/device_buffer.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"
#include "parallel/collectives/choose_algorithms.hpp"
#include "parallel/collectives/hierarchical.hpp"

namespace mylos {

namespace {

const PluginDescriptor& first_usable(const PluginRegistry& plugins, PluginKind kind, const char* fallback) {
  const auto usable = plugins.usable(kind);
  return usable.empty() ? plugins.require(kind, fallback) : *usable.front();
}

/// Returns null if there is no such plugin, because a run can be planned without its plugins.
const PluginDescriptor* find(const PluginRegistry& plugins, PluginKind kind, std::string_view name) {
  for (const PluginInfo& info : plugins.all()) {
    const PluginDescriptor* plugin = info.descriptor;
    if (plugin != nullptr && plugin->kind == kind && plugin->name == name) return plugin;
  }
  return nullptr;
}

constexpr const char* root_backend = "kokkos";
constexpr const char* launcher_comm = "mpi";

}  // namespace

std::string choose_comm(const PluginRegistry& plugins, const std::string& wanted, int world_size) {
  if (wanted != "auto") return wanted;
  return world_size == 1 ? "self" : first_usable(plugins, PluginKind::communication, "mpi").name;
}

CommunicatorPlan plan_communicator(const PluginRegistry& plugins, const RunConfig& config,
                                   const ParamValues& values) {
  const auto ranks = static_cast<int>(config.parallel.world_size());
  const bool is_auto = config.backend.comm == "auto";
  if (is_auto && plugins.usable(PluginKind::communication).empty()) return {};
  const std::string name = choose_comm(plugins, config.backend.comm, ranks);
  const PluginDescriptor* plugin = find(plugins, PluginKind::communication, name);
  if (plugin == nullptr || plugin->plan_communicator == nullptr) return {};
  const auto ranks_per_node = static_cast<int>(config.ranks_per_node);
  return plugin->plan_communicator(values, ranks_per_node > 0 ? ranks_per_node : ranks);
}

std::vector<const PluginDescriptor*> compute_plugins(const PluginRegistry& plugins, const RunConfig& config) {
  const std::string& wanted = config.backend.compute;
  const auto named = [&](std::string_view name) { return find(plugins, PluginKind::compute, name); };
  const PluginDescriptor* root = named(root_backend);
  const PluginDescriptor* first =
      named(wanted == "auto" ? first_usable(plugins, PluginKind::compute, root_backend).name : wanted);
  std::vector<const PluginDescriptor*> found = {first};
  if (root != first) found.push_back(root);
  std::erase(found, nullptr);
  return found;
}

BackendConfig choose_backends(const PluginRegistry& plugins, const BackendConfig& wanted, int world_size,
                              std::span<const ThreadLimit> limits) {
  BackendConfig chosen = wanted;
  plugins.require(PluginKind::compute, root_backend);
  if (chosen.compute == "auto")
    chosen.compute = first_usable(plugins, PluginKind::compute, root_backend).name;
  plugins.require(PluginKind::compute, chosen.compute);
  chosen.comm = choose_comm(plugins, wanted.comm, world_size);
  plugins.require(PluginKind::communication, chosen.comm);
  if (chosen.comm == "self" && world_size > 1) {
    fail(ExitCode::usage, "[backend] comm = self is for one rank, but this run has {}", world_size);
  }
  if (world_size > 1) plugins.require(PluginKind::communication, launcher_comm);
  const ThreadLimit limit = choose_threads(wanted.threads, limits);
  chosen.threads = limit.threads;
  // The processors are shown anyway.
  if (!limit.name.empty() && limit.name != limits.front().name)
    chosen.threads_limit = fmt::format("{}, {}", limit.name, limits.front().name);
  return chosen;
}

std::string comm_problem(const PluginRegistry& plugins, const RunConfig& config, const ParamValues& values) {
  const PluginDescriptor& comm = plugins.require(PluginKind::communication, config.backend.comm);
  if (comm.unusable_among == nullptr || config.parallel.world_size() == 1) return "";
  const PluginDescriptor& launcher = plugins.require(PluginKind::communication, launcher_comm);
  CommunicatorArgs args;
  args.deck = &values;
  const auto ranks = launcher.create_communicator(args);
  const char* problem = comm.unusable_among(*ranks);
  return problem != nullptr ? problem : "";
}

Session::Session(const PluginRegistry& plugins, const RunConfig& config, const ParamValues& values,
                 FlightRecorder& recorder)
    : recorder_(recorder) {
  const PluginDescriptor& root = plugins.require(PluginKind::compute, root_backend);
  ComputeArgs compute_args;
  compute_args.deck = &values;
  compute_args.ledger = &ledger_;
  compute_args.num_threads = static_cast<int>(config.backend.threads);
  root_ = root.create_compute(compute_args);
  if (config.backend.compute != root_backend) {
    const PluginDescriptor& chosen = plugins.require(PluginKind::compute, config.backend.compute);
    compute_args.next = root_.get();
    compute_ = chosen.create_compute(compute_args);
  }
  trace_ = std::make_unique<Trace>(untraced_compute());
  traced_compute_ = std::make_unique<TracedBackend>(untraced_compute(), *trace_);

  const PluginDescriptor& launcher =
      plugins.require(PluginKind::communication, config.parallel.world_size() > 1 ? launcher_comm : "self");
  CommunicatorArgs comm_args;
  comm_args.deck = &values;
  comm_args.ledger = &ledger_;
  bootstrap_ = launcher.create_communicator(comm_args);

  comm_args.bootstrap = bootstrap_.get();
  open_world(plugins.require(PluginKind::communication, config.backend.comm), comm_args, config.comm);

  const bool host_buffers = compute().host_accessible();
  traced_world_ = std::make_unique<TracedCommunicator>(*world_, *trace_, name_of(all_axes));
  counted_world_ = std::make_unique<CountedCommunicator>(*traced_world_, name_of(all_axes), traffic_,
                                                         &recorder_, host_buffers);
  if (!host_buffers) {
    counted_bootstrap_ =
        std::make_unique<CountedCommunicator>(*bootstrap_, name_of(all_axes), traffic_, &recorder_);
  }
  grid_ = std::make_unique<ProcessGrid>(*world_, config.parallel.extents(), config.groups(), traffic_,
                                        &recorder_, host_buffers, trace_.get());
  // A rank of an asynchronous pipeline may wait for a message while another waits for a collective that takes
  // both several rounds.
  const bool needs_progress = config.parallel.is_asynchronous() && layers_ != nullptr;
  if (config.comm.progress_thread || needs_progress) progress_ = std::make_unique<ProgressThread>(*world_);
}

void Session::open_world(const PluginDescriptor& comm, CommunicatorArgs args, const CommConfig& config) {
  // Algorithms built from messages wait for the compute backend themselves, once per operation.
  const bool is_one = bootstrap_->size() == 1;
  const bool is_made_of_messages = !is_one && (config.algorithm != "native" || config.simulated_link);
  args.compute = is_made_of_messages ? nullptr : &untraced_compute();
  communicator_ = comm.create_communicator(args);
  world_ = communicator_.get();
  algorithm_ = is_one && config.algorithm == "auto" ? "native" : config.algorithm;
  if (communicator_->size() < bootstrap_->size()) {
    layers_ = std::make_unique<HierarchicalCommunicator>(*communicator_, *bootstrap_, args.compute,
                                                         std::make_shared<OperationEngine>(&ledger_));
    world_ = layers_.get();
  }
  if (!is_made_of_messages) return;
  const auto below = [&] {
    return layers_ ? NextCommunicator(std::move(layers_)) : NextCommunicator(*communicator_);
  };
  if (config.simulated_link) {
    layers_ = std::make_unique<SimulatedLink>(below(), *config.simulated_link);
    world_ = layers_.get();
  }
  if (algorithm_ == "auto") algorithm_ = choose_algorithms(*world_).text();
  const AlgorithmChoice choice = AlgorithmChoice::parse(algorithm_);
  layers_ =
      std::make_unique<AlgorithmCommunicator>(below(), choice, "wire", wire_traffic_, &untraced_compute(),
                                              std::make_shared<OperationEngine>(&ledger_));
  world_ = layers_.get();
}

std::vector<std::string> Session::gather(const std::string& text) {
  constexpr int tag = 0;
  std::string own = text;
  auto bytes = static_cast<std::int64_t>(own.size());
  if (rank() != 0) {
    bootstrap_->send({&bytes, DType::int64, {1}}, 0, tag).host_wait();
    bootstrap_->send({own.data(), DType::uint8, {bytes}}, 0, tag).host_wait();
    return {};
  }
  std::vector<std::string> texts = {std::move(own)};
  for (int from = 1; from < size(); ++from) {
    bootstrap_->recv({&bytes, DType::int64, {1}}, from, tag).host_wait();
    std::string& theirs = texts.emplace_back(static_cast<std::size_t>(bytes), ' ');
    bootstrap_->recv({theirs.data(), DType::uint8, {bytes}}, from, tag).host_wait();
  }
  return texts;
}

double measure_gemm_tflops(Session& session, DType dtype) {
  using Shape = std::array<std::int64_t, 2>;  // in, out
  constexpr std::array<Shape, 4> small_shapes = {{{768, 768}, {768, 2304}, {768, 3072}, {3072, 768}}};
  constexpr std::array<Shape, 2> large_shapes = {{{4096, 4096}, {8192, 8192}}};
  constexpr int warm_up = 2;
  constexpr int repetitions = 6;
  ComputeBackend& compute = session.compute();
  const Trace::Scope range = session.trace().record("measure_peak", TraceKind::phase);
  // A GPU needs larger matrices than a few cores do to reach its peak rate.
  const bool is_device = !compute.host_accessible();
  const std::int64_t n = is_device ? 8192 : 1024;
  const std::span<const Shape> shapes = is_device ? std::span<const Shape>(large_shapes) : small_shapes;
  std::int64_t widest = 0;
  std::int64_t largest = 0;
  for (const auto& [in, out] : shapes) {
    widest = std::max({widest, in, out});
    largest = std::max(largest, in * out);
  }
  // Random numbers, a tile of them again and again: a GPU multiplies equal numbers with less power, so
  // faster.
  constexpr std::int64_t tile = std::int64_t{1} << 18;
  const DeviceBuffer random(compute, session.ledger(), MemoryCategory::workspace, tile * sizeof(float),
                            "mylos::peak");
  const TensorRef numbers(random.data(), DType::fp32, {tile});
  compute.run(FillNormal{.y = numbers, .key = stream_key(1, "peak")});
  const auto memory = [&](std::int64_t size) {
    DeviceBuffer buffer(compute, session.ledger(), MemoryCategory::workspace,
                        static_cast<std::size_t>(size) * size_of(dtype), "mylos::peak");
    const TensorRef whole(buffer.data(), dtype, {size});
    for (std::int64_t begin = 0; begin < size; begin += tile) {
      const std::int64_t count = std::min(tile, size - begin);
      compute.run(Cast{.x = numbers.flat(0, count), .y = whole.flat(begin, count)});
    }
    return buffer;
  };
  const DeviceBuffer x = memory(n * widest);
  const DeviceBuffer w = memory(largest);
  const DeviceBuffer y = memory(n * widest);
  double highest = 0.0;  // other load can only lower a rate, so the highest is taken
  session.world().barrier();
  for (const auto& [in, out] : shapes) {
    const LinearForward product{.x = {x.data(), dtype, {n, in}},
                                .w = {w.data(), dtype, {in, out}, 1},
                                .y = {y.data(), dtype, {n, out}}};
    for (int i = 0; i < warm_up + repetitions; ++i) {
      const auto start = std::chrono::steady_clock::now();
      compute.run(product);
      compute.synchronize();
      const double seconds = in_seconds(std::chrono::steady_clock::now() - start);
      if (i >= warm_up) highest = std::max(highest, 1e-12 * product.flops() / seconds);
    }
  }
  return highest;
}

}  // namespace mylos
