// SPDX-License-Identifier: BSD-3-Clause
// A compute backend with one Kokkos kernel: GELU. All other operations go to the next backend, of which the
// last one has started Kokkos.
#include "core/plugin.hpp"

#include <cstdint>
#include <memory>

#include <Kokkos_Core.hpp>

#include "core/ops/forwarding_backend.hpp"

namespace {

using mylos::ComputeBackend;
using mylos::DType;

class ExampleOperations {
 public:
  using List = mylos::OperationList<mylos::GeluForward>;

  /// Returns false, so that the next backend is asked, if this kernel cannot do the operation.
  bool run(const mylos::GeluForward& op) {
    if (op.x.dtype != DType::fp32 || op.y.dtype != DType::fp32) return false;
    const auto* from = op.x.as<float>();
    auto* to = op.y.as<float>();
    Kokkos::parallel_for(
        "example::gelu", Kokkos::RangePolicy<Kokkos::IndexType<std::int64_t>>(0, op.x.size()),
        KOKKOS_LAMBDA(std::int64_t i) {
          constexpr float sqrt_2_over_pi = 0.7978845608F;
          const float v = from[i];
          to[i] = 0.5F * v * (1.0F + Kokkos::tanh(sqrt_2_over_pi * (v + 0.044715F * v * v * v)));
        });
    return true;
  }
};

class ExampleBackend final : public mylos::ForwardingBackend {
 public:
  explicit ExampleBackend(ComputeBackend& next) : ForwardingBackend(next) {
    add_operations(ExampleOperations::List(), operations_, "example_kokkos");
  }

  std::string description() const override { return "example over " + next().description(); }

 private:
  ExampleOperations operations_;
};

std::unique_ptr<ComputeBackend> create(const mylos::ComputeArgs& args) {
  mylos::require(args.next != nullptr, "a backend below the example backend");
  return std::make_unique<ExampleBackend>(*args.next);
}

#define TEXT_OF(number) TEXT_OF_EXPANDED(number)
#define TEXT_OF_EXPANDED(number) #number

}  // namespace

extern "C" {
extern const mylos::PluginDescriptor mylos_plugin;
const mylos::PluginDescriptor mylos_plugin = {
    .kind = mylos::PluginKind::compute,
    .name = "example_kokkos",
    .kokkos_version =
        TEXT_OF(KOKKOS_VERSION_MAJOR) "." TEXT_OF(KOKKOS_VERSION_MINOR) "." TEXT_OF(KOKKOS_VERSION_PATCH),
    .summary = "GELU in a Kokkos kernel, all else by the next backend",
    .preference = -1,  // never chosen by default
    .operations = ExampleOperations::List::names,
    .create_compute = create,
};
}
