// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/gather_values.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "core/memory/device_buffer.hpp"

namespace mylos {

std::vector<std::int64_t> gather_values(ComputeBackend& backend, Communicator& group,
                                        const std::vector<std::int64_t>& own) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (ranks == 1) return own;
  std::vector<std::int64_t> all(own.size() * ranks);
  MemoryLedger ledger;  // not the run's: these few bytes live for one call
  const std::size_t own_bytes = own.size() * sizeof(std::int64_t);
  const DeviceBuffer buffer(backend, ledger, MemoryCategory::communication, own_bytes * (ranks + 1),
                            "mylos::gather_values");
  auto* device = static_cast<std::int64_t*>(buffer.data());
  const auto count = std::ssize(own);
  backend.copy_to_device(own.data(), device, own_bytes);
  group
      .all_gather({device, DType::int64, {count}},
                  {device + count, DType::int64, {count * static_cast<std::int64_t>(ranks)}})
      .wait();
  backend.copy_to_host(device + count, all.data(), own_bytes * ranks);
  backend.synchronize();
  return all;
}

std::string agree_on_problem(ComputeBackend& backend, Communicator& world, std::string problem) {
  const std::vector<std::int64_t> lengths = gather_values(backend, world, {std::ssize(problem)});
  const auto lowest = std::ranges::find_if(lengths, [](std::int64_t length) { return length > 0; });
  if (lowest == lengths.end() || world.size() == 1) return problem;
  problem.resize(static_cast<std::size_t>(*lowest));
  MemoryLedger ledger;
  const DeviceBuffer buffer(backend, ledger, MemoryCategory::communication, problem.size(),
                            "mylos::replica_problem");
  backend.copy_to_device(problem.data(), buffer.data(), problem.size());
  world
      .broadcast({buffer.data(), DType::uint8, {std::ssize(problem)}},
                 static_cast<int>(lowest - lengths.begin()))
      .wait();
  backend.copy_to_host(buffer.data(), problem.data(), problem.size());
  backend.synchronize();
  return problem;
}

}  // namespace mylos
