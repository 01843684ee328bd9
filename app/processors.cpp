// SPDX-License-Identifier: BSD-3-Clause
#include "app/processors.hpp"

#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/core.h>
#include <hwloc.h>

#include "core/base/error.hpp"
#include "core/base/release.hpp"

namespace mylos {

namespace {

using Topology = std::unique_ptr<hwloc_topology, Release<hwloc_topology_destroy>>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, Release<hwloc_bitmap_free>>;

/// The topology of this machine, restricted to its processors: a full topology takes a long time to load.
Topology load_topology() {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) fail(ExitCode::internal, "hwloc: {}", std::strerror(errno));
  Topology topology(made);
  if (hwloc_topology_set_all_types_filter(made, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
      hwloc_topology_load(made) != 0) {
    fail(ExitCode::internal, "hwloc cannot read this machine's processors: {}", std::strerror(errno));
  }
  return topology;
}

Bitmap empty_bitmap() {
  Bitmap bitmap(hwloc_bitmap_alloc());
  if (!bitmap) fail(ExitCode::internal, "hwloc has no memory");
  return bitmap;
}

}  // namespace

Processors own_processors() {
  const Topology topology = load_topology();
  const Bitmap bitmap = empty_bitmap();
  if (hwloc_get_cpubind(topology.get(), bitmap.get(), HWLOC_CPUBIND_THREAD) != 0) {
    fail(ExitCode::internal, "cannot tell the processors that this process may use: {}",
         std::strerror(errno));
  }
  Processors processors;
  for (int next = hwloc_bitmap_first(bitmap.get()); next >= 0; next = hwloc_bitmap_next(bitmap.get(), next)) {
    processors.push_back(next);
  }
  return processors;
}

int bind_thread(const Processors& processors) {
  const Topology topology = load_topology();
  const Bitmap bitmap = empty_bitmap();
  for (const int processor : processors) {
    if (hwloc_bitmap_set(bitmap.get(), static_cast<unsigned>(processor)) != 0) return ENOMEM;
  }
  return hwloc_set_cpubind(topology.get(), bitmap.get(), HWLOC_CPUBIND_THREAD) == 0 ? 0 : errno;
}

Processors even_share(const Processors& processors, int index, int count) {
  require(index >= 0 && index < count, "a part that there is");
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

std::vector<std::string> gather_texts(MPI_Comm ranks, std::string text) {
  int size = 1;
  MPI_Comm_size(ranks, &size);
  auto length = static_cast<int>(text.size());
  MPI_Allreduce(MPI_IN_PLACE, &length, 1, MPI_INT, MPI_MAX, ranks);
  const auto width = static_cast<std::size_t>(length) + 1;  // with the terminating zero
  text.resize(width);
  std::vector<char> all(width * static_cast<std::size_t>(size));
  MPI_Allgather(text.data(), length + 1, MPI_BYTE, all.data(), length + 1, MPI_BYTE, ranks);
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < all.size(); begin += width) texts.emplace_back(all.data() + begin);
  return texts;
}

}  // namespace mylos
