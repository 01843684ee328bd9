// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/environment.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <regex.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/host.hpp"
#include "core/base/join.hpp"
#include "core/base/release.hpp"

namespace mylos {

namespace {

constexpr std::int64_t most_threads = 512;  // of Kokkos 5's OpenMP; as for [backend] threads

/// The values that a library accepts for a variable.
struct Variable {
  const char* name;
  const char* pattern;  ///< an extended regular expression for the whole value; case does not matter
  const char* values;   ///< in words
};

namespace forms {

constexpr const char* truth = "true|false";
constexpr const char* truth_words = "true or false";
constexpr const char* stack = "[0-9]{1,9} *[bkmg]?";
constexpr const char* stack_words = "a size such as 4096 (KiB) or 16M";
constexpr const char* whole = "[0-9]{1,9}";
constexpr const char* whole_words = "a whole number";
constexpr const char* positive = "0*[1-9][0-9]{0,8}";
constexpr const char* positive_words = "a positive whole number";
constexpr const char* kokkos_truth = "yes|no|true|false|1|0";
constexpr const char* isa = "(default|all|sse41|avx[0-9a-z_]*)";
constexpr const char* isa_words = "an instruction set of oneDNN, such as AVX2 or AVX512_CORE";

}  // namespace forms

constexpr Variable checked_variables[] = {
    {"OMP_NUM_THREADS", "0*[1-9][0-9]{0,8}( *, *0*[1-9][0-9]{0,8})*", "a number of threads, at least 1"},
    {"OMP_THREAD_LIMIT", forms::positive, forms::positive_words},
    {"OMP_DYNAMIC", forms::truth, forms::truth_words},
    {"OMP_NESTED", forms::truth, forms::truth_words},
    {"OMP_NUM_TEAMS", forms::positive, forms::positive_words},
    {"OMP_ALLOCATOR", "omp_[a-z_]+(:[a-z_]+=[a-z0-9_]+(,[a-z_]+=[a-z0-9_]+)*)?",
     "a memory allocator such as omp_default_mem_alloc"},
    {"OMP_CANCELLATION", forms::truth, forms::truth_words},
    {"OMP_MAX_ACTIVE_LEVELS", forms::whole, forms::whole_words},
    {"OMP_PROC_BIND", "true|false|(master|primary|close|spread)( *, *(master|primary|close|spread))*",
     "true, false, primary, close or spread"},
    {"OMP_PLACES", "(threads|cores|sockets|ll_caches|numa_domains)( *\\([0-9]+\\))?|[!{][-{}!:, 0-9]*",
     "threads, cores, sockets or a list such as {0:4}"},
    {"OMP_STACKSIZE", forms::stack, forms::stack_words},
    {"GOMP_STACKSIZE", forms::stack, forms::stack_words},
    {"OMP_WAIT_POLICY", "active|passive", "active or passive"},
    {"OMP_SCHEDULE", "((non)?monotonic:)?(static|dynamic|guided|auto)( *, *[0-9]+)?",
     "static, dynamic, guided or auto"},
    {"GOMP_CPU_AFFINITY", "[0-9][-:, 0-9]*", "a list of processors such as 0-3"},
    {"GOMP_SPINCOUNT", "[0-9]+ *[kmgt]?|infinite|infinity", "a count or INFINITY"},
    {"KOKKOS_NUM_THREADS", forms::positive, forms::positive_words},
    {"KOKKOS_DEVICE_ID", forms::whole, forms::whole_words},
    {"KOKKOS_VISIBLE_DEVICES", "[0-9]+( *, *[0-9]+)*", "a list of devices such as 0,1"},
    {"KOKKOS_MAP_DEVICE_ID_BY", "mpi_rank|random", "mpi_rank or random"},
    {"KOKKOS_DISABLE_WARNINGS", forms::kokkos_truth, forms::truth_words},
    {"KOKKOS_PRINT_CONFIGURATION", forms::kokkos_truth, forms::truth_words},
    {"KOKKOS_TUNE_INTERNALS", forms::kokkos_truth, forms::truth_words},
    {"HDF5_USE_FILE_LOCKING", "true|false|1|0|best_effort", "TRUE, FALSE or BEST_EFFORT"},
    {"HDF5_DISABLE_VERSION_CHECK", forms::whole, forms::whole_words},
    {"ONEDNN_MAX_CPU_ISA", forms::isa, forms::isa_words},
    {"DNNL_MAX_CPU_ISA", forms::isa, forms::isa_words},
    {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", forms::whole, forms::whole_words},
    {"DNNL_PRIMITIVE_CACHE_CAPACITY", forms::whole, forms::whole_words},
    {"ONEDNN_CPU_ISA_HINTS", "no_hints|prefer_ymm", "NO_HINTS or PREFER_YMM"},
    {"DNNL_CPU_ISA_HINTS", "no_hints|prefer_ymm", "NO_HINTS or PREFER_YMM"},
};

using Regex = std::unique_ptr<regex_t, Release<regfree>>;

bool matches(const std::string& value, const std::string& pattern) {
  regex_t compiled{};
  require(regcomp(&compiled, ("^ *(" + pattern + ") *$").c_str(), REG_EXTENDED | REG_ICASE | REG_NOSUB) == 0,
          "the pattern of a variable is valid");
  const Regex owned(&compiled);
  return regexec(&compiled, value.c_str(), 0, nullptr, 0) == 0;
}

/// The value of a variable; empty if it is not set.
std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Whether MPI will use UCX with files in /dev/shm: the user has not chosen other transports, or has excluded
/// some but not shared memory (by the names posix, sm, shm or mm).
bool uses_ucx_files() {
  const std::string transports = value_of("UCX_TLS");
  return dlopen("libucp.so.0", RTLD_NOLOAD | RTLD_LAZY) != nullptr && value_of("UCX_POSIX_DIR").empty() &&
         (transports.empty() || transports == "all" ||
          (transports.front() == '^' && !matches(transports, ".*(posix|sm|shm|mm).*")));
}

/// The number of ranks on this node, if the launcher says it; otherwise 1.
std::int64_t ranks_here() {
  for (const char* name : {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE"}) {
    if (const auto ranks = number_in_environment(name)) return std::max<std::int64_t>(1, *ranks);
  }
  return 1;
}

std::string limit_problem(ExitCode& code) {
  // The watchdog's three, MPI's, three for files and samples, and the progress thread.
  constexpr int own_threads = 8;
  const int started = startable_threads(own_threads);
  if (started < own_threads) {
    return fmt::format(
        "{}: a rank needs at least {} besides those that compute, but only {} could be started",
        thread_problem(), own_threads, started);
  }
  // MPICH 4.0 with UCX 1.13 has 18 open files on one rank, mylos adds a few.
  constexpr rlim_t own_files = 32;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < own_files) {
    files.rlim_cur = std::min(own_files, files.rlim_max);
    setrlimit(RLIMIT_NOFILE, &files);
    code = ExitCode::io;
    if (files.rlim_cur < own_files)
      return fmt::format("a rank needs at least {} open files, but ulimit -n is {}", own_files,
                         files.rlim_cur);
  }
  // UCX 1.13 takes 4212 KiB per rank for its queues, whatever the number of ranks.
  constexpr std::uint64_t own_shared = 4212U << 10U;
  if (!uses_ucx_files()) return "";
  rlimit size{};
  if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur < own_shared) {
    code = ExitCode::io;
    return fmt::format("MPI needs files of {} KiB in /dev/shm, but ulimit -f is {} KiB: File too large",
                       own_shared >> 10U, size.rlim_cur >> 10U);
  }
  const std::int64_t ranks = ranks_here();
  struct statfs shared {};
  if (statfs("/dev/shm", &shared) != 0 || shared.f_blocks == 0) return "";
  const std::string probe = fmt::format("/dev/shm/mylos-{}", getpid());
  if (const int file = open(probe.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600); file >= 0) {
    close(file);
    unlink(probe.c_str());
  } else {
    return fmt::format("MPI needs files in /dev/shm, but none can be created there: {}",
                       std::strerror(errno));
  }
  const auto block = static_cast<std::uint64_t>(shared.f_bsize);
  const std::uint64_t total = static_cast<std::uint64_t>(shared.f_blocks) * block;
  const std::uint64_t free = static_cast<std::uint64_t>(shared.f_bavail) * block;
  const std::uint64_t needed = own_shared * static_cast<std::uint64_t>(ranks);
  // Of the ranks of this node, any number may have taken their share already.
  if (total >= needed && free >= own_shared) return "";
  code = ExitCode::internal;
  return fmt::format(
      "/dev/shm has {:.1f} MB, {:.1f} of them free, but MPI needs {:.1f} for {} rank{} on this node: "
      "mount it larger (docker run --shm-size=1g), or set UCX_TLS=^posix",
      1e-6 * static_cast<double>(total), 1e-6 * static_cast<double>(free), 1e-6 * static_cast<double>(needed),
      ranks, ranks == 1 ? "" : "s");
}

}  // namespace

void check_variables() {
  for (const Variable& variable : checked_variables) {
    const std::string value = value_of(variable.name);
    if (value.empty() || matches(value, variable.pattern)) continue;
    fail(ExitCode::usage, "the environment variable {}=\"{}\" must be {}; correct it or unset it",
         variable.name, value, variable.values);
  }
  const std::int64_t threads = std::atoll(value_of("OMP_NUM_THREADS").c_str());
  if (threads > most_threads)
    fail(ExitCode::usage, "the environment variable OMP_NUM_THREADS={} must be at most {}", threads,
         most_threads);
}

void check_limits() {
  ExitCode code = ExitCode::internal;
  const std::string problem = limit_problem(code);
  if (problem.empty()) return;
  fail(code, "{}", problem);
}

std::int64_t openmp_thread_limit() {
  const std::int64_t limit = std::atoll(value_of("OMP_THREAD_LIMIT").c_str());
  return limit > 0 ? limit : INT64_MAX;
}

ThreadLimit choose_threads(std::int64_t wanted, std::span<const ThreadLimit> limits) {
  const std::int64_t most = openmp_thread_limit();
  const auto explicitly = [&](std::int64_t threads, const char* name) {
    if (threads > most)
      fail(ExitCode::usage,
           "{} = {}, but the environment variable OMP_THREAD_LIMIT={} allows fewer threads: "
           "raise or unset it, or ask for fewer",
           name, threads, most);
    return ThreadLimit{threads, ""};
  };
  if (wanted > 0) return explicitly(wanted, "[backend] threads");
  if (const std::int64_t threads = std::atoll(value_of("OMP_NUM_THREADS").c_str()); threads > 0)
    return explicitly(threads, "OMP_NUM_THREADS");
  std::vector<ThreadLimit> all(limits.begin(), limits.end());
  all.push_back({most_threads, fmt::format("at most {} with Kokkos", most_threads)});
  if (most != INT64_MAX) all.push_back({most, fmt::format("OMP_THREAD_LIMIT={}", most)});
  return smallest(all);
}

std::string variables_with(std::span<const std::string_view> prefixes) {
  std::vector<std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("MPIR_CVAR_CH3_INTERFACE_HOSTNAME=")) continue;  // MPICH's launcher sets it
    if (std::ranges::any_of(prefixes, [&](std::string_view prefix) { return text.starts_with(prefix); }))
      found.emplace_back(text);
  }
  return join(found, ", ");
}

}  // namespace mylos
