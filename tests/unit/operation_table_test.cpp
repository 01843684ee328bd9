// SPDX-License-Identifier: BSD-3-Clause
#include "core/ops/operation_table.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mylos {
namespace {

using testing::ElementsAre;

/// The calls of kernels, in order.
using Log = std::vector<std::string>;

struct RootKernels {
  Log* log;
  using List = OperationList<LinearForward, GeluForward>;
  void run(const LinearForward& /*op*/) { log->push_back("root linear"); }
  void run(const GeluForward& /*op*/) { log->push_back("root gelu"); }
};

struct Fast {
  Log* log;
  bool takes = true;
  using List = OperationList<LinearForward, LinearGeluForward>;
  bool run(const LinearForward& /*op*/) {
    log->push_back("fast linear");
    return takes;
  }
  bool run(const LinearGeluForward& /*op*/) {
    log->push_back("fast fused");
    return takes;
  }
};

struct Top {
  Log* log;
  using List = OperationList<GeluForward>;
  void run(const GeluForward& /*op*/) { log->push_back("top gelu"); }
};

class OperationTableTest : public testing::Test {
 protected:
  OperationTableTest() {
    below_.add(RootKernels::List(), root_, "root");
    table_ = below_;
    table_.add(Fast::List(), fast_, "fast");
  }

  Log log_;
  RootKernels root_{&log_};
  Fast fast_{&log_};
  OperationTable below_, table_;
};

TEST_F(OperationTableTest, AsksTheTopmostKernelFirst) {
  EXPECT_STREQ(table_.take(LinearForward{}), "fast");
  EXPECT_STREQ(table_.take(GeluForward{}), "root");
  EXPECT_THAT(log_, ElementsAre("fast linear", "root gelu"));
}

TEST_F(OperationTableTest, AsksTheTableBelowIfAKernelDeclines) {
  fast_.takes = false;
  EXPECT_STREQ(table_.take(LinearForward{}), "root");
  EXPECT_THAT(log_, ElementsAre("fast linear", "root linear"));
}

TEST_F(OperationTableTest, DoesNotChangeTheTableBelow) {
  EXPECT_STREQ(below_.take(LinearForward{}), "root");
  EXPECT_FALSE(below_.has<LinearGeluForward>());
  EXPECT_TRUE(table_.has<LinearGeluForward>());
}

TEST_F(OperationTableTest, AFusedOperationIsOneCallIfAKernelTakesIt) {
  table_.run(LinearGeluForward{});
  EXPECT_THAT(log_, ElementsAre("fast fused"));
}

TEST_F(OperationTableTest, RunsThePartsOfAFusedOperationByTheTopmostTable) {
  fast_.takes = false;
  Top top{&log_};
  OperationTable table = table_;
  table.add(Top::List(), top, "top");
  EXPECT_EQ(table.take(LinearGeluForward{}), nullptr);
  log_.clear();
  table.run(LinearGeluForward{});
  EXPECT_THAT(log_, ElementsAre("fast fused", "fast linear", "root linear", "top gelu"));
}

TEST_F(OperationTableTest, NamesAnOperationWithoutAKernel) {
  try {
    table_.run(CrossEntropy{});
    FAIL() << "nobody has this kernel";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no backend runs cross_entropy"));
  }
}

TEST(OperationList, AnotherOrderOrRecordIsAnotherKey) {
  EXPECT_NE(key_of(OperationList<Fill, Cast>()), key_of(OperationList<Cast, Fill>()));
  EXPECT_NE(key_of(OperationList<Fill, Cast>()), key_of(OperationList<Fill>()));
}

}  // namespace
}  // namespace mylos
