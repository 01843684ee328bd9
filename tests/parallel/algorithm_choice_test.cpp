// SPDX-License-Identifier: BSD-3-Clause
// What comm.algorithm may say, and what it then means.
#include "parallel/collectives/algorithm_choice.hpp"

#include <gtest/gtest.h>

namespace mylos {
namespace {

TEST(AlgorithmChoice, OneNameAppliesToAllSizes) {
  for (const Algorithm algorithm : all_algorithms) {
    const AlgorithmChoice choice = AlgorithmChoice::parse(name_of(algorithm));
    EXPECT_EQ(choice.of(0), algorithm);
    EXPECT_EQ(choice.of(1ULL << 40U), algorithm);
    EXPECT_EQ(choice.is_native(), algorithm == Algorithm::native);
    EXPECT_EQ(choice.text(), name_of(algorithm));
  }
}

TEST(AlgorithmChoice, LimitsAreTheFirstBytesOfTheNextAlgorithm) {
  const AlgorithmChoice choice = AlgorithmChoice::parse("tree<4096,halving_doubling<1048576,ring");
  EXPECT_EQ(choice.of(0), Algorithm::tree);
  EXPECT_EQ(choice.of(4095), Algorithm::tree);
  EXPECT_EQ(choice.of(4096), Algorithm::halving_doubling);
  EXPECT_EQ(choice.of(1048575), Algorithm::halving_doubling);
  EXPECT_EQ(choice.of(1048576), Algorithm::ring);
  EXPECT_FALSE(choice.is_native());
  EXPECT_EQ(choice.text(), "tree<4096,halving_doubling<1048576,ring");
}

TEST(AlgorithmChoice, RefusesWhatItCannotMean) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' is no algorithm"},
      {"rings", "'rings' is no algorithm"},
      {"tree<65536", "the last algorithm has no limit"},
      {"tree,ring", "'tree' needs a limit"},
      {"tree<65536,", "'' is no algorithm"},
      {"tree<64KiB,ring", "'64KiB' is no number of bytes"},
      {"tree<-1,ring", "'-1' is no number of bytes"},
      {"tree<,ring", "'' is no number of bytes"},
      {"tree<4096,naive<4096,ring", "the limits must grow"},
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
