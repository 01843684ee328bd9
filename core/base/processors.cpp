// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/processors.hpp"

#include <cerrno>
#include <cstring>
#include <memory>

#include <hwloc.h>

#include "core/base/error.hpp"
#include "core/base/release.hpp"

namespace mylos {

namespace {

using Topology = std::unique_ptr<hwloc_topology, Release<hwloc_topology_destroy>>;
using ProcessorSet = std::unique_ptr<hwloc_bitmap_s, Release<hwloc_bitmap_free>>;

/// Loads the topology of this machine, restricted to its processors: a full topology takes long to load.
Topology load_topology() {
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

/// The topology, which does not change while a process runs: only bindings do.
hwloc_topology_t topology() {
  static const Topology loaded = load_topology();
  return loaded.get();
}

ProcessorSet empty_set() {
  ProcessorSet set(hwloc_bitmap_alloc());
  if (!set) fail(ExitCode::internal, "hwloc is out of memory");
  return set;
}

}  // namespace

Processors own_processors() {
  const ProcessorSet set = empty_set();
  if (hwloc_get_cpubind(topology(), set.get(), HWLOC_CPUBIND_THREAD) != 0) {
    fail(ExitCode::internal, "cannot determine the processors that this process may use: {}",
         std::strerror(errno));
  }
  Processors processors;
  for (int next = hwloc_bitmap_first(set.get()); next >= 0; next = hwloc_bitmap_next(set.get(), next)) {
    processors.push_back(next);
  }
  return processors;
}

int bind_thread(const Processors& processors) {
  const ProcessorSet set(hwloc_bitmap_alloc());
  if (!set) return ENOMEM;
  for (const int processor : processors) {
    if (hwloc_bitmap_set(set.get(), static_cast<unsigned>(processor)) != 0) return ENOMEM;
  }
  return hwloc_set_cpubind(topology(), set.get(), HWLOC_CPUBIND_THREAD) == 0 ? 0 : errno;
}

Processors even_share(const Processors& processors, int index, int count) {
  require(index >= 0 && index < count, "the share exists");
  const auto available = std::ssize(processors);
  if (available < count) return processors;
  return {processors.begin() + available * index / count,
          processors.begin() + available * (index + 1) / count};
}

std::string text_of(const Processors& processors) {
  std::string text;
  for (std::size_t first = 0, next = 0; first < processors.size(); first = next) {
    for (next = first + 1; next < processors.size() && processors[next] == processors[next - 1] + 1;) ++next;
    text += fmt::format("{}{}", text.empty() ? "" : ",", processors[first]);
    if (next - first > 1) text += fmt::format("-{}", processors[next - 1]);
  }
  return text;
}

int count_processors(std::span<const std::string> texts) {
  const ProcessorSet all = empty_set();
  const ProcessorSet one = empty_set();
  for (const std::string& text : texts) {
    if (hwloc_bitmap_list_sscanf(one.get(), text.c_str()) != 0 ||
        hwloc_bitmap_or(all.get(), all.get(), one.get()) != 0) {
      fail(ExitCode::internal, "cannot parse the list of processors {}", text);
    }
  }
  return hwloc_bitmap_weight(all.get());
}

}  // namespace mylos
