// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/gather_values.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace mylos {

ValueGatherer::ValueGatherer(ComputeBackend& backend, Communicator& group, std::size_t count)
    : backend_(backend), group_(group), count_(count) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (ranks > 1)
    buffer_.emplace(backend, ledger_, MemoryCategory::communication,
                    count * sizeof(std::int64_t) * (ranks + 1), "mylos::gather_values");
}

std::vector<std::int64_t> ValueGatherer::gather(const std::vector<std::int64_t>& own) {
  require(own.size() == count_, "every rank has the same number of values");
  if (!buffer_) return own;
  const auto ranks = static_cast<std::size_t>(group_.size());
  std::vector<std::int64_t> all(own.size() * ranks);
  const std::size_t own_bytes = own.size() * sizeof(std::int64_t);
  auto* device = static_cast<std::int64_t*>(buffer_->data());
  const auto count = std::ssize(own);
  backend_.copy_to_device(own.data(), device, own_bytes);
  group_
      .all_gather({device, DType::int64, {count}},
                  {device + count, DType::int64, {count * static_cast<std::int64_t>(ranks)}})
      .wait();
  backend_.copy_to_host(device + count, all.data(), own_bytes * ranks);
  backend_.synchronize();
  return all;
}

std::vector<std::int64_t> gather_values(ComputeBackend& backend, Communicator& group,
                                        const std::vector<std::int64_t>& own) {
  return ValueGatherer(backend, group, own.size()).gather(own);
}

std::vector<std::int64_t> values_of_last_chunk(ComputeBackend& backend, const ProcessGrid& grid,
                                               const std::vector<std::int64_t>& own) {
  if (grid.coordinates().extent(Axis::pipeline) == 1) return own;
  const Coordinates& at = grid.coordinates();
  const AxisSet stages = at.is_uneven() ? data_axes.with({Axis::pipeline}) : AxisSet{Axis::pipeline};
  const std::vector<std::int64_t> all = gather_values(backend, grid.group(stages), own);
  const std::int64_t last = at.is_uneven() ? at.first_replica(at.last_stage()) : at.last_stage();
  const auto first = all.begin() + last * std::ssize(own);
  return {first, first + std::ssize(own)};
}

std::vector<std::int64_t> values_of_readers(ComputeBackend& backend, const ProcessGrid& grid,
                                            const std::vector<std::int64_t>& own) {
  const std::vector<std::int64_t> last = values_of_last_chunk(backend, grid, own);
  return grid.coordinates().is_uneven() ? last : gather_values(backend, grid.group(loss_axes), last);
}

int passes_per_agreement(const Coordinates& coordinates) {
  const int stages = coordinates.extent(Axis::pipeline);
  return stages == 1 ? 1 : 4 * stages;
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
