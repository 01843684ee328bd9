// SPDX-License-Identifier: BSD-3-Clause
// Time, algorithm bandwidth and bus bandwidth of every collective, as nccl-tests defines them, over sizes,
// backends and algorithms. Checks the results of every communicator. Start it under mpiexec; with --csv it
// writes one row per point.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <mpi.h>

#include "app/deck/command_line.hpp"
#include "app/launch/mpi_runtime.hpp"
#include "benchmarks/collectives/memory_bound.hpp"
#include "core/base/clock.hpp"
#include "core/base/statistics.hpp"
#include "core/communication/communicator.hpp"
#include "core/param_values.hpp"
#include "core/plugin.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"
#include "parallel/collectives/hierarchical.hpp"

namespace mylos {
namespace {

/// A collective to measure. A size is that of the larger buffer, as in nccl-tests.
struct Collective {
  const char* name;
  /// busbw over algbw on K ranks.
  double (*bus_factor)(double ranks);
};

constexpr Collective collectives[] = {
    {"all_reduce", [](double k) { return 2.0 * (k - 1.0) / k; }},
    {"reduce_scatter", [](double k) { return (k - 1.0) / k; }},
    {"all_gather", [](double k) { return (k - 1.0) / k; }},
    {"broadcast", [](double) { return 1.0; }},
    {"reduce", [](double) { return 1.0; }},
    {"all_to_all", [](double k) { return (k - 1.0) / k; }},
};

struct Settings {
  std::vector<std::string> operations, backends, algorithms, memories;
  std::int64_t min_bytes = 8, max_bytes = 64 << 20, factor = 4;
  DType dtype = DType::fp32;
  std::int64_t ranks_per_node = 0;
  double seconds = 0.0;  // per point
  std::string csv;
};

/// One communicator with buffers of the largest size in one kind of memory; the memory bound has neither.
struct Contender {
  std::string backend, algorithm, memory;
  Communicator* comm = nullptr;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::vector<std::byte> heap;
  std::array<Window, 2> windows;
};

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> result;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) result.push_back(word);
  return result;
}

/// Small whole numbers, so that sums over up to 17 ranks are exact in every type and order.
float value_at(int rank, std::int64_t element) {
  return static_cast<float>((element * 7 + std::int64_t{rank} * 3) % 16);
}

/// Sets and reads elements of the benchmark's type.
class Elements {
 public:
  Elements(std::byte* data, DType dtype) : data_(data), dtype_(dtype) {}
  void set(std::int64_t i, float value) {
    if (dtype_ == DType::fp32)
      reinterpret_cast<float*>(data_)[i] = value;
    else
      reinterpret_cast<bf16*>(data_)[i] = bf16(value);
  }
  float get(std::int64_t i) const {
    return dtype_ == DType::fp32 ? reinterpret_cast<const float*>(data_)[i]
                                 : static_cast<float>(reinterpret_cast<const bf16*>(data_)[i]);
  }

 private:
  std::byte* data_;
  DType dtype_;
};

class Benchmark {
 public:
  Benchmark(const MpiRuntime& mpi, Settings settings)
      : settings_(std::move(settings)), rank_(mpi.rank()), ranks_(mpi.size()) {
    const PluginRegistry plugins = PluginRegistry::discover(plugin_search_path(""));
    bootstrap_ = plugins.require(PluginKind::communication, "mpi").create_communicator({});
    for (const std::string& backend : settings_.backends) open_backend(plugins, backend);
    if (settings_.csv.empty() || rank_ != 0) return;
    file_.reset(std::fopen(settings_.csv.c_str(), "a"));
    if (!file_) fail(ExitCode::io, "cannot write {}", settings_.csv);
    if (std::ftell(file_.get()) == 0) {
      fmt::print(file_.get(),
                 "operation,backend,algorithm,memory,ranks,dtype,bytes,repetitions,seconds,algbw,busbw\n");
    }
  }

