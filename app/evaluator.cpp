// SPDX-License-Identifier: BSD-3-Clause
#include "app/evaluator.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "core/memory/device_buffer.hpp"

namespace mylos {

std::optional<EvalResult> evaluate(ModelExecutor& executor, ComputeBackend& backend,
                                   const TokenDataset& dataset, std::int64_t max_windows,
                                   const ProcessGrid& grid, const std::function<bool()>& is_interrupted) {
  const int readers = grid.coordinates().extent(sample_axes);
  const int reader = grid.coordinates().index(sample_axes);
  const BatchShape& shape = executor.shape();
  const std::int64_t available = dataset.num_sequential();
  const std::int64_t windows = max_windows > 0 ? std::min(max_windows, available) : available;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.batch * (shape.seq + 1)));

  double loss = 0.0;
  std::int64_t correct = 0;
  std::int64_t count = 0;
  for (std::int64_t base = 0; base < windows; base += shape.batch * readers) {
    if (is_interrupted()) return std::nullopt;
    const std::int64_t first = base + shape.batch * reader;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const std::span<std::int32_t> row(tokens.data() + b * (shape.seq + 1),
                                        static_cast<std::size_t>(shape.seq + 1));
      if (first + b < windows) {
        dataset.sequential(first + b, row.data());
        count += shape.seq;
      } else {
        std::ranges::fill(row, -1);
      }
    }
    executor.load_evaluation(tokens);
    executor.evaluate();
    for (const float row_loss : executor.evaluation_losses()) loss += row_loss;
    for (const std::int32_t hit : executor.evaluation_correct()) correct += hit;
  }

  // The sums are reduced as integers, so the reduction is exact and independent of the order of the ranks. A
  // loss that is not finite has no integer; the ranks with such a loss are counted instead.
  constexpr double fixed_point = 0x1.0p24;
  const bool finite = std::isfinite(loss);
  std::array<std::int64_t, 4> sums = {finite ? std::llround(loss * fixed_point) : 0, correct, count,
                                      finite ? 0 : 1};
  Communicator& group = grid.group(loss_axes);
  if (group.size() > 1) {
    MemoryLedger ledger;  // for a few bytes that live for one call
    const DeviceBuffer buffer(backend, ledger, MemoryCategory::communication, sizeof sums,
                              "mylos::evaluation::sums");
    backend.copy_to_device(sums.data(), buffer.data(), sizeof sums);
    group.all_reduce({buffer.data(), DType::int64, {static_cast<std::int64_t>(sums.size())}}, ReduceOp::sum)
        .wait();
    backend.copy_to_host(buffer.data(), sums.data(), sizeof sums);
    backend.synchronize();
  }
  const auto total = static_cast<double>(std::max<std::int64_t>(sums[2], 1));
  const double mean = sums[3] == 0 ? static_cast<double>(sums[0]) / fixed_point / total
                                   : std::numeric_limits<double>::quiet_NaN();
  return EvalResult{.loss = mean, .accuracy = static_cast<double>(sums[1]) / total, .tokens = sums[2]};
}

}  // namespace mylos
