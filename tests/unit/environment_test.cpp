// SPDX-License-Identifier: BSD-3-Clause
// Variables of libraries, the number of threads that follows from them, and how exceptions end a command.
#include "app/launch/environment.hpp"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <system_error>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace mylos {
namespace {

using testing::HasSubstr;

/// Sets a variable for its lifetime.
class SetVariable {
 public:
  SetVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~SetVariable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(Variables, WithValuesThatTheirLibrariesAcceptPass) {
  const std::pair<const char*, const char*> values[] = {
      {"OMP_NUM_THREADS", "2"},
      {"OMP_NUM_THREADS", " 4, 2 "},
      {"OMP_NUM_THREADS", ""},
      {"OMP_DYNAMIC", "TRUE"},
      {"OMP_PROC_BIND", "spread,close"},
      {"OMP_PROC_BIND", "false"},
      {"OMP_PLACES", "cores(4)"},
      {"OMP_PLACES", "{0:4}:8:4,!{3}"},
      {"OMP_STACKSIZE", "16M"},
      {"OMP_STACKSIZE", "2048 k"},
      {"OMP_SCHEDULE", "dynamic,4"},
      {"GOMP_CPU_AFFINITY", "0 3 1-2 4-15:2"},
      {"KOKKOS_DISABLE_WARNINGS", "Yes"},
      {"HDF5_USE_FILE_LOCKING", "BEST_EFFORT"},
      {"DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16"},
  };
  for (const auto& [name, value] : values) {
    const SetVariable set(name, value);
    EXPECT_NO_THROW(check_variables()) << name << "=" << value;
  }
}

TEST(Variables, WithOtherValuesAreNamed) {
  const std::pair<const char*, const char*> values[] = {
      {"OMP_NUM_THREADS", "abc"},
      {"OMP_NUM_THREADS", "0"},
      {"OMP_NUM_THREADS", "-3"},
      {"OMP_NUM_THREADS", "2x"},
      {"OMP_NUM_THREADS", "100000"},
      {"OMP_THREAD_LIMIT", "0"},
      {"OMP_DYNAMIC", "maybe"},
      {"OMP_PROC_BIND", "foo"},
      {"OMP_PLACES", "foo"},
      {"OMP_STACKSIZE", "abc"},
      {"GOMP_STACKSIZE", "1X"},
      {"OMP_WAIT_POLICY", "foo"},
      {"OMP_MAX_ACTIVE_LEVELS", "abc"},
      {"OMP_SCHEDULE", "foo"},
      {"GOMP_CPU_AFFINITY", "abc"},
      {"KOKKOS_NUM_THREADS", "abc"},
      {"KOKKOS_MAP_DEVICE_ID_BY", "foo"},
      {"KOKKOS_PRINT_CONFIGURATION", "abc"},
      {"HDF5_USE_FILE_LOCKING", "foo"},
      {"DNNL_MAX_CPU_ISA", "foo"},
      {"DNNL_PRIMITIVE_CACHE_CAPACITY", "-5"},
  };
  for (const auto& [name, value] : values) {
    const SetVariable set(name, value);
    try {
      check_variables();
      ADD_FAILURE() << name << "=" << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_THAT(error.what(), HasSubstr(std::string("the environment variable ") + name + "="));
      EXPECT_THAT(error.what(), HasSubstr(value));
    }
  }
}

TEST(Threads, AreTheSmallestLimitUnlessTheUserHasSetThem) {
  const std::vector<ThreadLimit> limits = {{64, "64 cores"}, {4, "CPU quota of 4.0"}};
  const SetVariable none("OMP_NUM_THREADS", "");
  EXPECT_EQ(choose_threads(0, limits).name, "CPU quota of 4.0");
  EXPECT_EQ(choose_threads(0, limits).threads, 4);
  EXPECT_EQ(choose_threads(7, limits).threads, 7);
  {
    const SetVariable limit("OMP_THREAD_LIMIT", "3");
    EXPECT_EQ(choose_threads(0, limits).threads, 3);
    EXPECT_EQ(choose_threads(0, limits).name, "OMP_THREAD_LIMIT=3");
    EXPECT_EQ(choose_threads(3, limits).threads, 3);
    EXPECT_THROW(choose_threads(4, limits), Error);
    const SetVariable wanted("OMP_NUM_THREADS", "5");
    EXPECT_THROW(choose_threads(0, limits), Error);
  }
  const SetVariable wanted("OMP_NUM_THREADS", "5,2");
  EXPECT_EQ(choose_threads(0, limits).threads, 5);
  EXPECT_EQ(choose_threads(6, limits).threads, 6);
}

void expect_error(const std::exception& exception, ExitCode code, const std::string& message) {
  const Error error = mylos::error_of(exception);
  EXPECT_EQ(error.code(), code);
  EXPECT_THAT(error.what(), HasSubstr(message));
}

TEST(ErrorOf, TellsMemoryAndThreadsFromFiles) {
  expect_error(Error(ExitCode::bad_data, "as it is"), ExitCode::bad_data, "as it is");
  expect_error(std::bad_alloc(), ExitCode::internal, "out of memory");
  expect_error(std::system_error(EAGAIN, std::generic_category()), ExitCode::internal,
               "cannot start a thread (ulimit -u, pids limit)");
  expect_error(std::system_error(ENOMEM, std::system_category()), ExitCode::internal, "out of memory");
  expect_error(
      std::filesystem::filesystem_error("x", "/nowhere", std::error_code(EIO, std::generic_category())),
      ExitCode::io, "cannot use /nowhere: Input/output error; there is nothing");
  expect_error(std::runtime_error("y"), ExitCode::internal, "internal error: y");
}

}  // namespace
}  // namespace mylos