  /// Measures every point; returns whether every result was right.
  bool run() {
    if (rank_ == 0) {
      fmt::print("{:<15} {:<6} {:<17} {:<7} {:>5} {:>11} {:>5} {:>12} {:>9} {:>9}\n", "operation", "comm",
                 "algorithm", "memory", "ranks", "bytes", "reps", "time, us", "algbw", "busbw");
    }
    for (const Collective& collective : collectives) {
      if (std::ranges::find(settings_.operations, collective.name) == settings_.operations.end()) continue;
      for (std::int64_t bytes = settings_.min_bytes; bytes <= settings_.max_bytes; bytes *= settings_.factor)
        measure(collective, bytes);
    }
    return all_right_;
  }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void open_backend(const PluginRegistry& plugins, const std::string& name) {
    if (name == "bound") {
      bound_ = std::make_unique<MemoryBound>(MPI_COMM_WORLD, static_cast<std::size_t>(settings_.max_bytes));
      for (const char* stores : {"cached", "streaming"})
        contenders_.push_back({name, stores, "window", nullptr, nullptr, nullptr, {}, {}});
      return;
    }
    const PluginDescriptor& plugin = plugins.require(PluginKind::communication, name);
    if (plugin.unusable != nullptr && plugin.unusable() != nullptr)
      fail(ExitCode::usage, "{}", plugin.unusable());
    CommunicatorArgs args;
    if (name != "mpi") args.bootstrap = bootstrap_.get();
    ParamValues deck;
    deck.set("comm.ranks_per_node", settings_.ranks_per_node);
    deck.set("comm.gpu_aware", false);
    args.deck = &deck;
    backends_.push_back(plugin.create_communicator(args));
    Communicator* world = backends_.back().get();
    if (world->size() < ranks_) {
      joined_.push_back(std::make_unique<HierarchicalCommunicator>(*world, *bootstrap_));
      world = joined_.back().get();
    }
    for (const std::string& algorithm : settings_.algorithms) {
      communicators_.push_back(std::make_unique<AlgorithmCommunicator>(
          world->split(0, rank_), AlgorithmChoice::parse(algorithm), "wire", traffic_));
      for (const std::string& memory : settings_.memories)
        add_contender(name, algorithm, memory, *communicators_.back());
    }
  }

  void add_contender(const std::string& backend, const std::string& algorithm, const std::string& memory,
                     Communicator& comm) {
    const auto bytes = static_cast<std::size_t>(settings_.max_bytes);
    Contender contender{backend, algorithm, memory, &comm, nullptr, nullptr, {}, {}};
    if (memory == "window") {
      for (Window& window : contender.windows) window = comm.allocate(bytes);
      contender.input = static_cast<std::byte*>(contender.windows[0].get());
      contender.output = static_cast<std::byte*>(contender.windows[1].get());
    } else {
      contender.heap.resize(2 * bytes);
      contender.input = contender.heap.data();
      contender.output = contender.heap.data() + bytes;
    }
    if (contender.input != nullptr) contenders_.push_back(std::move(contender));
  }

  std::int64_t count(std::int64_t bytes) const {
    const auto width = static_cast<std::int64_t>(size_of(settings_.dtype));
    return bytes / width / ranks_ * ranks_;
  }

  /// Starts `operation` on buffers of `elements`.
  Request start(const Contender& c, std::string_view operation, std::int64_t elements) {
    const TensorRef all_in(c.input, settings_.dtype, {elements});
    const TensorRef all_out(c.output, settings_.dtype, {elements});
    const std::int64_t part = elements / ranks_;
    if (operation == "all_reduce") return c.comm->all_reduce(all_in, ReduceOp::sum);
    if (operation == "reduce_scatter")
      return c.comm->reduce_scatter(all_in, all_out.flat(0, part), ReduceOp::sum);
    if (operation == "all_gather") return c.comm->all_gather(all_out.flat(rank_ * part, part), all_out);
    if (operation == "broadcast") return c.comm->broadcast(all_in, 0);
    if (operation == "reduce") return c.comm->reduce(all_in, ReduceOp::sum, 0);
    return c.comm->all_to_all(all_in, all_out);
  }

  void run_bound(const Contender& c, std::string_view operation, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    const bool streaming = c.algorithm == "streaming";
    if (operation == "all_reduce") bound_->all_reduce(size, streaming);
    if (operation == "reduce_scatter") bound_->reduce_scatter(size, streaming);
    if (operation == "all_gather") bound_->all_gather(size, streaming);
  }

