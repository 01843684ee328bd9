// SPDX-License-Identifier: BSD-3-Clause
// A compute backend with one operation: GELU in a plain loop. All other operations go to the next backend.
#include "core/plugin.hpp"

#include <cmath>
#include <cstdint>
#include <memory>

#include "core/ops/forwarding_backend.hpp"

namespace {

using mylos::ComputeBackend;
using mylos::DType;

class ExampleOperations {
 public:
  using List = mylos::OperationList<mylos::GeluForward>;

  explicit ExampleOperations(ComputeBackend& memory) : memory_(memory) {}

  /// Returns false, so that the next backend is asked, if this loop cannot do the operation.
  bool run(const mylos::GeluForward& op) {
    if (!memory_.host_accessible() || op.x.dtype != DType::fp32 || op.y.dtype != DType::fp32) return false;
    memory_.synchronize();  // the loop runs on the host, not in the queue
    const auto* from = op.x.as<float>();
    auto* to = op.y.as<float>();
    const float sqrt_2_over_pi = 0.7978845608F;
    for (std::int64_t i = 0; i < op.x.size(); ++i) {
      const float v = from[i];
      to[i] = 0.5F * v * (1.0F + std::tanh(sqrt_2_over_pi * (v + 0.044715F * v * v * v)));
    }
    return true;
  }

 private:
  ComputeBackend& memory_;
};

class ExampleBackend final : public mylos::ForwardingBackend {
 public:
  explicit ExampleBackend(ComputeBackend& next) : ForwardingBackend(next), operations_(next) {
    add_operations(ExampleOperations::List(), operations_, "example");
  }

  std::string description() const override { return "example over " + next().description(); }

 private:
  ExampleOperations operations_;
};

std::unique_ptr<ComputeBackend> create(const mylos::ComputeArgs& args) {
  mylos::require(args.next != nullptr, "a backend below the example backend");
  return std::make_unique<ExampleBackend>(*args.next);
}

}  // namespace

extern "C" {
extern const mylos::PluginDescriptor mylos_plugin;
const mylos::PluginDescriptor mylos_plugin = {
    .kind = mylos::PluginKind::compute,
    .name = "example",
    .summary = "GELU in a plain loop, all else by the next backend",
    .preference = -1,  // never chosen by default
    .operations = ExampleOperations::List::names,
    .create_compute = create,
};
}
