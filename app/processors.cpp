// SPDX-License-Identifier: BSD-3-Clause
#include "app/processors.hpp"

#include <cerrno>

#include "core/base/affinity.hpp"

namespace mylos {

Processors own_processors() {
  const ProcessorSet set = own_set(load_topology());
  Processors processors;
  for (int next = hwloc_bitmap_first(set.get()); next >= 0; next = hwloc_bitmap_next(set.get(), next)) {
    processors.push_back(next);
  }
  return processors;
}

int bind_thread(const Processors& processors) {
  const Topology topology = load_topology();
  const ProcessorSet set = empty_set();
  for (const int processor : processors) {
    if (hwloc_bitmap_set(set.get(), static_cast<unsigned>(processor)) != 0) return ENOMEM;
  }
  return hwloc_set_cpubind(topology.get(), set.get(), HWLOC_CPUBIND_THREAD) == 0 ? 0 : errno;
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
