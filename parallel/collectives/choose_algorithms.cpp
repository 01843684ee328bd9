// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/choose_algorithms.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "core/base/statistics.hpp"
#include "core/communication/host_reduction.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"
#include "parallel/collectives/schedule_builder.hpp"
#include "parallel/collectives/schedule_cost.hpp"

namespace mylos {

namespace {

constexpr std::array<std::int64_t, 4> measured_bytes = {256, 16 << 10, 256 << 10, 4 << 20};
constexpr std::int64_t smallest_payload = 64;
constexpr std::int64_t largest_payload = 256 << 20;
constexpr std::int64_t nanoseconds_per_point = 10'000'000;
constexpr std::int64_t nanoseconds_in_all = 250'000'000;  // when it is used up, each further point runs once
constexpr std::int64_t fewest_repetitions = 3;
constexpr std::int64_t most_repetitions = 15;
// An algorithm replaces the current one only if its time is below this fraction of the current one's.
constexpr double worthwhile = 0.9;

/// Sets every element to its maximum over all ranks. Needs only send and recv of the communicator.
void take_maximum(Communicator& world, std::vector<std::int64_t>& values) {
  TrafficCounter counter;
  AlgorithmCommunicator tree(world, AlgorithmChoice(Algorithm::tree), "measurement", counter);
  tree.all_reduce(TensorRef(values.data(), DType::int64, {std::ssize(values)}), ReduceOp::max).host_wait();
}

/// Times work that all ranks do together, from a barrier until the last rank is done. Every rank gets the
/// same times.
class Stopwatch {
 public:
  explicit Stopwatch(Communicator& world) : world_(world) {}

  /// Returns the median of a few repetitions, or the time of the first run if too little time is left to
  /// repeat it.
  double nanoseconds(const std::function<void()>& work) {
    const double first = median_of(1, work);
    const auto left = static_cast<double>(std::min(nanoseconds_per_point, nanoseconds_in_all - spent_));
    const auto repetitions = static_cast<std::int64_t>(left / std::max(first, 1.0));
    return repetitions < fewest_repetitions ? first
                                            : median_of(std::min(repetitions, most_repetitions), work);
  }

 private:
  double median_of(std::int64_t repetitions, const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    std::vector<std::int64_t> times(static_cast<std::size_t>(repetitions));
    for (std::int64_t& each : times) {
      world_.barrier();
      const auto begin = Clock::now();
      work();
      each = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    }
    take_maximum(world_, times);
    spent_ = std::accumulate(times.begin(), times.end(), spent_);
    return median({times.begin(), times.end()});
  }

