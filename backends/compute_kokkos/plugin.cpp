// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>
#if defined(KOKKOS_ENABLE_OPENMP)
#include <omp.h>
#endif

#include <fmt/core.h>

#include "backends/compute_kokkos/kokkos_backend.hpp"
#include "core/base/affinity.hpp"
#include "core/base/instruction_set.hpp"

#define MYLOS_STRING_OF(x) #x
#define MYLOS_STRING(x) MYLOS_STRING_OF(x)

namespace mylos::compute_kokkos {

namespace {

/// Binds each worker thread to a processor (a hardware thread) if this process may use exactly `num_threads`
/// processors, unless OpenMP's variables bind the threads or forbid binding. The calling thread keeps all
/// processors, so that threads that it starts later may run on any of these.
void pin_workers(int num_threads) {
#if defined(KOKKOS_ENABLE_OPENMP)
  const bool is_decided =
      omp_get_proc_bind() != omp_proc_bind_false || std::getenv("OMP_PROC_BIND") != nullptr;
  if (num_threads == 1 || is_decided) return;
  const Topology topology = load_topology();
  const ProcessorSet own = own_set(topology);
  if (hwloc_bitmap_weight(own.get()) != num_threads) return;
  std::vector<ProcessorSet> processors;
  for (int p = hwloc_bitmap_first(own.get()); p >= 0; p = hwloc_bitmap_next(own.get(), p)) {
    processors.push_back(empty_set());
    if (hwloc_bitmap_only(processors.back().get(), static_cast<unsigned>(p)) != 0)
      fail(ExitCode::internal, "hwloc is out of memory");
  }
  int unbound = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : unbound)
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    if (thread > 0 && hwloc_set_cpubind(topology.get(), processors[thread].get(), HWLOC_CPUBIND_THREAD) != 0)
      ++unbound;
  }
  if (unbound > 0) fmt::print(stderr, "mylos: {} worker threads could not be bound to processors\n", unbound);
#endif
}

/// The instruction set that the kernels were compiled for.
constexpr InstructionSet compiled_set() {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
  return InstructionSet::avx512_bf16;
#elif defined(__AVX512BW__)
  return InstructionSet::avx512;
#elif defined(__AVX2__)
  return InstructionSet::avx2;
#else
  return InstructionSet::baseline;
#endif
}

const char* unusable() {
  static const std::string problem =
      compiled_set() <= instruction_set()
          ? ""
          : fmt::format(
                "its kernels were compiled for {}, but only {} may be used here; configure mylos with "
                "-DMYLOS_CPU_VARIANTS=ON, if MYLOS_CPU sets this limit, or with another MYLOS_ARCH",
                name_of(compiled_set()), name_of(instruction_set()));
  return problem.empty() ? nullptr : problem.c_str();
}

std::unique_ptr<ComputeBackend> create(const ComputeArgs& args) {
  if (Kokkos::is_finalized()) fail(ExitCode::internal, "Kokkos can be initialised only once per process");
  const auto kokkos = std::make_shared<Kokkos::ScopeGuard>(
      Kokkos::InitializationSettings().set_num_threads(args.num_threads).set_disable_warnings(true));
  pin_workers(args.num_threads);
  return std::make_unique<KokkosBackend>(kokkos);
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "kokkos",
    .kokkos_version = MYLOS_STRING(KOKKOS_VERSION_MAJOR) "." MYLOS_STRING(
        KOKKOS_VERSION_MINOR) "." MYLOS_STRING(KOKKOS_VERSION_PATCH),
    .summary =
        "every unfused operation in portable Kokkos; the root that other compute backends fall through to",
    .preference = 10,
    .operations = KokkosOperations::List::names,
    .unusable = unusable,
    .create_compute = create,
};

}  // namespace mylos::compute_kokkos
