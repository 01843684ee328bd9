// SPDX-License-Identifier: BSD-3-Clause
// The syntax and meaning of comm.algorithm.
#include "parallel/collectives/algorithm_choice.hpp"

#include <gtest/gtest.h>

namespace mylos {
namespace {

TEST(AlgorithmChoice, OneNameAppliesToAllSizes) {
  for (const Algorithm algorithm : all_algorithms) {
    const AlgorithmChoice choice = AlgorithmChoice::parse(name_of(algorithm));
    for (const CommOperation operation : scheduled_operations) {
      EXPECT_EQ(choice.of(operation, 0), algorithm);
      EXPECT_EQ(choice.of(operation, 1ULL << 40U), algorithm);
    }
    EXPECT_EQ(choice.is_native(), algorithm == Algorithm::native);
    EXPECT_EQ(choice.text(), name_of(algorithm));
  }
}

TEST(AlgorithmChoice, LimitsAreTheFirstBytesOfTheNextAlgorithm) {
  const AlgorithmChoice choice = AlgorithmChoice::parse("tree<4096,halving_doubling<1048576,ring");
  for (const CommOperation operation : scheduled_operations) {
    EXPECT_EQ(choice.of(operation, 0), Algorithm::tree);
    EXPECT_EQ(choice.of(operation, 4095), Algorithm::tree);
    EXPECT_EQ(choice.of(operation, 4096), Algorithm::halving_doubling);
    EXPECT_EQ(choice.of(operation, 1048575), Algorithm::halving_doubling);
    EXPECT_EQ(choice.of(operation, 1048576), Algorithm::ring);
  }
  EXPECT_FALSE(choice.is_native());
  EXPECT_EQ(choice.text(), "tree<4096,halving_doubling<1048576,ring");
}

TEST(AlgorithmChoice, CollectivesHaveTheirOwnChoiceOrFollowTheRest) {
  const AlgorithmChoice choice = AlgorithmChoice::parse("broadcast:tree;ring;all_reduce:naive<100,native");
  EXPECT_EQ(choice.of(CommOperation::all_reduce, 99), Algorithm::naive);
  EXPECT_EQ(choice.of(CommOperation::all_reduce, 100), Algorithm::native);
  EXPECT_EQ(choice.of(CommOperation::broadcast, 99), Algorithm::tree);
  EXPECT_EQ(choice.of(CommOperation::reduce, 99), Algorithm::ring);
  EXPECT_TRUE(choice.uses(Algorithm::tree));
  EXPECT_FALSE(choice.uses(Algorithm::halving_doubling));
  EXPECT_FALSE(choice.is_native());

  const AlgorithmChoice others_native = AlgorithmChoice::parse("all_gather:ring");
  EXPECT_EQ(others_native.of(CommOperation::all_gather, 1), Algorithm::ring);
  EXPECT_EQ(others_native.of(CommOperation::all_reduce, 1), Algorithm::native);
  EXPECT_FALSE(others_native.is_native());
}

TEST(AlgorithmChoice, TextIsReadBack) {
  const std::pair<const char*, const char*> cases[] = {
      {"broadcast:tree;ring",
       "all_reduce:ring;reduce_scatter:ring;all_gather:ring;broadcast:tree;reduce:ring;all_to_all:ring"},
      {"reduce:native;all_to_all:tree<64,ring", "all_to_all:tree<64,ring"},
      {"all_reduce:native", "native"},
      {"all_reduce:tree<9,ring;tree<9,ring", "tree<9,ring"},
  };
  for (const auto& [given, text] : cases) {
    EXPECT_EQ(AlgorithmChoice::parse(given).text(), text);
    EXPECT_EQ(AlgorithmChoice::parse(text).text(), text);
  }
  AlgorithmChoice choice(Algorithm::native);
  choice.set(CommOperation::reduce,
             {{Algorithm::tree, 1 << 20}, {Algorithm::ring, AlgorithmChoice::everything}});
  EXPECT_EQ(choice.text(), "reduce:tree<1048576,ring");
}

TEST(AlgorithmChoice, RefusesInvalidTexts) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' is not an algorithm"},
      {"rings", "'rings' is not an algorithm"},
      {"tree<65536", "the last algorithm must not have a limit"},
      {"tree,ring", "'tree' needs a limit"},
      {"tree<65536,", "'' is not an algorithm"},
      {"tree<64KiB,ring", "'64KiB' is not a byte count"},
      {"tree<-1,ring", "'-1' is not a byte count"},
      {"tree<,ring", "'' is not a byte count"},
      {"tree<4096,naive<4096,ring", "the limits must increase"},
      {"allreduce:ring", "'allreduce' is not a collective: give all_reduce, "},
      {"all_to_all_v:ring", "'all_to_all_v' is not a collective: give all_reduce, "},
      {"all_reduce:ring;reduce:", "'' is not an algorithm"},
      {"all_reduce:ring;", "'' is not an algorithm"},
      {"reduce:ring;reduce:tree", "reduce is given twice"},
      {"ring;tree", "the part without a name is given twice"},
  };
  for (const auto& [text, reason] : cases) {
    try {
      AlgorithmChoice::parse(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find("comm.algorithm = " + std::string(text) + ": " + reason),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace mylos
