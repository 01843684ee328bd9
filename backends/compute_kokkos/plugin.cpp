// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.hpp"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>

#include <Kokkos_Core.hpp>
#if defined(KOKKOS_ENABLE_OPENMP)
#include <omp.h>
#endif

#include <fmt/core.h>

#include "backends/compute_kokkos/kokkos_backend.hpp"
#include "core/base/instruction_set.hpp"
#include "core/base/processors.hpp"
#include "core/base/thread_limits.hpp"

#define MYLOS_STRING_OF(x) #x
#define MYLOS_STRING(x) MYLOS_STRING_OF(x)

namespace mylos::compute_kokkos {

namespace {

#if defined(KOKKOS_ENABLE_OPENMP)
/// The stack that the user wants for OpenMP's threads, in bytes; 0 for the default.
std::size_t stack_bytes() {
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    char* unit = nullptr;
    const auto number = static_cast<std::size_t>(std::strtoull(text, &unit, 10));
    while (*unit == ' ') ++unit;
    const std::string_view units = "bkmg";
    const std::size_t place = *unit == '\0' ? 1 : units.find(static_cast<char>(std::tolower(*unit)));
    if (place == std::string_view::npos) continue;
    // libgomp ignores a stack that is too small.
    const std::size_t bytes = number << (10 * place);
    if (bytes >= static_cast<std::size_t>(sysconf(_SC_THREAD_STACK_MIN))) return bytes;
  }
  return 0;
}
#endif

/// Binds each worker thread to a processor (a hardware thread) if this process may use exactly `num_threads`
/// processors, unless OpenMP's variables bind the threads or forbid binding. The calling thread keeps all
/// processors, so that threads that it starts later may run on any of these.
void pin_workers(int num_threads) {
#if defined(KOKKOS_ENABLE_OPENMP)
  const bool is_decided =
      omp_get_proc_bind() != omp_proc_bind_false || std::getenv("OMP_PROC_BIND") != nullptr;
  if (num_threads == 1 || is_decided) return;
  const Processors own = own_processors();
  if (std::ssize(own) != num_threads) return;
  int unbound = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : unbound)
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    if (thread > 0 && bind_thread({own[thread]}) != 0) ++unbound;
  }
  if (unbound > 0) fmt::print(stderr, "mylos: {} worker threads could not be bound to processors\n", unbound);
#endif
}

/// Throws if a parallel region would not have `num_threads` threads: kernels divide their work among as many,
/// and would wait for, or leave out the share of, a thread that does not exist. OpenMP ends the process if it
/// cannot start a thread, so this is tried before.
void check_team(int num_threads) {
#if defined(KOKKOS_ENABLE_OPENMP)
  omp_set_dynamic(0);
  if (omp_get_max_active_levels() < 1) omp_set_max_active_levels(1);
  const int started = 1 + startable_threads(num_threads - 1, stack_bytes());
  if (started < num_threads) {
    fail(ExitCode::internal, "{}{}: [backend] threads = {}, but only {} can run", thread_problem(),
         stack_bytes() > 0 ? ", OMP_STACKSIZE" : "", num_threads, started);
  }
  int team = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : team)
  ++team;
  if (team != num_threads) {
    fail(
        ExitCode::usage,
        "OpenMP gives {} of {} threads: ask for fewer by [backend] threads or OMP_NUM_THREADS, or change the "
        "environment variable OMP_THREAD_LIMIT (now {})",
        team, num_threads, omp_get_thread_limit());
  }
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
  check_team(args.num_threads);
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
