// SPDX-License-Identifier: BSD-3-Clause
// A published micro-benchmark of the MLP, in bf16 on every compute backend: what bias and GELU add to the
// time of the wide product, with GELU as a separate operation or fused into the product, and each operation's
// share of the MLP. Prints CSV. MYLOS_BUILD names the build folder, MYLOS_THREADS sets the number of host
// threads.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "core/base/join.hpp"
#include "core/base/statistics.hpp"
#include "core/base/thread_limits.hpp"
#include "core/memory/device_buffer.hpp"
#include "core/memory/device_event.hpp"
#include "tests/support/compute_backends.hpp"

namespace {

using namespace mylos;

/// The shape of the activations between the MLP's two products; the MLP's input and output are a quarter as
/// wide.
struct Shape {
  std::int64_t batch = 0;
  std::int64_t positions = 0;
  std::int64_t width = 0;
};

/// The published times for a shape, in ms; 0 if not published.
struct Published {
  Shape shape;
  double unfused = 0.0;  ///< bias and GELU
  double fused = 0.0;
  double up = 0.0;  ///< operations of the MLP
  double gelu = 0.0;
  double down = 0.0;
  double dropout = 0.0;
};

constexpr Published publications[] = {{{4, 512, 1024}, 0.0228, 0.0286},
                                      {{8, 512, 2048}, 0.0813, 0.0687},
                                      {{8, 1024, 5120}, 0.3594, 0.3212, 0.5992, 0.1319, 0.4457, 0.0492}};

/// A timed sequence of operations.
struct Part {
  std::string name;
  std::function<void()> queue;
  double published = 0.0;  ///< ms
  bool is_of_mlp = false;
  std::vector<double> seconds;
};

/// The MLP's memory on one backend.
class Mlp {
 public:
  Mlp(ComputeBackend& backend, const Shape& shape)
      : backend_(backend),
        rows_(shape.batch * shape.positions),
        narrow_(shape.width / 4),
        wide_(shape.width),
        x_(tensor("x", {shape.batch, shape.positions, narrow_}, 1.0F)),
        up_(tensor("up", {narrow_, wide_}, 0.02F)),
        up_bias_(tensor("up_bias", {wide_}, 0.02F)),
        pre_(tensor("pre", {rows_, wide_}, 1.0F)),
        activated_(tensor("activated", {rows_, wide_}, 1.0F)),
        down_(tensor("down", {wide_, narrow_}, 0.02F)),
        down_bias_(tensor("down_bias", {narrow_}, 0.02F)),
        y_(tensor("y", {shape.batch, shape.positions, narrow_}, 1.0F)) {
    dropout_.probability = 0.1F;
    const StepScalars scalars;
    void* memory = allocate(sizeof scalars, "scalars");
    backend_.copy_to_device(&scalars, memory, sizeof scalars);
    backend_.synchronize();
    dropout_.scalars = static_cast<const StepScalars*>(memory);
  }

  /// The product alone, the product with bias and then GELU, the product with both fused into it, then the
  /// operations of the MLP.
  std::vector<Part> parts(const Published& published) {
    const TensorRef x = x_.reshaped({rows_, narrow_});
    const TensorRef y = y_.reshaped({rows_, narrow_});
    const auto product = [=, this](TensorRef bias) {
      backend_.run(LinearForward{.x = x, .w = up_, .bias = bias, .y = pre_});
    };
    const auto gelu = [this] { backend_.run(GeluForward{.x = pre_, .y = activated_}); };
    std::vector<Part> parts;
    const auto add = [&](const char* name, std::function<void()> queue, double ms, bool is_of_mlp) {
      parts.push_back({name, std::move(queue), ms, is_of_mlp, {}});
    };
    add(
        "product", [=] { product({}); }, 0.0, false);
    const auto unfused = [=, this] {
      product(up_bias_);
      gelu();
    };
    add("product, bias, GELU", unfused, 0.0, false);
    const auto fused = [=, this] {
      backend_.run(LinearGeluForward{.x = x, .w = up_, .bias = up_bias_, .pre = pre_, .y = activated_});
    };
    add("product, bias, GELU, fused", fused, 0.0, false);
    add(
        "MLP up", [=, this] { product(up_bias_); }, published.up, true);
    add("MLP GELU", gelu, published.gelu, true);
    const auto down = [=, this] {
      backend_.run(LinearForward{.x = activated_, .w = down_, .bias = down_bias_, .y = y});
    };
    add("MLP down", down, published.down, true);
    const auto dropout = [this] { backend_.run(DropoutAdd{.x = y_, .y = y_, .dropout = dropout_}); };
    add("MLP dropout", dropout, published.dropout, true);
    return parts;
  }

 private:
  void* allocate(std::size_t bytes, const char* label) {
    return memory_.emplace_back(backend_, ledger_, MemoryCategory::workspace, bytes, label).data();
  }
  /// A bf16 tensor of normally distributed numbers.
  TensorRef tensor(const char* name, std::initializer_list<std::int64_t> shape, float stddev) {
    TensorRef made(nullptr, DType::bf16, shape);
    made.data = allocate(made.bytes(), name);
    const std::int64_t n = made.size();
    const DeviceBuffer exact(backend_, ledger_, MemoryCategory::workspace, static_cast<std::size_t>(n) * 4,
                             name);
    const TensorRef numbers(exact.data(), DType::fp32, {n});
    backend_.run(FillNormal{.y = numbers, .key = stream_key(1, name), .stddev = stddev});
    backend_.run(Cast{.x = numbers, .y = made.reshaped({n})});
    backend_.synchronize();
    return made;
  }

