// SPDX-License-Identifier: BSD-3-Clause
// The summary of a traced step is read back from its file, and refused if it is damaged.
#include "io/report/step_diagram.hpp"

#include <gtest/gtest.h>

#include "io/file_util.hpp"
#include "io/report/chrome_trace.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

StepDiagram small_diagram() {
  StepDiagram diagram{.num_ranks = 2, .num_stages = 2, .simulation = {}, .ranks = {}};
  for (int stage = 0; stage < 2; ++stage) {
    const DiagramRow row{.stage = stage,
                         .passes = 2,
                         .busy = 30,
                         .end = 40 + stage,
                         .spans = {{WorkKind::forward, 0, stage, 0, 10},
                                   {WorkKind::wait, -1, -1, 10, 20},
                                   {WorkKind::backward_weight, 0, stage, 20, 40}}};
    diagram.simulation.push_back(row);
    diagram.ranks.push_back(row);
    diagram.ranks.back().rank = stage;
  }
  diagram.finish(100);
  return diagram;
}

TEST(StepDiagram, SetsItsTimes) {
  const StepDiagram diagram = small_diagram();
  EXPECT_EQ(diagram.simulated, 41);
  EXPECT_EQ(diagram.traced, 41);
  EXPECT_EQ(diagram.passes, 40);
  EXPECT_EQ(diagram.shown, 41);
}

TEST(StepDiagram, LeavesOutTheEndOfALongStep) {
  StepDiagram diagram = small_diagram();
  diagram.ranks.back().spans.pop_back();
  diagram.finish(4);
  EXPECT_EQ(diagram.shown, 20);
  for (const auto* rows : {&diagram.simulation, &diagram.ranks}) {
    for (const DiagramRow& row : *rows) EXPECT_EQ(row.spans.size(), 2U);
  }
  EXPECT_EQ(diagram.traced, 41);
}

TEST(StepDiagram, IsReadBackFromJson) {
  const StepDiagram diagram = small_diagram();
  EXPECT_EQ(parse_diagram(Json::parse(json_of(diagram).dump())), diagram);
  EXPECT_EQ(parse_diagram(json_of(StepDiagram())), StepDiagram());
}

TEST(StepDiagram, RefusesWhatIsDamaged) {
  const std::string text = json_of(small_diagram()).dump();
  for (const auto& [part, damage] : std::initializer_list<std::pair<std::string, std::string>>{
           {R"("kinds":"F-W")", R"("kinds":"F-")"},
           {R"("kinds":"F-W")", R"("kinds":"F-X")"},
           {R"("begins":[0,10,20])", R"("begins":[0,10,41])"},
           {R"("begins":[0,10,20])", R"("begins":[-1,10,20])"},
           {R"("begins":[0,10,20])", R"("begins":[0,10,"20"])"},
           {R"("micro_batches":[0,-1,0])", R"("micro_batches":[0,-1])"},
           {R"("micro_batches":[0,-1,0])", R"("micro_batches":[0,-1,4294967296])"},
           {R"("busy":30)", R"("busy":-30)"},
           {R"("busy":30,)", ""},
           {R"("shown":41)", R"("shown":-1)"},
           {R"("num_ranks":2)", R"("num_ranks":null)"}}) {
    std::string damaged = text;
    ASSERT_NE(damaged.find(part), std::string::npos) << part;
    damaged.replace(damaged.find(part), part.size(), damage);
    EXPECT_THROW(parse_diagram(Json::parse(damaged)), Error) << damage;
  }
}

class TraceSummaryFile : public testing::Test {
 protected:
  std::filesystem::path file() const { return directory_.path() / "trace-3.json"; }
  void write(const StepDiagram& diagram) const {
    write_chrome_trace(
        file(), std::vector<std::string>{"{}"},
        {.profile = {.step = 3, .seconds = 0.5, .operations = {{"linear", TraceKind::operation, 2, 0.25}}},
         .diagram = diagram});
  }
  ScratchDirectory directory_;
};

TEST_F(TraceSummaryFile, HoldsADiagram) {
  write(small_diagram());
  const auto summary = read_summary(file());
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->profile.step, 3);
  EXPECT_EQ(summary->profile.operations.size(), 1U);
  EXPECT_EQ(summary->diagram, small_diagram());
}

TEST_F(TraceSummaryFile, HoldsNoneOfARunWithoutStages) {
  write({});
  EXPECT_EQ(read_text_file(file()).find("diagram"), std::string::npos);
  const auto summary = read_summary(file());
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->diagram, StepDiagram());
}

TEST_F(TraceSummaryFile, IsEmptyIfDamagedAnywhere) {
  write(small_diagram());
  const std::string whole = read_text_file(file());
  const std::size_t line = whole.find('\n');
  for (std::size_t size = 0; size < line; size += 7) {
    write_text_file(file(), whole.substr(0, size));
    EXPECT_FALSE(read_summary(file())) << size;
  }
  std::string other = whole;
  other.replace(other.find("F-W"), 3, "F-?");
  write_text_file(file(), other);
  EXPECT_FALSE(read_summary(file()));
  std::filesystem::remove(file());
  EXPECT_FALSE(read_summary(file()));
}

}  // namespace
}  // namespace mylos::test
