// SPDX-License-Identifier: BSD-3-Clause
// The processors that a thread may use. core does not link hwloc: a target that includes this header must.
#pragma once

#include <cerrno>
#include <cstring>
#include <memory>

#include <hwloc.h>

#include "core/base/error.hpp"
#include "core/base/release.hpp"

namespace mylos {

using Topology = std::unique_ptr<hwloc_topology, Release<hwloc_topology_destroy>>;
using ProcessorSet = std::unique_ptr<hwloc_bitmap_s, Release<hwloc_bitmap_free>>;

/// Loads the topology of this machine, restricted to its processors: a full topology takes long to load.
inline Topology load_topology() {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) fail(ExitCode::internal, "hwloc: {}", std::strerror(errno));
  Topology topology(made);
  // Variables of hwloc may describe another machine; the processors of this one count.
  if (hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM) != 0 ||
      hwloc_topology_set_all_types_filter(made, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
      hwloc_topology_load(made) != 0) {
    fail(ExitCode::internal, "hwloc cannot read this machine's processors: {}", std::strerror(errno));
  }
  return topology;
}

inline ProcessorSet empty_set() {
  ProcessorSet set(hwloc_bitmap_alloc());
  if (!set) fail(ExitCode::internal, "hwloc is out of memory");
  return set;
}

/// Returns the processors that the calling thread may use.
inline ProcessorSet own_set(const Topology& topology) {
  ProcessorSet own = empty_set();
  if (hwloc_get_cpubind(topology.get(), own.get(), HWLOC_CPUBIND_THREAD) != 0) {
    fail(ExitCode::internal, "cannot determine the processors that this process may use: {}",
         std::strerror(errno));
  }
  return own;
}

}  // namespace mylos
