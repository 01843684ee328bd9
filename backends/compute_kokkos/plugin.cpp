// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.hpp"

#include <cstdlib>
#include <memory>
#include <sched.h>
#include <vector>

#include <Kokkos_Core.hpp>
#if defined(KOKKOS_ENABLE_OPENMP)
#include <omp.h>
#endif

#include "backends/compute_kokkos/kokkos_backend.hpp"

#ifndef MYLOS_PLUGIN_SYMBOL
#define MYLOS_PLUGIN_SYMBOL mylos_plugin
#endif
#define MYLOS_STRING_OF(x) #x
#define MYLOS_STRING(x) MYLOS_STRING_OF(x)

namespace mylos {

namespace {

const char* unusable() {
  return nullptr;
}

/// Gives each worker thread a core of this process where there are as many of both, unless OpenMP's variables
/// bind them or say not to. The calling thread keeps all cores, so that threads which it starts later may run
/// anywhere.
void pin_workers(int num_threads) {
#if defined(KOKKOS_ENABLE_OPENMP)
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof own, &own);
  const bool is_decided =
      omp_get_proc_bind() != omp_proc_bind_false || std::getenv("OMP_PROC_BIND") != nullptr;
  if (num_threads == 1 || CPU_COUNT(&own) != num_threads || is_decided) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &own)) cores.push_back(core);
  }
#pragma omp parallel num_threads(num_threads)
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    if (thread > 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cores[thread], &one);
      sched_setaffinity(0, sizeof one, &one);
    }
  }
#endif
}

ComputeBackend* create(const ComputeArgs& args) {
  if (Kokkos::is_finalized()) fail(ExitCode::internal, "Kokkos can be initialised once in a process");
  Kokkos::initialize(
      Kokkos::InitializationSettings().set_num_threads(args.num_threads).set_disable_warnings(true));
  pin_workers(args.num_threads);
  return std::make_unique<KokkosBackend>().release();
}

void destroy(ComputeBackend* backend) {
  std::unique_ptr<ComputeBackend>(backend).reset();
  Kokkos::finalize();
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "kokkos",
    .kokkos_version = MYLOS_STRING(KOKKOS_VERSION_MAJOR) "." MYLOS_STRING(
        KOKKOS_VERSION_MINOR) "." MYLOS_STRING(KOKKOS_VERSION_PATCH),
    .summary = "every operation in portable Kokkos; the root that other compute backends fall through to",
    .preference = 10,
    .unusable = unusable,
    .create_compute = create,
    .destroy_compute = destroy,
};

}  // namespace mylos
