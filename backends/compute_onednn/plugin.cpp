// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "backends/compute_onednn/linear.hpp"

#define MYLOS_STRING_OF(x) #x
#define MYLOS_STRING(x) MYLOS_STRING_OF(x)

namespace mylos::compute_onednn {

namespace {

const char* library_instructions() {
  using dnnl::cpu_isa;
  constexpr std::pair<cpu_isa, const char*> sets[] = {{cpu_isa::avx512_core_amx, "AMX"},
                                                      {cpu_isa::avx512_core_bf16, "AVX-512 with bf16"},
                                                      {cpu_isa::avx512_core, "AVX-512"},
                                                      {cpu_isa::avx2, "AVX2"},
                                                      {cpu_isa::avx, "AVX"},
                                                      {cpu_isa::sse41, "SSE4.1"}};
  const auto* const used = std::ranges::find_if(sets, [](const auto& set) { return uses(set.first); });
  return used == std::end(sets) ? "its default instructions" : used->second;
}

class OnednnBackend final : public ForwardingBackend {
 public:
  OnednnBackend(ComputeBackend& next, MemoryLedger* ledger)
      : ForwardingBackend(next), kernels_(next, ledger) {
    add_operations(OnednnOperations::List(), kernels_, "onednn");
  }

  std::string description() const override {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{} with {}{} over {}", version->major, version->minor, version->patch,
                       library_instructions(), OnednnOperations::own_products(), next().description());
  }
  /// When the memory is freed, the packed copies of the weights in it are dropped.
  Allocation allocate(std::size_t bytes, const char* label) override {
    const Allocation memory = next().allocate(bytes, label);
    return {memory.get(), [this, memory, bytes](void* first) { kernels_.forget(first, bytes); }};
  }

 private:
  OnednnOperations kernels_;
};

std::unique_ptr<ComputeBackend> create(const ComputeArgs& args) {
  require(args.next != nullptr, "oneDNN works over a root backend");
  if (!args.next->host_accessible()) {
    fail(ExitCode::usage, "oneDNN computes on the host, but the memory of {} is not host memory",
         args.next->description());
  }
  // A variable of oneDNN may let fp32 be computed in narrower types.
  dnnl_set_default_fpmath_mode(dnnl_fpmath_mode_strict);
  return std::make_unique<OnednnBackend>(*args.next, args.ledger);
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "onednn",
    .libraries = "oneDNN " MYLOS_STRING(DNNL_VERSION_MAJOR) "." MYLOS_STRING(
        DNNL_VERSION_MINOR) "." MYLOS_STRING(DNNL_VERSION_PATCH),
    .summary = "linear layers on the CPU, by mylos' own kernels or oneDNN; the rest by the backend below",
    .preference = 20,
    .operations = OnednnOperations::List::names,
    .create_compute = create,
    .plan_compute = OnednnOperations::workspace,
};

}  // namespace mylos::compute_onednn
