// SPDX-License-Identifier: BSD-3-Clause
// The engine that advances operations: order, errors, and concurrent threads.
#include "parallel/collectives/operation_engine.hpp"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace mylos {
namespace {

/// Completes after a number of calls, and logs each call.
class Countdown final : public PolledOperation {
 public:
  Countdown(int calls, int name, std::vector<int>& log) : left_(calls), name_(name), log_(log) {}
  bool advance() override {
    log_.push_back(name_);
    return --left_ == 0;
  }

 private:
  int left_;
  int name_;
  std::vector<int>& log_;
};

class Failing final : public PolledOperation {
 public:
  bool advance() override { fail(ExitCode::io, "the wire is cut"); }
};

TEST(OperationEngine, AdvancesOperationsInTheOrderOfTheirStarts) {
  OperationEngine engine;
  std::vector<int> log;
  Request first = engine.start(std::make_unique<Countdown>(3, 1, log));
  Request second = engine.start(std::make_unique<Countdown>(2, 2, log));
  EXPECT_EQ(log, (std::vector<int>{1, 1, 2}));
  EXPECT_TRUE(second.test());
  EXPECT_EQ(log, (std::vector<int>{1, 1, 2, 1, 2}));
  first.host_wait();
  second.host_wait();
  EXPECT_EQ(log.size(), 5U);
}

TEST(OperationEngine, ThrowsFromTheWaitForTheFailedOperation) {
  OperationEngine engine;
  std::vector<int> log;
  Request request = engine.start(std::make_unique<Failing>());
  Request other = engine.start(std::make_unique<Countdown>(3, 1, log));
  EXPECT_NO_THROW(engine.progress());
  EXPECT_NO_THROW(other.host_wait());
  EXPECT_THROW(request.host_wait(), Error);
}

TEST(OperationEngine, ForgetsOperationsWithoutAWait) {
  OperationEngine engine;
  std::vector<int> log;
  { const Request dropped = engine.start(std::make_unique<Countdown>(100, 1, log)); }
  engine.progress();
  EXPECT_EQ(log.size(), 1U);
}

TEST(OperationEngine, ServesOneThreadThatStartsAndOneThatAdvances) {
  OperationEngine engine;
  std::atomic<bool> stop{false};
  std::jthread progress([&] {
    while (!stop) engine.progress();
  });
  for (int i = 0; i < 20000; ++i) {
    std::vector<int> log;
    Request first = engine.start(std::make_unique<Countdown>(1 + i % 3, 1, log));
    Request second = engine.start(std::make_unique<Countdown>(1 + i % 5, 2, log));
    second.host_wait();
    first.host_wait();
    ASSERT_EQ(log.size(), static_cast<std::size_t>(2 + i % 3 + i % 5));
  }
  stop = true;
}

}  // namespace
}  // namespace mylos