  /// Runs once on fresh data and compares every element of this rank's result.
  bool check(const Contender& c, std::string_view operation, std::int64_t elements) {
    Elements input(c.input, settings_.dtype);
    Elements output(c.output, settings_.dtype);
    const std::int64_t part = elements / ranks_;
    for (std::int64_t i = 0; i < elements; ++i) {
      input.set(i, value_at(rank_, i));
      output.set(i, i / std::max<std::int64_t>(part, 1) == rank_ ? value_at(rank_, i) : -1.0F);
    }
    start(c, operation, elements).host_wait();
    const auto sum = [&](std::int64_t i) {
      float total = 0.0F;
      for (int r = 0; r < ranks_; ++r) total += value_at(r, i);
      return total;
    };
    bool right = true;
    const auto compare = [&](const Elements& found, std::int64_t first, std::int64_t n,
                             const std::function<float(std::int64_t)>& expected) {
      for (std::int64_t i = 0; i < n && right; ++i) right = found.get(first + i) == expected(i);
    };
    if (operation == "all_reduce" || (operation == "reduce" && rank_ == 0)) compare(input, 0, elements, sum);
    if (operation == "reduce_scatter")
      compare(output, 0, part, [&](std::int64_t i) { return sum(rank_ * part + i); });
    if (operation == "broadcast") compare(input, 0, elements, [](std::int64_t i) { return value_at(0, i); });
    for (int r = 0; r < ranks_; ++r) {
      if (operation == "all_gather")
        compare(output, r * part, part, [&](std::int64_t i) { return value_at(r, r * part + i); });
      if (operation == "all_to_all")
        compare(output, r * part, part, [&](std::int64_t i) { return value_at(r, rank_ * part + i); });
    }
    return right;
  }

  /// Seconds per call on the slowest rank, for `calls` calls in a row.
  double sample(const Contender& c, std::string_view operation, std::int64_t elements, int calls) {
    const auto bytes = elements * static_cast<std::int64_t>(size_of(settings_.dtype));
    const auto call = [&] {
      if (c.comm == nullptr)
        run_bound(c, operation, bytes);
      else
        start(c, operation, elements).host_wait();
    };
    // An untimed call, so that the caches contain this contender's buffers, not another's.
    call();
    MPI_Barrier(MPI_COMM_WORLD);
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    double seconds = seconds_since(begin) / calls;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
  }

  /// Measures all contenders in turn, so that a disturbance of the machine affects all of them.
  void measure(const Collective& collective, std::int64_t bytes) {
    constexpr std::int64_t small = 64 << 10;
    constexpr int calls_of_small = 50;
    constexpr int warm_up = 2;
    constexpr int fewest = 5;
    constexpr int most = 101;
    const std::string_view operation = collective.name;
    const std::int64_t elements = count(bytes);
    if (elements == 0) return;
    const int calls = bytes <= small ? calls_of_small : 1;
    std::vector<Contender*> running;
    for (Contender& c : contenders_) {
      const bool has_bound =
          operation == "all_reduce" || operation == "reduce_scatter" || operation == "all_gather";
      if (c.comm == nullptr && (!has_bound || bytes < small || settings_.dtype != DType::fp32)) continue;
      running.push_back(&c);
      if (c.comm == nullptr) continue;
      int wrong = check(c, operation, elements) ? 0 : 1;
      MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
      if (wrong != 0 && rank_ == 0)
        fmt::print("WRONG: {} {} {} {} {} bytes\n", operation, c.backend, c.algorithm, c.memory, bytes);
      all_right_ = all_right_ && wrong == 0;
      // Zeros stay zeros however often they are summed.
      std::fill_n(c.input, bytes, std::byte{0});
      std::fill_n(c.output, bytes, std::byte{0});
    }
    std::vector<std::vector<double>> samples(running.size());
    double round = 0.0;
    for (int i = 0; i < warm_up; ++i) {
      round = 0.0;
      for (Contender* c : running) round += calls * sample(*c, operation, elements, calls);
    }
    const double wanted = settings_.seconds * static_cast<double>(running.size()) / round;
    const int repetitions = static_cast<int>(std::clamp(wanted, double{fewest}, double{most}));
    for (int i = 0; i < repetitions; ++i) {
      for (std::size_t j = 0; j < running.size(); ++j)
        samples[j].push_back(sample(*running[j], operation, elements, calls));
    }
    if (rank_ != 0) return;
    for (std::size_t j = 0; j < running.size(); ++j)
      write_row(collective, *running[j], elements, repetitions, median(samples[j]));
  }

  void write_row(const Collective& collective, const Contender& c, std::int64_t elements, int repetitions,
                 double seconds) {
    const auto bytes = elements * static_cast<std::int64_t>(size_of(settings_.dtype));
    const double algbw = 1e-9 * static_cast<double>(bytes) / seconds;
    const double busbw = algbw * collective.bus_factor(ranks_);
    fmt::print("{:<15} {:<6} {:<17} {:<7} {:>5} {:>11} {:>5} {:>12.2f} {:>9.3f} {:>9.3f}\n", collective.name,
               c.backend, c.algorithm, c.memory, ranks_, bytes, repetitions, 1e6 * seconds, algbw, busbw);
    std::fflush(stdout);
    if (!file_) return;
    fmt::print(file_.get(), "{},{},{},{},{},{},{},{},{:.9g},{:.6g},{:.6g}\n", collective.name, c.backend,
               c.algorithm, c.memory, ranks_, name_of(settings_.dtype), bytes, repetitions, seconds, algbw,
               busbw);
    std::fflush(file_.get());
  }