  Communicator& world_;
  std::int64_t spent_ = 0;  // nanoseconds
};

/// A call of `operation` on fp32 with a payload of about `payload` bytes.
CollectiveCall call_of(CommOperation operation, int size, std::int64_t payload) {
  const std::int64_t part = std::max<std::int64_t>(1, payload / std::int64_t{sizeof(float)} / size);
  return {operation, size, is_in_place(operation) ? part * size : part};
}

/// `call` as a call of the backend's own collective. Each buffer must have room for the payload.
CommCall native_call(const CollectiveCall& call, float* in, float* out) {
  return {.operation = call.operation,
          .input = {in, DType::fp32, {input_of(call).count}},
          .output = {out, DType::fp32, {output_of(call).count}},
          .peer = call.root};
}

bool has_native(Communicator& world) {
  float value = 0.0F;
  try {
    world.all_reduce(TensorRef(&value, DType::fp32, {1}), ReduceOp::sum).host_wait();
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    return false;
  }
  return true;
}

CollectiveCosts measure(Communicator& world) {
  Stopwatch stopwatch(world);
  const auto elements =
      std::max<std::int64_t>(measured_bytes.back() / std::int64_t{sizeof(float)}, world.size());
  std::vector<float> in(static_cast<std::size_t>(elements));
  std::vector<float> out(in.size());
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  CollectiveCosts costs;
  for (const std::int64_t bytes : measured_bytes) {
    const std::int64_t count = bytes / std::int64_t{sizeof(float)};
    costs.message.add(static_cast<double>(bytes), stopwatch.nanoseconds([&] {
      Request receiving = world.recv(TensorRef(out.data(), DType::fp32, {count}), previous, 0);
      Request sending = world.send(TensorRef(in.data(), DType::fp32, {count}), next, 0);
      receiving.host_wait();
      sending.host_wait();
    }));
    costs.local.add(static_cast<double>(bytes), stopwatch.nanoseconds([&] {
      combine(DType::fp32, ReduceOp::sum, in.data(), out.data(), static_cast<std::size_t>(count));
    }));
  }
  costs.message.rise();
  costs.local.rise();
  if (!has_native(world)) return costs;
  for (const CommOperation operation : scheduled_operations) {
    CostCurve& curve = costs.native.emplace_back();
    for (const std::int64_t bytes : measured_bytes) {
      const CollectiveCall call = call_of(operation, world.size(), bytes);
      const CommCall native = native_call(call, in.data(), out.data());
      curve.add(static_cast<double>(bytes), stopwatch.nanoseconds([&] { native.on(world).host_wait(); }));
    }
    curve.rise();
  }
  return costs;
}

struct Candidate {
  Algorithm algorithm;
  std::vector<std::int64_t> nanoseconds;  // by payload
};

/// The lower ends of the payload ranges in which the algorithms are compared; each range ends at twice its
/// lower end.
std::vector<std::int64_t> compared_payloads() {
  std::vector<std::int64_t> payloads;
  for (std::int64_t low = smallest_payload; low <= largest_payload; low *= 2) payloads.push_back(low);
  return payloads;
}

/// The algorithm for each payload: the fastest, unless it saves too little compared with the current one.
AlgorithmChoice::Ranges decide(const std::vector<Candidate>& candidates,
                               const std::vector<std::int64_t>& payloads) {
  AlgorithmChoice::Ranges ranges;
  const Candidate* in_use = &candidates[0];
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const auto cost = [&](const Candidate& candidate) {
      return static_cast<double>(candidate.nanoseconds[i]);
    };
    const Candidate& best = *std::ranges::min_element(candidates, {}, cost);
    if (cost(best) < worthwhile * cost(*in_use)) in_use = &best;
    const auto below = static_cast<std::uint64_t>(2 * payloads[i]);
    if (ranges.empty() || ranges.back().algorithm != in_use->algorithm) {
      ranges.push_back({in_use->algorithm, below});
    } else {
      ranges.back().below = below;
    }
  }
  ranges.back().below = AlgorithmChoice::everything;
  return ranges;
}

}  // namespace

AlgorithmChoice choose_algorithms(Communicator& world) {
  return world.size() == 1 ? AlgorithmChoice(Algorithm::native) : choose_algorithms(world, measure(world));
}

AlgorithmChoice choose_algorithms(Communicator& world, const CollectiveCosts& costs) {
  AlgorithmChoice choice(Algorithm::native);
  const std::vector<std::int64_t> payloads = compared_payloads();
  int turn = 0;
  for (const CommOperation operation : scheduled_operations) {
    std::vector<Candidate> candidates;
    if (!costs.native.empty()) {
      Candidate& native = candidates.emplace_back(Candidate{Algorithm::native, {}});
      const CostCurve& curve = costs.native[static_cast<std::size_t>(operation)];
      for (const std::int64_t low : payloads) {
        const std::int64_t bytes = low + low / 2;
        native.nanoseconds.push_back(std::llround(curve(static_cast<double>(bytes))));
      }
    }
    for (const Algorithm algorithm : all_algorithms) {
      if (algorithm == Algorithm::native) continue;
      // Each rank simulates its share; the entries of other ranks stay 0.
      std::vector<std::int64_t> nanoseconds(payloads.size());
      for (std::size_t i = 0; i < payloads.size(); ++i) {
        if (turn++ % world.size() != world.rank()) continue;
        const CollectiveCall call = call_of(operation, world.size(), payloads[i] + payloads[i] / 2);
        nanoseconds[i] = std::llround(time_of(
            call, algorithm, sizeof(float), [&](double bytes) { return costs.message(bytes); },
            [&](double bytes) { return costs.local(bytes); }));
      }
      take_maximum(world, nanoseconds);
      candidates.push_back({algorithm, std::move(nanoseconds)});
    }
    choice.set(operation, decide(candidates, payloads));
  }
  return choice;
}

}  // namespace mylos
