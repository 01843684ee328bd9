// SPDX-License-Identifier: BSD-3-Clause
// What a rank concludes about its node after each look: which rank has stopped, which operation stalls, and
// which rank reports it.
#include "parallel/health/failure_detector.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mylos {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr WatchdogLimits limits{.silence = 2000ms, .operation_timeout = 10000ms, .io_timeout = 30000ms};
constexpr milliseconds pause = 500ms;

/// Three ranks as `own_rank` sees them; each beats at every look unless it is stopped.
class Node {
 public:
  explicit Node(int own_rank = 0, bool has_other_nodes = false)
      : detector_(own_rank, limits, has_other_nodes), ranks_(3) {
    for (int r = 0; r < 3; ++r) {
      rank(r).rank = r;
      rank(r).pid = getpid();
    }
  }

  RankFlight& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  void stop(int r) { stopped_.push_back(r); }
  void go_on() { stopped_.clear(); }
  void begin(int r, const char* operation, CallKind kind = CallKind::collective) {
    OperationRecord record{};
    record.number = rank(r).num_operations + 1;
    record.kind = kind;
    record.bytes = 40;
    record.begin_ns = std::chrono::nanoseconds(now_.time_since_epoch()).count();
    std::string(operation).copy(record.operation.data(), record.operation.size() - 1);
    std::string("data").copy(record.object.data(), record.object.size() - 1);
    rank(r).operations[rank(r).num_operations++] = {record, false};
  }
  void complete(int r) { rank(r).operations[rank(r).num_operations - 1].done = true; }
  void sleep(milliseconds time) { now_ += time; }

  std::string look() {
    for (RankFlight& flight : ranks_) {
      if (std::ranges::find(stopped_, flight.rank) == stopped_.end()) ++flight.heartbeats;
    }
    return detector_.look(ranks_, now_) ? std::string(detector_.reason()) : "";
  }
  /// Looks once per pause for `time`. Returns the reason of the first report; empty if there is none.
  std::string watch(milliseconds time) {
    for (milliseconds passed{0}; passed < time; passed += pause) {
      now_ += pause;
      if (std::string reason = look(); !reason.empty()) return reason;
    }
    return "";
  }
  std::string report() { return std::string(detector_.report()); }
  ExitCode code() const { return detector_.code(); }

 private:
  FailureDetector detector_;
  std::vector<RankFlight> ranks_;
  std::vector<int> stopped_;
  FailureDetector::TimePoint now_{1h};
};

TEST(FailureDetector, ReportsARankThatIsSilentForLongerThanTheLimit) {
  Node node;
  node.look();
  node.stop(1);
  EXPECT_EQ(node.watch(limits.silence), "");
  EXPECT_EQ(node.watch(pause),
            fmt::format("stopped rank 1: pid {} has given no sign of life for 2.5 s", getpid()));
  EXPECT_THAT(node.report(), HasSubstr(fmt::format("\nrank 1 (pid {}, SILENT), step 0", getpid())));
  EXPECT_THAT(node.report(), HasSubstr(fmt::format("\nrank 2 (pid {}, running), step 0", getpid())));
}

TEST(FailureDetector, ReportsTheLastEightCollectivesOfARank) {
  Node node;
  for (int i = 0; i < 9; ++i) {
    node.begin(0, "all_reduce");
    node.complete(0);
  }
  node.look();
  node.stop(1);
  EXPECT_THAT(node.watch(limits.silence + pause), StartsWith("stopped rank 1"));
  EXPECT_THAT(node.report(), AllOf(HasSubstr("\n  #2 all_reduce"), Not(HasSubstr("\n  #1 all_reduce"))));
}

TEST(FailureDetector, ReportsAComputationThatDoesNotEndBeforeTheCollectiveThatWaitsForIt) {
  Node node;
  node.begin(0, "all_reduce");
  node.begin(1, "compute", CallKind::computation);
  EXPECT_EQ(node.watch(limits.operation_timeout + pause), "");
  EXPECT_EQ(
      node.watch(pause),
      "stalled computation: rank 1 has been in compute [data] 40 bytes for more than 10.0 s; in all_reduce "
      "[data] 40 bytes: 0; in compute [data] 40 bytes: 1; in no operation: 2");
  EXPECT_EQ(node.code(), ExitCode::watchdog);
}

