// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.hpp"

#include <cstdlib>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/instruction_set.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class PluginTest : public testing::Test {
 public:
  PluginTest() {
    fs::create_directories(first_);
    fs::create_directories(second_);
  }
  ~PluginTest() override { fs::remove_all(folder_); }

 protected:
  static fs::path plugin(const char* name) {
    return fs::path(std::getenv("MYLOS_BUILD")) / "lib" / "mylos" / fmt::format("libmylos_{}.so", name);
  }
  static std::string message(const PluginRegistry& registry, PluginKind kind, const char* name) {
    try {
      registry.require(kind, name);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "nothing was thrown";
  }

  // Each test has its own folder, because a process does not reload a library whose path it has already
  // loaded.
  fs::path folder_ = fs::temp_directory_path() /
                     fmt::format("mylos_plugin_{}_{}",
                                 testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
  fs::path first_ = folder_ / "first";
  fs::path second_ = folder_ / "second";
};

TEST_F(PluginTest, TheFirstOfANameWins) {
  fs::copy(plugin("comm_self"), first_ / "libmylos_comm_self.so");
  fs::copy(plugin("comm_self"), second_ / "libmylos_comm_self.so");
  fs::copy(plugin("comm_mpi"), second_ / "libmylos_comm_mpi.so");
  fs::copy(plugin("comm_mpi"), second_ / "comm_mpi.so");  // not a plugin's name
  const auto registry = PluginRegistry::discover({folder_ / "missing", first_, second_});
  ASSERT_EQ(registry.all().size(), 2U);
  EXPECT_EQ(registry.all()[0].path, first_ / "libmylos_comm_self.so");
  EXPECT_EQ(registry.all()[1].path, second_ / "libmylos_comm_mpi.so");
  EXPECT_EQ(registry.search_path().size(), 3U);
}

TEST_F(PluginTest, PluginsForTheLimitedInstructionSetComeFirst) {
  const InstructionSet own = instruction_set();
  if (own == InstructionSet::baseline) GTEST_SKIP() << "no limit that this processor can obey";
  for (const InstructionSet set :
       {InstructionSet::avx2, InstructionSet::avx512, InstructionSet::avx512_bf16}) {
    fs::create_directories(first_ / name_of(set));
    fs::copy(plugin("comm_self"), first_ / name_of(set) / "libmylos_comm_self.so");
  }
  fs::copy(plugin("comm_self"), first_ / "libmylos_comm_self.so");
  const auto found_with = [&](const char* limit) {
    if (limit != nullptr) setenv("MYLOS_CPU", limit, 1);
    const auto registry = PluginRegistry::discover({first_});
    unsetenv("MYLOS_CPU");
    EXPECT_EQ(registry.all().size(), 1U);
    return registry.all().at(0).path.parent_path();
  };
  EXPECT_EQ(found_with("avx2"), first_ / "avx2");
  EXPECT_EQ(found_with("avx512_bf16"), first_ / name_of(own));  // no more than the processor has
  // Without a limit, what is larger than the build, if the processor has it.
  EXPECT_EQ(found_with(nullptr), own > instruction_set_of_build() ? first_ / name_of(own) : first_);
}

TEST_F(PluginTest, ABrokenPluginHidesLaterOnesOfItsName) {
  std::ofstream(first_ / "libmylos_comm_self.so") << "not a shared object";
  fs::copy(plugin("comm_self"), second_ / "libmylos_comm_self.so");
  const auto registry = PluginRegistry::discover({first_, second_});
  ASSERT_EQ(registry.all().size(), 1U);
  EXPECT_EQ(registry.all()[0].descriptor, nullptr);
  EXPECT_THAT(registry.all()[0].problem, HasSubstr("libmylos_comm_self.so"));
}

TEST_F(PluginTest, NamesTheSymbolThatALibraryLacks) {
  const PluginInfo info = PluginRegistry::open(MYLOS_KOKKOS_TOOL);
  EXPECT_EQ(info.descriptor, nullptr);
  EXPECT_EQ(info.problem, "it exports no symbol mylos_plugin");
}

TEST_F(PluginTest, ChecksTheDescriptorBeforeAnythingIsCalled) {
  const PluginDescriptor good = test_plugins().require(PluginKind::communication, "self");
  EXPECT_EQ(PluginRegistry::check(good), "");
  PluginDescriptor bad = good;
  bad.magic += 1;
  EXPECT_EQ(PluginRegistry::check(bad), "its mylos_plugin symbol is not a plugin descriptor");
  bad = good;
  bad.abi_version = 99;
  EXPECT_THAT(PluginRegistry::check(bad),
              AllOf(HasSubstr("99"), HasSubstr(std::to_string(plugin_abi_version))));
  bad = good;
  bad.struct_size = 8;
  EXPECT_THAT(PluginRegistry::check(bad),
              AllOf(HasSubstr("8 bytes"), HasSubstr(std::to_string(sizeof(PluginDescriptor)))));
  bad = good;
  bad.operations_key += 1;
  EXPECT_EQ(PluginRegistry::check(bad), "built with other operations than this mylos");
  bad = good;
  bad.compiler = "another compiler";
  EXPECT_THAT(PluginRegistry::check(bad),
              AllOf(HasSubstr("another compiler"), HasSubstr(MYLOS_COMPILER_FINGERPRINT)));
}

TEST_F(PluginTest, RequireNamesPathsAndPlugins) {
  fs::copy(plugin("comm_self"), first_ / "libmylos_comm_self.so");
  std::ofstream(second_ / "libmylos_broken.so") << "not a shared object";
  const auto registry = PluginRegistry::discover({first_, second_});
  EXPECT_STREQ(registry.require(PluginKind::communication, "self").name, "self");
  EXPECT_THAT(message(registry, PluginKind::communication, "nccl"),
              AllOf(HasSubstr("no communication backend \"nccl\""), HasSubstr(first_.string()),
                    HasSubstr(second_.string()), HasSubstr("plugins found: self libmylos_broken.so (")));
  EXPECT_THAT(message(registry, PluginKind::compute, "self"), HasSubstr("no compute backend \"self\""));
}

TEST_F(PluginTest, PrefersThePluginOfTheLargestPreference) {
  const auto usable = test_plugins().usable(PluginKind::compute);
  ASSERT_FALSE(usable.empty());
  for (std::size_t i = 1; i < usable.size(); ++i) {
    EXPECT_GE(usable[i - 1]->preference, usable[i]->preference);
  }
}

TEST_F(PluginTest, SearchesOptionThenEnvironmentThenInstallation) {
  const char* before = std::getenv("MYLOS_PLUGIN_PATH");
  const std::string saved = before != nullptr ? before : "";
  setenv("MYLOS_PLUGIN_PATH", "/third::/fourth", 1);
  const auto paths = plugin_search_path("/:/tmp");
  setenv("MYLOS_PLUGIN_PATH", saved.c_str(), 1);
  const fs::path installed = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / "mylos";
  EXPECT_THAT(paths, testing::ElementsAre("/", "/tmp", "/third", "/fourth", installed));
}

}  // namespace
}  // namespace mylos
