// SPDX-License-Identifier: BSD-3-Clause
// Machine files: what they hold, the errors they may have, and the times that follow.
#include "app/deck/machine_file.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/file_util.hpp"

namespace mylos {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* least = "[machine]\nname = m\n[device]\nbandwidth = 1000\npeak_bf16 = 100\n";

std::string errors_of(const std::string& text) {
  try {
    parse_machine(text, "m.machine");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

Entry product(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype) {
  // Shapes without memory, as in recorded programs.
  auto* memory = address_of(0);
  return {.operation = LinearForward{.x = {memory, dtype, {rows, in}},
                                     .w = {memory, dtype, {in, out}},
                                     .bias = {},
                                     .y = {memory, dtype, {rows, out}}},
          .block = 1,
          .where = {}};
}

TEST(MachineFile, TheGivenOnesAreRead) {
  const std::filesystem::path folder =
      std::filesystem::path(std::getenv("MYLOS_SOURCE")) / "inputs" / "machines";
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const Machine machine = read_machine(file.path().string());
    EXPECT_GT(machine.memory, 0.0) << file.path();
    EXPECT_GT(machine.network_bandwidth, 0.0);
    // Every number names its source, or says that it is assumed.
    const std::string text = read_text_file(file.path());
    for (const std::string_view line : split(text, '\n')) {
      if (line.find('=') == std::string_view::npos || line.starts_with("#") || line.starts_with("all_reduce"))
        continue;
      const bool repeats = line.starts_with("name") || line.find("_fp16") != std::string_view::npos ||
                           line.find("_share") != std::string_view::npos || line.starts_with("ranks") ||
                           line.starts_with("loss_per") || line.starts_with("peak_bf16");
      EXPECT_TRUE(repeats || line.find('#') != std::string_view::npos) << line;
    }
    ++count;
  }
  EXPECT_GE(count, 3);
}

/// All errors come at once, each with its line.
TEST(MachineFile, ReportsEveryError) {
  EXPECT_THAT(errors_of("[machine]\nname = m\n[device]\nbandwith = 1\npeak_fp32 = 2 GB/s\n"
                        "[network]\nadapters = -1\n[softwares]\n"),
              AllOf(HasSubstr("m.machine:4: unknown key [device] bandwith; did you mean [device] bandwidth?"),
                    HasSubstr("m.machine:5: [device] peak_fp32 = 2 GB/s"), HasSubstr("m.machine:7: "),
                    HasSubstr("m.machine:8: unknown section [softwares]; did you mean [software]?")));
  const struct {
    const char* more;
    const char* error;
  } cases[] = {
      {"[products]\nlinear_foward bf16 1x2x3 = 4\n",
       "m.machine:7: [products] linear_foward bf16 1x2x3: unknown "
       "operation linear_foward; did you mean linear_forward?"},
      {"[products]\nlinear_forward bf16 1x2 = 4\n",
       "write OPERATION [gathered] TYPE ROWSxINxOUT = microseconds"},
      {"[products]\nlinear_forward int8 1x2x3 = 4\n", "write OPERATION [gathered] TYPE ROWSxINxOUT"},
      {"[products]\nlinear_forward bf16 1x2x3 = 0\n", "out of range"},
      {"[products]\nlinear_forward bf16 1x2x3 = nan\n", "m.machine:7: "},
      {"[attention]\nattention_forward bf16 1x2x3 = 4\n", "BATCHxHEADSxPOSITIONSxHEAD_SIZE"},
      {"[operations]\nadamw fp32 100 = 4\n", "a curve needs two sizes or more"},
      {"[operations]\nadamw fp32 100 = 4\nadamw fp32 200 = 3\n",
       "m.machine:8: [operations] adamw fp32 200: takes less time than 100 bytes at m.machine:7"},
      {"[products]\nlayernorm_forward bf16 1x2x3 = 4\n", "unknown operation layernorm_forward"},
      {"[collectives]\nall_reduce node 4294967298 100 = 4\n", "write COLLECTIVE node|network RANKS BYTES"},
      {"[collectives]\nall_reduce node 1 100 = 4\n", "of 2 ranks or more"},
      {"[collectives]\nall_reduced node 2 100 = 4\nall_reduced node 2 200 = 4\n", "did you mean all_reduce?"},
      {"attention_share = \"64\"\n", "write head sizes and shares up to 1"},
      {"attention_share = \"64 1.5\"\n", "write head sizes and shares up to 1"},
      {"[overlap]\ncomputation = 0.5\n", "out of range; use 1 to 100"},
  };
  for (const auto& own : cases) EXPECT_THAT(errors_of(std::string(least) + own.more), HasSubstr(own.error));
  EXPECT_THAT(errors_of("[machine]\nname = m\n[device]\nbandwidth = 1\n"), HasSubstr("needs peak_fp32"));
  EXPECT_THAT(errors_of("[machine]\n[device]\npeak_fp32 = 1\n"),
              AllOf(HasSubstr("name is missing"), HasSubstr("bandwidth is missing")));
}

TEST(MachineFile, TablesAreWrittenAsTheyAreRead) {
  const std::string text =
      std::string(least) +
      "[products]\nlinear_forward bf16 4x8x16 = 1.5\n"
      "linear_forward gathered bf16 4x8x16 = 2.5\n"
      "[attention]\nattention_backward fp32 1x2x64x32 = 7\n"
      "[operations]\nadamw fp32 1000 = 4\nadamw fp32 2000 = 6\n"
      "[collectives]\nall_reduce network 16 1024 = 20\nall_reduce network 16 4096 = 30\n";
  const Machine machine = parse_machine(text, "m");
  const Machine again = parse_machine(least + machine_tables_text(machine), "again");
  EXPECT_EQ(machine_tables_text(again), machine_tables_text(machine));
  EXPECT_THAT(machine_tables_text(machine), HasSubstr("all_reduce network 16 4096 = 30"));
}

TEST(MachineTimes, ProductsTakeTheirTableOrRate) {
  Machine machine = parse_machine(
      std::string(least) + "product_share = 0.5\nproduct_latency = 10\nsustained_bf16 = 40\n", "m");
  MachineTimes times(machine);
  const Entry entry = product(1000, 1000, 1000, DType::bf16);
  EXPECT_NEAR(times.of_operation(entry), 2e9 / 40e12 + 10e-6, 1e-12);
  machine.products[{"linear_forward", DType::bf16}] = {{{1000, 1000, 1000}, 7.0}, {{4000, 1000, 1000}, 14.0}};
  EXPECT_EQ(times.of_operation(entry), 7.0);
  // Between two points, the rate is between theirs.
  const double between = times.of_operation(product(2000, 1000, 1000, DType::bf16));
  EXPECT_GT(between, 7.0);
  EXPECT_LT(between, 14.0);
  EXPECT_TRUE(times.fallbacks().empty());
  EXPECT_GT(times.of_operation(product(10, 10, 10, DType::fp32)), 0.0);
  EXPECT_EQ(times.fallbacks().size(), 1U);
}

TEST(MachineTimes, CollectivesTakeTheirTableOrLink) {
  Machine machine = parse_machine(
      std::string(least) +
          "[node]\nbandwidth = 100\nlatency = 2\n[network]\nadapters = 2\nadapter_rate = 80\nshare = 0.5\n"
          "latency = 3\n[collectives]\nall_reduce node 4 1000000 = 50\nall_reduce node 4 2000000 = 90\n",
      "m");
  MachineTimes times(machine);
  const auto all_reduce = [&](double bytes, GroupPlace place) {
    return times.of_call(CommOperation::all_reduce, bytes, place);
  };
  EXPECT_NEAR(all_reduce(1.5e6, {.ranks = 4}), 70e-6, 1e-12);
  EXPECT_NEAR(all_reduce(3e6, {.ranks = 4}), 130e-6, 1e-12);
  EXPECT_NEAR(times.of_call(CommOperation::all_gather, 1.5e6, {.ranks = 4}), 35e-6, 1e-12);
  EXPECT_NEAR(all_reduce(1e6, {.ranks = 2}), 2e-6 + 1e6 / 100e9, 1e-12);
  // 10 GB/s of a node's network, of which two groups use half each, and its latency twice.
  EXPECT_NEAR(all_reduce(1e6, {.ranks = 2, .nodes = 2, .sharing = 2}), 8e-6 + 1e6 / 5e9, 1e-12);
  EXPECT_EQ(all_reduce(1e6, {.ranks = 1}), 0.0);
}

}  // namespace
}  // namespace mylos