TEST(FailureDetector, LetsComputationsTakeLongInTotal) {
  Node node;
  for (int i = 0; i < 5; ++i) {
    node.begin(0, "compute", CallKind::computation);
    EXPECT_EQ(node.watch(limits.operation_timeout - pause), "");
    node.complete(0);
  }
}

TEST(FailureDetector, TellsADeadRankFromAStoppedOne) {
  Node node;
  node.rank(1).has_died = true;
  node.rank(1).pid = 2147483647;
  node.stop(1);
  EXPECT_THAT(node.watch(1min), StartsWith("dead rank 1: pid 2147483647 "));
}

TEST(FailureDetector, LetsTheLowestBeatingRankReportAndTheNextIfItDoesNot) {
  for (const int own_rank : {1, 2}) {
    Node node(own_rank);
    node.look();
    node.stop(0);
    EXPECT_EQ(node.watch(limits.silence), "");
    EXPECT_EQ(node.watch(pause).empty(), own_rank != 1);
    if (own_rank == 1) continue;
    EXPECT_EQ(node.watch(limits.silence), "");
    EXPECT_THAT(node.watch(pause), StartsWith("stopped rank 0"));
  }
}

TEST(FailureDetector, RestartsTheTurnsAfterARankCameBack) {
  Node node(2);
  node.look();
  node.stop(1);
  EXPECT_EQ(node.watch(limits.silence + pause), "");
  node.go_on();
  EXPECT_EQ(node.watch(pause), "");
  node.stop(1);
  EXPECT_EQ(node.watch(2 * limits.silence + pause), "");
  EXPECT_THAT(node.watch(pause), StartsWith("stopped rank 1"));
}

TEST(FailureDetector, ExpectsNothingOfARankThatHasFinished) {
  Node node(1);
  node.look();
  node.rank(0).finished = true;
  node.stop(0);
  EXPECT_EQ(node.watch(1h), "");
  node.stop(2);
  EXPECT_THAT(node.watch(limits.silence + pause), StartsWith("stopped rank 2"));
}

TEST(FailureDetector, NamesTheRanksOutsideAStalledCollective) {
  Node node;
  node.look();
  node.begin(0, "all_reduce");
  node.begin(2, "all_reduce");
  // The limit runs from the first look at the operation.
  EXPECT_EQ(node.watch(limits.operation_timeout + pause), "");
  EXPECT_EQ(node.watch(pause),
            "stalled collective: rank 0 has been in all_reduce [data] 40 bytes for more than 10.0 s; "
            "in all_reduce [data] 40 bytes: 0, 2; in no operation: 1");
  EXPECT_THAT(node.report(), HasSubstr("  #1 all_reduce [data] 40 bytes, started 11.0 s ago, UNDER WAY\n"));
}

TEST(FailureDetector, SparesOperationsThatEnd) {
  Node node;
  for (int i = 0; i < 3; ++i) {
    for (int r = 0; r < 3; ++r) node.begin(r, "all_reduce");
    EXPECT_EQ(node.watch(limits.operation_timeout), "");
    for (int r = 0; r < 3; ++r) node.complete(r);
  }
}

TEST(FailureDetector, SparesALongHostPhase) {
  Node node;
  node.begin(0, "all_reduce");
  node.complete(0);
  EXPECT_EQ(node.watch(1h), "");
}

TEST(FailureDetector, SparesAJobThatWasSuspendedAndContinued) {
  Node node;
  node.look();
  for (int i = 0; i < 100; ++i) {
    node.sleep(1h);
    node.stop(1);  // rank 1 is the last to resume
    EXPECT_EQ(node.look(), "");
    EXPECT_EQ(node.watch(limits.silence / 2), "");
    node.go_on();
    EXPECT_EQ(node.watch(pause), "");
  }
  node.stop(1);
  EXPECT_THAT(node.watch(limits.silence + pause), StartsWith("stopped rank 1"));
}

// Every look is late by more than the limit, because the machine is so busy or the limit so short.
TEST(FailureDetector, FindsAStoppedRankHoweverLateItLooks) {
  Node node;
  node.look();
  node.stop(1);
  std::string reason;
  for (int looks = 0; looks < 5 && reason.empty(); ++looks) {
    node.sleep(limits.silence * 3);
    reason = node.look();
  }
  EXPECT_THAT(reason, StartsWith("stopped rank 1"));
}