  Settings settings_;
  int rank_;
  int ranks_;
  TrafficCounter traffic_;
  std::unique_ptr<Communicator> bootstrap_;
  std::vector<std::unique_ptr<Communicator>> backends_;
  std::vector<std::unique_ptr<Communicator>> joined_;  // for backends that reach only one node
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unique_ptr<MemoryBound> bound_;
  std::deque<Contender> contenders_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  bool all_right_ = true;
};

/// Returns nothing if help was requested.
std::optional<Settings> parse(int argc, char** argv) {
  Settings settings;
  const auto text = [](const char* name, const char* value, const char* doc) {
    return CommandOption{name, OptionKind::text, doc, value};
  };
  const auto integer = [](const char* name, std::int64_t value, const char* doc) {
    return CommandOption{name, OptionKind::integer, doc, std::to_string(value)};
  };
  const CommandSyntax syntax = {
      .name = "collectives_benchmark",
      .help = "collectives_benchmark --help",
      .options =
          {{.name = "help", .doc = "this text"},
           text("operations", "all_reduce,reduce_scatter,all_gather,broadcast,reduce,all_to_all",
                "collectives, by ','"),
           text("backends", "mpi",
                "communication backends; bound is the memory traffic alone, without synchronisation"),
           text("algorithms", "native", "as deck key comm.algorithm"),
           text("memory", "heap,window", "heap, window (Communicator::allocate)"),
           integer(
               "ranks-per-node", settings.ranks_per_node,
               "as deck key comm.ranks_per_node: nodes of shm are joined through mpi; 0 takes the machine as "
               "it is"),
           integer("min-bytes", settings.min_bytes, "smallest size"),
           integer("max-bytes", settings.max_bytes, "largest size"),
           integer("factor", settings.factor, "ratio of each size to the one before"),
           text("dtype", "fp32", "fp32 or bf16"),
           {"seconds", OptionKind::real, "approximate time per point", "0.3"},
           text("csv", "", "file to append rows to")},
      .max_arguments = 0};
  const CommandLine line = parse_words(syntax, {argv + 1, argv + argc});
  if (line.flag("help")) {
    fmt::print("{}", options_text("collectives_benchmark, under mpiexec", syntax.options));
    return std::nullopt;
  }
  settings.ranks_per_node = line.integer("ranks-per-node");
  settings.min_bytes = line.integer("min-bytes");
  settings.max_bytes = line.integer("max-bytes");
  settings.factor = line.integer("factor");
  settings.seconds = line.real("seconds");
  settings.csv = line.text("csv");
  const std::string& dtype = line.text("dtype");
  if (settings.min_bytes < 1 || settings.factor < 2 || settings.max_bytes < settings.min_bytes)
    fail(ExitCode::usage, "sizes go from --min-bytes >= 1 to --max-bytes by a --factor >= 2");
  if (dtype != "fp32" && dtype != "bf16") fail(ExitCode::usage, "--dtype={} must be fp32 or bf16", dtype);
  settings.dtype = dtype == "bf16" ? DType::bf16 : DType::fp32;
  settings.operations = words(line.text("operations"));
  settings.backends = words(line.text("backends"));
  settings.algorithms = words(line.text("algorithms"));
  settings.memories = words(line.text("memory"));
  for (const std::string& name : settings.operations) {
    if (std::ranges::none_of(collectives, [&](const Collective& c) { return name == c.name; }))
      fail(ExitCode::usage, "there is no collective \"{}\"; see --help", name);
  }
  for (const std::string& name : settings.memories) {
    if (name != "heap" && name != "window") fail(ExitCode::usage, "--memory={} must be heap or window", name);
  }
  return settings;
}

}  // namespace
}  // namespace mylos

int main(int argc, char** argv) {
  try {
    const auto settings = mylos::parse(argc, argv);
    if (!settings) return 0;
    return mylos::with_mpi(mylos::MpiRuntime::default_start_timeout, [&](const mylos::MpiRuntime& mpi) {
      return mylos::Benchmark(mpi, *settings).run() ? 0 : static_cast<int>(mylos::ExitCode::numerical);
    });
  } catch (const mylos::Error& error) {
    fmt::print(stderr, "collectives_benchmark: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
