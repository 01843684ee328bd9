// SPDX-License-Identifier: BSD-3-Clause
// What a step has waited for, by the labels of the groups, on a clock that passes only while a rank waits.
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "core/communication/forwarding_communicator.hpp"
#include "core/ops/forwarding_backend.hpp"
#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// The clock: the calls that this rank has waited for, a second each.
struct Waited {
  double seconds = 0.0;
  double for_messages = 0.0;
  std::map<std::string, double> by_label;
};
Waited waited;

/// Its events are times of the clock.
class WaitClock final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Event create_event() override {
    ++num_events_;
    return {std::make_shared<double>(0.0)};
  }
  void record(const Event& event) override { time(event) = waited.seconds; }
  void host_wait(const Event& /*event*/) override {}
  double seconds_between(const Event& begin, const Event& end) override { return time(end) - time(begin); }
  int num_events() const { return num_events_; }

 private:
  static double& time(const Event& event) { return *static_cast<double*>(event.handle.get()); }
  int num_events_ = 0;
};

/// Its waits take a second in groups of several ranks. The groups split from it have the given labels, in
/// order.
class TimedWaits final : public ForwardingCommunicator {
 public:
  TimedWaits(NextCommunicator next, std::string label, std::vector<std::string> labels)
      : ForwardingCommunicator(std::move(next)), label_(std::move(label)), labels_(std::move(labels)) {}
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<TimedWaits>(next().split(color, key), labels_.at(num_splits_++),
                                        std::vector<std::string>());
  }

 private:
  Request start(const CommCall& call) override {
    const bool is_message = call.operation == CommOperation::send || call.operation == CommOperation::recv;
    return with_waits(call.on(next()), [this, is_message](const auto& wait) {
      wait();
      if (size() == 1) return;
      waited.seconds += 1.0;
      waited.for_messages += is_message ? 1.0 : 0.0;
      waited.by_label[label_] += 1.0;
    });
  }

  std::string label_;
  std::vector<std::string> labels_;
  std::size_t num_splits_ = 0;
};

class Waits : public testing::Test {
 protected:
  int ranks() const { return world_->size(); }

  static RunConfig config(int data, int accumulation = 1) {
    ModelConfig model = small_model();
    model.heads = 12;
    model.tied = true;
    return mini_config(model, global_batch, 16, data, accumulation);
  }

  /// Expects that the waits of each step, read one step late, are those that passed on the clock.
  void expect_measured(const RunConfig& run, const std::vector<std::string>& labels) {
    const Coordinates at = run.parallel.coordinates(world_->rank());
    std::vector<std::string> of_splits;
    for (const AxisSet axes : ProcessGrid::distinct(at, run.groups()))
      of_splits.push_back(ProcessGrid::label(at, axes));
    TimedWaits world(*world_, "", of_splits);
    WaitClock clock(backend_);
    MemoryLedger ledger;
    MiniTrainer trainer(clock, ledger, world, run);
    EXPECT_EQ(trainer.wait_axes(), labels);
    constexpr int steps = 6;
    std::vector<Waited> expected;
    int num_events = 0;
    for (int step = 1; step <= steps + 1; ++step) {
      if (step <= steps) {
        waited = {};
        trainer.run(walk_tokens(run, step));
        expected.push_back(std::exchange(waited, {}));
      }
      // Two sets of events alternate, and the first step may wait less often than later ones.
      if (step == 4) num_events = clock.num_events();
      if (step == 1) continue;
      SCOPED_TRACE(step - 1);
      const StepResults& results = trainer.read();
      const Waited& own = expected[static_cast<std::size_t>(step) - 2];
      ASSERT_EQ(results.wait_seconds.size(), labels.size());
      for (std::size_t i = 0; i < labels.size(); ++i) {
        const auto found = own.by_label.find(labels[i]);
        EXPECT_EQ(results.wait_seconds[i], found == own.by_label.end() ? 0.0 : found->second) << labels[i];
        // A rank between the ends of a pipeline waits for none of them.
        EXPECT_TRUE(results.wait_seconds[i] > 0.0 || labels[i] == "embedding") << labels[i];
      }
      EXPECT_EQ(results.idle_seconds, own.for_messages);
      EXPECT_EQ(std::accumulate(results.phase_seconds.begin(), results.phase_seconds.end(), 0.0), own.seconds)
          << "waits are part of the phases";
    }
    EXPECT_EQ(clock.num_events(), num_events) << "events are used again";
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

TEST_F(Waits, AreMeasuredByTheLabelOfTheGroup) {
  if (!backend_.host_accessible()) GTEST_SKIP() << "the clock is the host's";
  if (ranks() > 4) GTEST_SKIP() << "for up to 4 ranks";
  const std::vector<std::string> none;
  const auto of_several = [&](std::vector<std::string> labels) { return ranks() == 1 ? none : labels; };
  for (const char* exchange : {"ddp", "zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(exchange);
    RunConfig run = config(ranks());
    set_exchange(run, exchange, std::string_view(exchange) == "ddp" ? 1 : ranks());
    expect_measured(run, of_several({"data"}));
  }
  {
    SCOPED_TRACE("tensor");
    RunConfig run = config(1);
    run.parallel.tensor = ranks();
    expect_measured(run, of_several({"tensor"}));
  }
  if (ranks() > 1) {
    SCOPED_TRACE("pipeline");
    RunConfig run = config(1, 4);
    run.model.layers = 2L * ranks();
    run.parallel.pipeline = ranks();
    run.parallel.schedule = &find_kind(schedules(), "1f1b");
    expect_measured(run, {"pipeline", "embedding"});
  }
  if (ranks() == 4) {
    SCOPED_TRACE("tensor and data");
    RunConfig run = config(2);
    run.parallel.tensor = 2;
    expect_measured(run, {"tensor", "data", "tensor+data"});
  }
}

}  // namespace
}  // namespace mylos