TEST(FailureDetector, BeatsOftenEnoughForEveryLimit) {
  for (const milliseconds silence : {100ms, 300ms, 400ms, 1000ms, 5000ms, 60000ms}) {
    const WatchdogLimits some{.silence = silence};
    EXPECT_LE(8 * some.heartbeat(), silence);
    EXPECT_GE(some.heartbeat(), 1ms);
    EXPECT_LE(some.heartbeat(), 200ms);
  }
}

TEST(FailureDetector, NamesTheFileOfACallThatHangs) {
  Node node;
  node.look();
  node.begin(0, "agreement", CallKind::agreement);
  node.begin(1, "fsync", CallKind::io);
  node.begin(2, "agreement", CallKind::agreement);
  EXPECT_EQ(node.watch(limits.io_timeout + pause), "");
  EXPECT_EQ(
      node.watch(pause),
      "hanging file system: rank 1 has been in fsync [data] 40 bytes for more than 30.0 s; in agreement "
      "[data] 40 bytes: 0, 2; in fsync [data] 40 bytes: 1");
  EXPECT_EQ(node.code(), ExitCode::io);
}

TEST(FailureDetector, AllowsAnAgreementTheTimeoutsOfFilesAndOfACollective) {
  Node node;
  node.look();
  node.begin(0, "agreement", CallKind::agreement);
  EXPECT_EQ(node.watch(limits.io_timeout + limits.operation_timeout + pause), "");
  EXPECT_THAT(node.watch(pause), StartsWith("stalled collective: rank 0 has been in agreement"));
  EXPECT_EQ(node.code(), ExitCode::watchdog);
}

TEST(FailureDetector, ReportsARankOfAnotherNodeOnce) {
  Node successor(1, true);
  successor.rank(0).on_other_node = true;
  successor.look();
  successor.stop(0);
  EXPECT_THAT(successor.watch(limits.silence + pause), StartsWith("stopped rank 0: pid "));
  EXPECT_THAT(successor.report(), HasSubstr("on another node, SILENT"));
}

/// The rank of the next node reports a node's lowest rank, so the others of its node give it a turn. They
/// report any other rank at once: nobody else sees it.
TEST(FailureDetector, LeavesTheLowestRankOfANodeToTheNextNode) {
  for (const int stopped : {0, 1}) {
    SCOPED_TRACE(stopped);
    Node node(stopped == 0 ? 1 : 0, true);
    node.look();
    node.stop(stopped);
    EXPECT_EQ(node.watch(limits.silence), "");
    if (stopped == 0) {
      EXPECT_EQ(node.watch(limits.silence + pause), "");
    }
    EXPECT_THAT(node.watch(pause), StartsWith(fmt::format("stopped rank {}", stopped)));
  }
}

/// Rank 0 is on another node. While it does not say that it sees the stalled operation, the failure may be
/// one of this node only.
TEST(FailureDetector, WaitsForANodeBeforeItOnlyIfThatSeesTheStallToo) {
  for (const bool also_sees : {false, true}) {
    SCOPED_TRACE(also_sees);
    Node later(1, true);
    later.rank(0).on_other_node = true;
    later.look();
    later.begin(1, "all_reduce");
    EXPECT_EQ(later.watch(limits.operation_timeout + 2 * pause), "");  // found, and time to be told
    later.rank(0).sees_failure = also_sees;
    if (also_sees) {
      EXPECT_EQ(later.watch(limits.silence - pause), "");
    }
    EXPECT_THAT(later.watch(2 * pause), StartsWith("stalled collective: rank 1"));
  }
}

/// At any time at most one rank of a node reports.
TEST(FailureDetector, GivesEachRankATurnOfItsOwn) {
  for (const int own_rank : {0, 1, 2}) {
    SCOPED_TRACE(own_rank);
    Node node(own_rank);
    node.look();
    node.begin(0, "all_reduce");
    EXPECT_EQ(node.watch(limits.operation_timeout + pause), "");
    if (own_rank > 0) {
      EXPECT_EQ(node.watch(own_rank * limits.silence + pause), "");
    }
    EXPECT_THAT(node.watch(pause), StartsWith("stalled collective"));
  }
}

}  // namespace
}  // namespace mylos
