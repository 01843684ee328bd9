// SPDX-License-Identifier: BSD-3-Clause
#include "app/mpi_runtime.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <sched.h>
#include <vector>

#include <mpi.h>

#include "app/core_share.hpp"
#include "core/base/error.hpp"

namespace mylos {

MpiRuntime::MpiRuntime() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    fail(ExitCode::usage, "this MPI library gives thread level {}; mylos needs MPI_THREAD_MULTIPLE",
         provided);
  }
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
  int node_size = 1;
  MPI_Comm_size(node, &node_size);
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof own, &own);
  std::vector<cpu_set_t> masks(static_cast<std::size_t>(node_size));
  MPI_Allgather(&own, sizeof own, MPI_BYTE, masks.data(), sizeof own, MPI_BYTE, node);
  int place = 0;
  MPI_Comm_rank(node, &place);
  MPI_Comm_free(&node);
  const auto shares_cores = [&](const cpu_set_t& mask) { return CPU_EQUAL(&mask, &own) != 0; };
  const auto sharing = static_cast<int>(std::ranges::count_if(masks, shares_cores));
  ranks_sharing_cores_ = sharing;
  // Whoever binds threads by OpenMP's variables has decided.
  const bool is_decided =
      std::ranges::any_of(std::array{"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"},
                          [](const char* variable) { return std::getenv(variable) != nullptr; });
  if (sharing == 1 || CPU_COUNT(&own) < sharing || is_decided) return;
  const auto index = static_cast<int>(std::count_if(masks.begin(), masks.begin() + place, shares_cores));
  const cpu_set_t share = even_share(own, index, sharing);
  if (sched_setaffinity(0, sizeof share, &share) == 0) ranks_sharing_cores_ = 1;
}

MpiRuntime::~MpiRuntime() {
  MPI_Finalize();
}

std::string MpiRuntime::broadcast(std::string text) const {
  std::int64_t size = static_cast<std::int64_t>(text.size());
  MPI_Bcast(&size, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  text.resize(static_cast<std::size_t>(size));
  MPI_Bcast(text.data(), static_cast<int>(size), MPI_CHAR, 0, MPI_COMM_WORLD);
  return text;
}

}  // namespace mylos
