// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/choose_algorithms.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "core/host_reduction.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"

namespace mylos {

namespace {

constexpr std::array<std::int64_t, 4> measured_bytes = {256, 16 << 10, 256 << 10, 4 << 20};
constexpr std::int64_t smallest_payload = 64;
constexpr std::int64_t largest_payload = 256 << 20;
constexpr std::int64_t nanoseconds_per_point = 15'000'000;
constexpr std::int64_t nanoseconds_in_all = 150'000'000;  // from then on every point is one run
constexpr std::int64_t fewest_repetitions = 3;
constexpr std::int64_t most_repetitions = 15;
constexpr double worthwhile = 0.9;  // of the time of the algorithm in use

/// Nanoseconds by bytes: straight lines between the measured sizes, the last one going on.
class CostCurve {
 public:
  void add(std::int64_t bytes, double nanoseconds) {
    // Measured times may fall where noise is larger than the slope.
    if (!points_.empty()) nanoseconds = std::max(nanoseconds, points_.back().nanoseconds);
    points_.push_back({static_cast<double>(bytes), nanoseconds});
  }
  double operator()(std::int64_t bytes) const {
    const auto n = static_cast<double>(bytes);
    if (n <= points_[0].bytes) return points_[0].nanoseconds;
    std::size_t i = 1;
    while (i + 1 < points_.size() && n > points_[i].bytes) ++i;
    const Point& low = points_[i - 1];
    const Point& high = points_[i];
    return low.nanoseconds +
           (n - low.bytes) * (high.nanoseconds - low.nanoseconds) / (high.bytes - low.bytes);
  }

 private:
  struct Point {
    double bytes;
    double nanoseconds;
  };
  std::vector<Point> points_;
};

using Clock = std::chrono::steady_clock;

std::int64_t nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

std::int64_t nanoseconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return nanoseconds_since(begin);
}

double median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

/// Times what all ranks do together, from a barrier on; rank 0's time counts.
class Stopwatch {
 public:
  explicit Stopwatch(Communicator& world)
      : world_(world), from_root_(world, AlgorithmChoice(Algorithm::tree), "measurement", counter_) {}

  /// The median of a few repetitions; the first run where a repetition takes long or there is no time left.
  double nanoseconds(const std::function<void()>& work) {
    std::vector<std::int64_t> times = {time(work)};
    const std::int64_t left = std::min(nanoseconds_per_point, nanoseconds_in_all - nanoseconds_since(begin_));
    std::int64_t repetitions = left / std::max<std::int64_t>(times[0], 1);
    broadcast(&repetitions, sizeof repetitions);
    if (repetitions < fewest_repetitions) return median(times);
    times.resize(static_cast<std::size_t>(std::min(repetitions, most_repetitions)));
    for (std::int64_t& each : times) each = time(work);
    return median(times);
  }

  /// Rank 0's text.
  std::string broadcast(std::string text) {
    std::size_t size = text.size();
    broadcast(&size, sizeof size);
    text.resize(size);
    broadcast(text.data(), size);
    return text;
  }

 private:
  std::int64_t time(const std::function<void()>& work) {
    world_.barrier();
    return nanoseconds_of(work);
  }
  void broadcast(void* data, std::size_t bytes) {
    from_root_.broadcast({}, TensorRef(data, DType::uint8, {static_cast<std::int64_t>(bytes)}), 0)
        .host_wait();
  }

  Communicator& world_;
  TrafficCounter counter_;
  AlgorithmCommunicator from_root_;
  Clock::time_point begin_ = Clock::now();
};

/// What was measured; `native` is empty where there is none.
struct Measurements {
  CostCurve message;
  CostCurve reduction;
  std::optional<CostCurve> native;
};

bool has_native_all_reduce(Communicator& world) {
  float value = 0.0F;
  try {
    world.all_reduce({}, TensorRef(&value, DType::fp32, {1}), ReduceOp::sum).host_wait();
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    return false;
  }
  return true;
}

Measurements measure(Communicator& world, Stopwatch& stopwatch) {
  std::vector<float> out(static_cast<std::size_t>(measured_bytes.back()) / sizeof(float), 1.0F);
  std::vector<float> in(out.size());
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  Measurements result;
  if (has_native_all_reduce(world)) result.native.emplace();
  for (const std::int64_t bytes : measured_bytes) {
    const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(float));
    const TensorRef sent(out.data(), DType::fp32, {count});
    const TensorRef received(in.data(), DType::fp32, {count});
    result.message.add(bytes, stopwatch.nanoseconds([&] {
      Request receiving = world.recv({}, received, previous, 0);
      Request sending = world.send({}, sent, next, 0);
      receiving.host_wait();
      sending.host_wait();
    }));
    std::array<std::int64_t, fewest_repetitions> reductions{};
    for (std::int64_t& each : reductions) {
      each = nanoseconds_of([&] {
        combine(DType::fp32, ReduceOp::sum, out.data(), in.data(), static_cast<std::size_t>(count));
      });
    }
    result.reduction.add(bytes, median({reductions.begin(), reductions.end()}));
    if (!result.native) continue;
    result.native->add(
        bytes, stopwatch.nanoseconds([&] { world.all_reduce({}, received, ReduceOp::sum).host_wait(); }));
  }
  return result;
}

/// Nanoseconds of an all_reduce. Rank 0 does the most of all ranks in every algorithm.
double predict(const Measurements& measured, Algorithm algorithm, int size, std::int64_t payload) {
  if (algorithm == Algorithm::native) return (*measured.native)(payload);
  constexpr std::int64_t width = sizeof(float);
  const CollectiveSchedule schedule =
      make_schedule({Operation::all_reduce, size, payload / width}, algorithm, 0);
  double sum = 0.0;
  for (const CollectiveRound& round : schedule.rounds) {
    const std::int64_t sent = round.send ? round.send->range.count : 0;
    const std::int64_t received = round.receive ? round.receive->range.count : 0;
    if (round.send || round.receive) sum += measured.message(width * std::max(sent, received));
    for (const LocalStep& step : round.local) {
      if (step.kind == LocalStep::Kind::combine) sum += measured.reduction(width * step.to.count);
    }
  }
  return sum;
}

AlgorithmChoice decide(const Measurements& measured, int size) {
  std::vector<Algorithm> candidates(all_algorithms.begin(), all_algorithms.end());
  if (!measured.native) std::erase(candidates, Algorithm::native);
  std::vector<AlgorithmChoice::Range> ranges;
  for (std::int64_t low = smallest_payload; low <= largest_payload; low *= 2) {
    const auto cost = [&](Algorithm algorithm) { return predict(measured, algorithm, size, low + low / 2); };
    const Algorithm best = std::ranges::min(candidates, {}, cost);
    const Algorithm in_use = ranges.empty() ? candidates[0] : ranges.back().algorithm;
    const Algorithm taken = cost(best) < worthwhile * cost(in_use) ? best : in_use;
    const auto below = static_cast<std::uint64_t>(2 * low);
    if (ranges.empty() || taken != in_use) {
      ranges.push_back({taken, below});
    } else {
      ranges.back().below = below;
    }
  }
  ranges.back().below = AlgorithmChoice::everything;
  return AlgorithmChoice(std::move(ranges));
}

}  // namespace

std::string choose_algorithms(Communicator& world) {
  if (world.size() == 1) return std::string(name_of(Algorithm::native));
  Stopwatch stopwatch(world);
  const Measurements measured = measure(world, stopwatch);
  std::string choice;
  if (world.rank() == 0) choice = decide(measured, world.size()).text();
  return stopwatch.broadcast(std::move(choice));
}

}  // namespace mylos