  ComputeBackend& backend_;
  MemoryLedger ledger_;
  std::vector<DeviceBuffer> memory_;
  std::int64_t rows_, narrow_, wide_;
  TensorRef x_, up_, up_bias_, pre_, activated_, down_, down_bias_, y_;
  Dropout dropout_;
};

/// Times the parts in turn with the backend's events.
void measure(ComputeBackend& backend, std::vector<Part>& parts, int warm_up, int repetitions) {
  struct Span {
    DeviceEvent begin, end;
  };
  std::vector<Span> spans;
  for (std::size_t i = 0; i < parts.size(); ++i)
    spans.push_back({DeviceEvent(backend), DeviceEvent(backend)});
  for (int repetition = -warm_up; repetition < repetitions; ++repetition) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      spans[i].begin.record();
      parts[i].queue();
      spans[i].end.record();
    }
    backend.synchronize();
    for (std::size_t i = 0; repetition >= 0 && i < parts.size(); ++i) {
      parts[i].seconds.push_back(spans[i].end.seconds_since(spans[i].begin));
    }
  }
}

double milliseconds(const Part& part, double q = 0.5) {
  return 1e3 * quantile(part.seconds, q);
}

double mlp_milliseconds(const std::vector<Part>& parts) {
  double sum = 0.0;
  for (const Part& part : parts) sum += part.is_of_mlp ? milliseconds(part) : 0.0;
  return sum;
}

/// The text of a figure; empty if there is no figure.
std::string known(double value) {
  return value > 0.0 ? fmt::format("{:.4f}", value) : "";
}

constexpr const char* csv_header =
    "backend,batch,positions,width,part,median_ms,lower_quartile_ms,upper_quartile_ms,published_ms,share_of_"
    "mlp\n";

void report(const std::string& backend, const Published& published, const std::vector<Part>& parts) {
  const auto& [batch, positions, width] = published.shape;
  const std::string shape = fmt::format("{},{},{},{}", backend, batch, positions, width);
  for (const Part& part : parts) {
    const double median = milliseconds(part);
    fmt::print("{},\"{}\",{:.4f},{:.4f},{:.4f},{},{}\n", shape, part.name, median, milliseconds(part, 0.25),
               milliseconds(part, 0.75), known(part.published),
               part.is_of_mlp ? known(median / mlp_milliseconds(parts)) : "");
  }
  const auto behind_product = [&](const char* name, const Part& part, double published_ms) {
    fmt::print("{},\"{}\",{:.4f},,,{},\n", shape, name, milliseconds(part) - milliseconds(parts.front()),
               known(published_ms));
  };
  behind_product("bias, GELU", parts[1], published.unfused);
  behind_product("bias, GELU, fused", parts[2], published.fused);
}

/// Parses batch x positions x width, as in "8x512x2048".
Published parse_shape(const std::string& text) {
  Shape shape;
  char end = 0;
  if (std::sscanf(text.c_str(), "%ldx%ldx%ld%c", &shape.batch, &shape.positions, &shape.width, &end) != 3 ||
      shape.batch < 1 || shape.positions < 1 || shape.width < 4 || shape.width % 4 != 0) {
    fail(ExitCode::usage, "--shape={} must be batch x positions x width, the width a multiple of 4", text);
  }
  return {shape};
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("Options");
  auto add = options.add_options();
  add("repetitions", po::value<int>()->default_value(30), "repetitions of each part, in turn");
  add("warm-up", po::value<int>()->default_value(3), "repetitions before the measured ones");
  add("shape", po::value<std::vector<std::string>>(),
      "BxTxF instead of the published shapes; may be repeated");
  add("backend", po::value<std::string>()->default_value(""), "measure only this backend");
  add("help", "this text");
  po::variables_map given;
  po::store(po::parse_command_line(argc, argv, options), given);
  if (given.contains("help")) {
    std::ostringstream text;
    text << "mlp_benchmark: bias, GELU and the MLP's operations, in bf16 on every compute backend, as CSV\n\n"
         << options;
    fmt::print("{}", text.str());
    return 0;
  }
  const int repetitions = given["repetitions"].as<int>();
  const int warm_up = given["warm-up"].as<int>();
  if (repetitions < 1 || warm_up < 0) {
    fail(ExitCode::usage, "--repetitions must be at least 1, --warm-up at least 0");
  }
  std::vector<Published> shapes(std::begin(publications), std::end(publications));
  if (given.contains("shape")) {
    shapes.clear();
    for (const std::string& text : given["shape"].as<std::vector<std::string>>())
      shapes.push_back(parse_shape(text));
  }
  const char* threads = std::getenv("MYLOS_THREADS");
  ComputeBackends backends(threads != nullptr ? std::atoi(threads) : default_threads());
  const std::vector<std::string> names = compute_backend_names();
  const std::string only = given["backend"].as<std::string>();
  if (!only.empty() && std::find(names.begin(), names.end(), only) == names.end()) {
    fail(ExitCode::usage, "--backend={} is not usable here; use {}", only, join(names, " or "));
  }
  fmt::print("{}", csv_header);
  for (const std::string& name : names) {
    if (!only.empty() && name != only) continue;
    ComputeBackend& backend = backends.at(name);
    for (const Published& published : shapes) {
      Mlp mlp(backend, published.shape);
      std::vector<Part> parts = mlp.parts(published);
      measure(backend, parts, warm_up, repetitions);
      report(name, published, parts);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const boost::program_options::error& error) {
    fmt::print(stderr, "mlp_benchmark: {}\n", error.what());
    return static_cast<int>(ExitCode::usage);
  } catch (const std::exception& error) {
    fmt::print(stderr, "mlp_benchmark: {}\n", error.what());
    const auto* known = dynamic_cast<const Error*>(&error);
    return static_cast<int>(known != nullptr ? known->code() : ExitCode::internal);
  }
}
