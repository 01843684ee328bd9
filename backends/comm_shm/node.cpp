// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/node.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/processors.hpp"
#include "core/base/thread_limits.hpp"

namespace mylos::comm_shm {

namespace {

/// Identifies the running kernel, by its random boot id, and the PID namespace. Ranks share memory only if
/// both agree.
std::string own_kernel() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> processes{};
  const ssize_t length = readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1);
  if (boot.empty() || length <= 0) fail(ExitCode::internal, "comm_shm needs /proc");
  return boot + processes.data();
}

/// Every rank's text. Collective.
std::vector<std::string> gather_texts(Communicator& ranks, std::string own) {
  auto length = static_cast<std::int64_t>(own.size()) + 1;  // with the terminating zero
  ranks.all_reduce(TensorRef(&length, DType::int64, {1}), ReduceOp::max).host_wait();
  const auto width = static_cast<std::size_t>(length);
  own.resize(width);
  std::string all(width * static_cast<std::size_t>(ranks.size()), '\0');
  ranks
      .all_gather(TensorRef(own.data(), DType::uint8, {length}),
                  TensorRef(all.data(), DType::uint8, {length * ranks.size()}))
      .host_wait();
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < all.size(); begin += width) texts.emplace_back(all.data() + begin);
  return texts;
}

}  // namespace

Node find_node(Communicator& bootstrap, int ranks_per_node) {
  const std::vector<std::string> kernels = gather_texts(bootstrap, own_kernel());
  const std::vector<std::string> cores = gather_texts(bootstrap, text_of(own_processors()));
  Node node;
  std::vector<std::string> cores_of_node;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (kernels[r] != kernels[static_cast<std::size_t>(bootstrap.rank())]) continue;
    node.ranks.push_back(rank);
    cores_of_node.push_back(cores[r]);
  }
  const auto ranks_here = static_cast<int>(node.ranks.size());
  const std::optional<CpuQuota> quota = cpu_quota();
  node.core_for_each = count_processors(cores_of_node) >= ranks_here && (!quota || quota->cpus >= ranks_here);
  if (ranks_per_node == 0) return node;
  const auto own_place = std::ranges::find(node.ranks, bootstrap.rank()) - node.ranks.begin();
  const auto first = node.ranks.begin() + own_place / ranks_per_node * ranks_per_node;
  node.ranks.assign(first, first + std::min<std::ptrdiff_t>(ranks_per_node, node.ranks.end() - first));
  return node;
}

std::string sharing_problem(Communicator& bootstrap, SharedMemory& memory) {
  constexpr std::size_t bytes = 1;
  // The problem of this rank. The rank continues all the same, because the others wait in the gathers below.
  std::string problem;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      problem = error.what();
    }
  };
  std::string kernel;
  SharedMemory::Offer offer{};
  attempt([&] {
    offer = memory.offer(bytes);
    kernel = own_kernel();
  });
  const std::vector<std::string> kernels = gather_texts(bootstrap, kernel);
  const std::vector<std::string> keys = gather_texts(bootstrap, std::to_string(offer.key));
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    if (kernels[rank] == kernel && problem.empty())
      attempt([&] { memory.map(std::stoll(keys[rank]), bytes); });
  }
  const std::vector<std::string> problems = gather_texts(bootstrap, problem);
  const auto first = std::ranges::find_if(problems, [](const std::string& text) { return !text.empty(); });
  return first == problems.end() ? "" : fmt::format("rank {}: {}", first - problems.begin(), *first);
}

}  // namespace mylos::comm_shm
