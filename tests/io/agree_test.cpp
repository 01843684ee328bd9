// SPDX-License-Identifier: BSD-3-Clause
// run_collectively in one process: the exit codes of several kinds of errors.
#include "io/agree.hpp"

#include <filesystem>
#include <functional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace mylos {
namespace {

ExitCode code_of(const std::function<void()>& work) {
  try {
    run_collectively(MPI_COMM_NULL, work);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::EndsWith("what happened"));
    return error.code();
  }
  return ExitCode::done;
}

TEST(Agreed, KnowsFromWhatWasThrownHowTheJobEnds) {
  EXPECT_EQ(code_of([] {}), ExitCode::done);
  EXPECT_EQ(code_of([] { throw Error(ExitCode::bad_data, "what happened"); }), ExitCode::bad_data);
  EXPECT_EQ(code_of([] { throw std::runtime_error("what happened"); }), ExitCode::internal);
  try {
    run_collectively(MPI_COMM_NULL, [] { std::filesystem::create_directory("/no such folder/below"); });
    ADD_FAILURE() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find("/no such folder"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace mylos
