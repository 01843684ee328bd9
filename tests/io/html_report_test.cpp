// SPDX-License-Identifier: BSD-3-Clause
// The report is complete, self-contained and small, whatever the metrics hold.
#include "io/report/html_report.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "io/json.hpp"
#include "io/report/html_plot.hpp"

namespace mylos {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

// Describes what is wrong with `html` as XML: tags that do not nest, stray '<' or '&', attributes without
// quotes. Empty if it finds none of these.
std::string malformed(std::string html) {
  std::vector<std::string> open;
  const std::size_t script = html.find("<![CDATA["), end_of_script = html.find("]]>");
  if (script != std::string::npos && end_of_script != std::string::npos)
    html.erase(script, end_of_script + 3 - script);
  const std::string_view rest = html;
  for (std::size_t at = html.find('<'); at != std::string_view::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    if (end == std::string_view::npos) return "tag without end";
    const std::string_view tag = rest.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string_view::npos) return "stray '<' before " + std::string(tag);
    if (tag.starts_with("!DOCTYPE")) continue;
    const bool closes = tag.starts_with('/');
    const std::string name(tag.substr(closes, tag.find_first_of(" \n/", closes) - closes));
    if (closes) {
      if (open.empty() || open.back() != name) return "unexpected </" + name + ">";
      open.pop_back();
    } else {
      for (std::size_t i = tag.find('='); i != std::string_view::npos;
           i = tag.find('=', tag.find('"', i + 2))) {
        if (tag.substr(i + 1, 1) != "\"") return "attribute without quotes in " + std::string(tag);
      }
      if (!tag.ends_with('/')) open.push_back(name);
    }
  }
  for (std::size_t at = html.find('&'); at != std::string_view::npos; at = html.find('&', at + 1)) {
    const std::string_view entity = rest.substr(at, html.find(';', at) - at);
    if (!std::set<std::string_view>{"&amp", "&lt", "&gt", "&quot"}.contains(entity)) return "stray '&'";
  }
  return open.empty() ? "" : "<" + open.back() + "> left open";
}

void expect_whole(const std::string& html) {
  EXPECT_EQ(malformed(html), "");
  EXPECT_EQ(html.find("http"), std::string::npos);
  for (std::size_t at = html.find("url("); at != std::string::npos; at = html.find("url(", at + 1))
    EXPECT_EQ(html.substr(at + 4, 1), "#") << "only what the file contains";
  EXPECT_EQ(html.find("src="), std::string::npos);
  for (const char* word : {"nan", "inf"}) {
    for (const char* before : {" ", "\"", "M", "L", ">"}) {
      EXPECT_EQ(html.find(before + std::string(word) + "%"), std::string::npos) << word;
      EXPECT_EQ(html.find(before + std::string(word) + "<"), std::string::npos) << word;
      EXPECT_EQ(html.find(before + std::string(word) + " "), std::string::npos) << word;
      EXPECT_EQ(html.find(before + std::string(word) + "\""), std::string::npos) << word;
    }
  }
}

// A run of `rows` steps with some of the columns that a trainer writes.
ReportData run_of(std::size_t rows) {
  ReportData data;
  data.title = "test";
  for (std::size_t i = 0; i < rows; ++i) {
    const auto step = static_cast<double>(i + 1);
    data.steps["step"].push_back(step);
    data.steps["loss"].push_back(2.0 + 8.0 / std::sqrt(step) + 0.1 * std::sin(7.0 * step));
    data.steps["learning_rate"].push_back(6e-4 / (1.0 + 1e-3 * step));
    data.steps["gradient_norm"].push_back(0.5 + 1000.0 / (step * step));
    data.steps["tokens"].push_back(4096.0 * step);
    data.steps["tokens_per_second"].push_back(12345.0 + 100.0 * std::cos(step));
    data.steps["mfu"].push_back(0.4);
    data.steps["skipped"].push_back(i % 100 == 99 ? 1.0 : 0.0);
    for (const char* phase : {"forward", "backward", "optimizer"}) {
      data.steps[std::string("time_") + phase].push_back(0.1);
    }
    data.steps["time_step"].push_back(0.33);
  }
  return data;
}

// The data of the plots, in their order.
std::vector<Json> plots_of(const std::string& html) {
  constexpr std::string_view begin = R"(<script type="application/json">)";
  std::vector<Json> plots;
  for (std::size_t at = html.find(begin); at != std::string::npos; at = html.find(begin, at)) {
    at += begin.size();
    plots.push_back(Json::parse(std::string_view(html).substr(at, html.find("</script>", at) - at)));
  }
  return plots;
}

// Every curve of the page with the texts of its values; "null" is a gap.
std::vector<std::vector<std::string>> curves_of(const std::string& html) {
  std::vector<std::vector<std::string>> curves;
  for (const Json& plot : plots_of(html)) {
    for (const Json& curve : plot.elements("curves")) {
      std::vector<std::string>& values = curves.emplace_back();
      for (const Json& value : curve.elements("values")) values.push_back(value.dump());
      EXPECT_EQ(curve.elements("steps").size(), values.size());
    }
  }
  return curves;
}

TEST(HtmlReport, EmptyRun) {
  const std::string html = html_report({});
  expect_whole(html);
  EXPECT_NE(html.find("No values recorded."), std::string::npos);
}

TEST(HtmlReport, OneRow) {
  const std::string html = html_report(run_of(1));
  expect_whole(html);
  for (const std::vector<std::string>& curve : curves_of(html)) EXPECT_EQ(curve.size(), 1U);
}

TEST(HtmlReport, ShowsThePayloadOfAStepByAxisAndOperation) {
  ReportData data = run_of(3);
  EXPECT_EQ(html_report(data).find("Communication of a step"), std::string::npos);
  data.steps["payload_shard_all_gather"] = {6e9, 3e9, 3e9};
  data.steps["payload_replicate_all_reduce"] = {nan, 1e9, 1e9};
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_NE(html.find("shard all gather</th><td>3.000 GB</td><td>75.0 %"), std::string::npos);
  EXPECT_NE(html.find("replicate all reduce</th><td>1.000 GB</td><td>25.0 %"), std::string::npos);
}

TEST(HtmlReport, DrawsTheWaitsByAxis) {
  ReportData data = run_of(3);
  EXPECT_EQ(html_report(data).find("Waiting for communication"), std::string::npos);
  data.steps["wait_tensor"] = {0.5, nan, 0.25};
  data.steps["wait_tensor+data"] = {0.0, 0.125, 0.125};
  const std::string html = html_report(data);
  expect_whole(html);
  for (const char* text : {"Waiting for communication", R"(<i class="stroke c0"></i>tensor<b)",
                           R"(<i class="stroke c1"></i>tensor+data<b)"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
}

TEST(HtmlReport, HeadlinesAndMarks) {
  ReportData data = run_of(500);
  data.evaluations = {{"step", {100.0, 200.0, 300.0}}, {"loss", {2.5, 2.125, nan}}};
  data.launches = {
      {"step", {0.0, 200.0}}, {"unix_time", {0.0, 86400.0}}, {"ranks", {2.0, 4.0}}, {"threads", {1.0, 1.0}}};
  data.launches["time_launch"] = {3.0, 9.5};
  data.launches["time_restore"] = {0.0, 0.75};
  data.checkpoints = {{"step", {250.0, 500.0}},
                      {"bytes", {1.5e9, 1.5e9}},
                      {"time_stall", {0.25, 0.25}},
                      {"time_write", {1.25, 1.5}},
                      {"time_verify", {1.0, 1.0}}};
  data.facts = {{"status", "finished"}, {"model", "124.4 million parameters"}};
  data.memory_bytes = {{"parameters", 1.0e9}, {"optimizer", 3.0e9}, {"workspace", 0.0}};
  data.steps["memory_peak_min"].assign(500, 4.25e9);
  data.steps["memory_peak_median"].assign(500, 4.5e9);
  data.steps["memory_peak_max"].assign(500, 5.5e9);
  const std::string html = html_report(data);
  expect_whole(html);
  for (const char* text : {"2.125",
                           "at step 200",
                           "40.0 %",
                           "2.05M",
                           "2 min 45 s",
                           "1 restart",
                           "5 skipped",
                           "skipped steps: 5",
                           "12.3k",
                           "restart on 4 ranks",
                           "1970-01-02 00:00 UTC, at step 200, 4 ranks, 1 thread each",
                           ">finished<",
                           "1.500 GB each",
                           "training waits, 1.4 s to write",
                           "9.5 s",
                           "0.8 s of it for the checkpoint",
                           "1.000 GB",
                           "75.0 %",
                           "4.000 GB",
                           "Peak memory</dt><dd>5.500 GB",
                           "4.250 GB min, 4.500 GB median, 5.500 GB max",
                           "\"log\":true",
                           "124.4 million parameters"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
}

TEST(HtmlReport, LossScaleWhereItChanges) {
  ReportData data = run_of(500);
  data.steps["loss_scale"].assign(500, 1.0);
  EXPECT_EQ(html_report(data).find("Loss scale"), std::string::npos);
  std::fill_n(data.steps["loss_scale"].begin(), 99, 65536.0);
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_NE(html.find("Loss scale"), std::string::npos);
}

TEST(HtmlReport, BarsOfTimeByOperation) {
  ReportData data = run_of(5);
  EXPECT_EQ(html_report(data).find("Time by operation"), std::string::npos);
  data.profile = {.step = 1234,
                  .seconds = 1.0,
                  .operations = {{"linear_forward 768x50304", TraceKind::operation, 2, 0.5},
                                 {"all_reduce wait", TraceKind::communication, 3, 0.25},
                                 {"read_samples", TraceKind::data, 1, 0.125}}};
  std::string html = html_report(data);
  expect_whole(html);
  for (const char* text : {"step 1,234 of rank 0: 1000.0 ms, 87.5 % covered", "linear_forward 768x50304",
                           R"(width="100.00%" height="100%" class="c0")", ">500.00 ms<", ">50.0 %<",
                           R"(width="50.00%" height="100%" class="c1")",
                           R"(width="25.00%" height="100%" class="c2")", "not covered", ">125.00 ms<"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  for (int i = 0; i < 40; ++i)
    data.profile.operations.push_back({fmt::format("operation {}", i), TraceKind::operation, 1, 1e-4});
  html = html_report(data);
  expect_whole(html);
  EXPECT_NE(html.find("23 others"), std::string::npos);
  EXPECT_NE(html.find("operation 16<"), std::string::npos);
  EXPECT_EQ(html.find("operation 17<"), std::string::npos);
}

// A pipeline of `stages` ranks with `micro_batches`, whose passes take 1 ms each. In the traced step, the
// last forward pass has a wait in it, and an update follows.
StepDiagram diagram_of(int stages, int micro_batches) {
  constexpr std::int64_t pass = 1'000'000;
  StepDiagram diagram{.num_ranks = stages, .num_stages = stages, .simulation = {}, .ranks = {}};
  for (int stage = 0; stage < stages; ++stage) {
    DiagramRow row{
        .stage = stage, .passes = 2 * micro_batches, .busy = 2 * micro_batches * pass, .spans = {}};
    for (int i = 0; i < 2 * micro_batches; ++i) {
      const std::int64_t begin = (stage + i) * pass;
      const WorkKind kind = i < micro_batches ? WorkKind::forward : WorkKind::backward;
      row.spans.push_back({kind, i % micro_batches, stage, begin, begin + pass});
    }
    row.end = row.spans.back().end;
    diagram.simulation.push_back(row);
    row.rank = stage;
    WorkSpan& last = row.spans[static_cast<std::size_t>(micro_batches) - 1];
    const WorkSpan rest{last.kind, last.micro_batch, last.chunk, last.begin + 600'000, last.end};
    last.end -= 600'000;
    row.spans.insert(row.spans.begin() + micro_batches,
                     {{WorkKind::wait, -1, -1, last.end, rest.begin}, rest});
    row.spans.push_back({WorkKind::update, -1, -1, row.end, row.end + pass});
    row.end += pass;
    row.busy += pass - 200'000;
    diagram.ranks.push_back(row);
  }
  diagram.finish(2500);
  return diagram;
}

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(HtmlReport, DrawsTheScheduleOfAPipeline) {
  ReportData data = run_of(5);
  data.profile.step = 3;
  EXPECT_EQ(html_report(data).find("Schedule of the pipeline"), std::string::npos);
  data.diagram = diagram_of(2, 4);
  const std::string html = html_report(data);
  expect_whole(html);
  for (const char* text :
       {"step 3: simulated 9.00 ms", "traced 10.00 ms, 1.11 times as long", "ends at 9.00 ms, 1.00 times",
        "<b>F</b> forward", "<b>B</b> backward", "<b>U</b> update", "waiting for other ranks",
        R"(<li><b>stage 1</b>idle 11.1 %</li>)", R"(<li><b>stage 1</b>idle 12.0 %</li>)", ">F3</text>",
        R"(<pattern id="work-F")", R"(<pattern id="work-B")", R"(<pattern id="work-U")",
        "<title>forward, micro-batch 2, 3.00 to 4.00 ms</title>",
        "<title>waiting for other ranks, 3.40 to 3.60 ms</title>", "<title>end of the simulation</title>",
        R"(<th scope="row">stage 1</th><td>8</td><td>8.00</td><td>8.80</td><td>11.1 %</td><td>12.0 %</td>)",
        R"(<th scope="row">stage 0</th><td>forward</td><td>3</td><td>0</td><td>3.00 to 4.00</td>)"
        R"(<td>3.00 to 4.00</td>)"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(html.find("work-W"), std::string::npos) << "kinds that do not occur";
  EXPECT_EQ(html.find(" are drawn"), std::string::npos);
}

TEST(HtmlReport, NamesTheChunkOfAPassIfAStageHasSeveral) {
  ReportData data = run_of(1);
  data.diagram = diagram_of(2, 4);
  for (std::vector<DiagramRow>* rows : {&data.diagram.simulation, &data.diagram.ranks}) {
    for (DiagramRow& row : *rows) row.spans.front().chunk += 2;
  }
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_NE(html.find(">3F0</text>"), std::string::npos);
  EXPECT_NE(html.find("<title>forward, micro-batch 0, chunk 3, "), std::string::npos);
}

TEST(HtmlReport, NamesTheVersionOfAPassIfStepsOverlap) {
  ReportData data = run_of(1);
  data.diagram = diagram_of(2, 4);
  EXPECT_EQ(html_report(data).find("version"), std::string::npos);
  for (std::vector<DiagramRow>* rows : {&data.diagram.simulation, &data.diagram.ranks}) {
    for (DiagramRow& row : *rows) row.spans.front().version = 41;
  }
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_NE(html.find(">F0:41</text>"), std::string::npos);
  EXPECT_NE(html.find("<title>forward, micro-batch 0, version 41 of the weights, "), std::string::npos);
}

TEST(HtmlReport, DrawsManyStagesAndTheBeginningOfALongStep) {
  ReportData data = run_of(5);
  data.diagram = diagram_of(48, 8);
  std::string html = html_report(data);
  expect_whole(html);
  EXPECT_NE(html.find("<b>stage 47</b>"), std::string::npos);

  data.diagram = diagram_of(4, 20'000);
  html = html_report(data);
  expect_whole(html);
  EXPECT_LT(html.size(), 1'200'000U);
  EXPECT_LE(count_of(html, "<rect x="), 5100U);
  EXPECT_GE(count_of(html, "<rect x="), 4800U);
  EXPECT_NE(html.find("Only the first 626.0 of 40004.0 ms are drawn"), std::string::npos);

  data.diagram = diagram_of(4, 4);
  data.diagram.num_ranks = 64;
  EXPECT_NE(html_report(data).find("4 of 64 ranks are drawn: the first of each stage."), std::string::npos);
}

TEST(HtmlReport, ADiagramWithoutTimesOrSimulation) {
  ReportData data = run_of(1);
  data.diagram = diagram_of(2, 4);
  data.diagram.simulation.clear();
  data.diagram.simulated = 0;  // no operation fitted into the trace
  expect_whole(html_report(data));
  data.diagram.shown = 0;
  EXPECT_EQ(html_report(data).find("Schedule of the pipeline"), std::string::npos);
  data.diagram = diagram_of(2, 4);
  for (DiagramRow& row : data.diagram.ranks) {
    for (WorkSpan& span : row.spans) span.begin = span.end = 0;
  }
  for (DiagramRow& row : data.diagram.simulation) row.spans.clear();
  expect_whole(html_report(data));
  data.diagram.shown = data.diagram.traced = std::numeric_limits<std::int64_t>::max();
  expect_whole(html_report(data));
}

TEST(HtmlReport, EscapesEveryText) {
  ReportData data = run_of(3);
  const std::string evil = "<script>alert('x' && \"y\")</script>\x01";
  data.title = data.deck_text = evil;
  data.facts = {{"status", evil}, {evil, evil}};
  data.memory_bytes = {{evil, 1.0}};
  data.profile = {.step = 1, .seconds = 1.0, .operations = {{evil, TraceKind::data, 1, 1.0}}};
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_EQ(html.find("<script>alert"), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
}

TEST(HtmlReport, NoTextEndsTheElementOfData) {
  const Json evil = Json::object({{"</script>", "]]> &amp; <!--"}});
  const std::string element = html::data_element(evil);
  const std::string_view text = std::string_view(element).substr(element.find('>') + 1);
  EXPECT_EQ(text.find_first_of("<>&"), text.find("</script>"));
  EXPECT_EQ(Json::parse(text.substr(0, text.find('<'))).dump(), evil.dump());
}

TEST(HtmlReport, ReplacesWhatIsNotUtf8) {
  ReportData data = run_of(3);
  data.title = "caf\xe9 \xc3\xa9\xef\xbf\xbf";  // Latin-1, then UTF-8, whose last character XML forbids
  const std::string html = html_report(data);
  EXPECT_EQ(html.find('\xe9'), std::string::npos);
  EXPECT_NE(html.find("caf\xef\xbf\xbd \xc3\xa9\xef\xbf\xbd"), std::string::npos);
}

TEST(HtmlReport, ValuesThatAreNotFinite) {
  for (const double bad : {nan, inf, -inf, 1e308, -1e308}) {
    ReportData data = run_of(50);
    for (auto& [name, values] : data.steps) values[17] = bad;
    data.steps["mfu"].assign(50, bad);
    data.evaluations = {{"step", {bad, 10.0}}, {"loss", {1.0, bad}}};
    data.launches = {
        {"step", {0.0, bad}}, {"unix_time", {bad, bad}}, {"ranks", {2.0, bad}}, {"threads", {bad}}};
    data.memory_bytes = {{"parameters", bad}};
    expect_whole(html_report(data));
    for (auto& [name, values] : data.steps) values.assign(50, bad);
    expect_whole(html_report(data));
  }
}

std::string final_loss(const ReportData& data) {
  const std::string html = html_report(data);
  constexpr std::string_view before = "Final training loss</dt><dd>";
  const std::size_t begin = html.find(before) + before.size();
  return html.substr(begin, html.find('<', begin) - begin);
}

TEST(HtmlReport, ALossThatIsNotFiniteIsTheFinalOne) {
  for (const double bad : {nan, inf}) {
    ReportData data = run_of(50);
    data.steps["loss"].back() = bad;
    EXPECT_EQ(final_loss(data), "not finite");
  }
}

TEST(HtmlReport, OneHugeLossDoesNotSpoilTheMeansAfterIt) {
  ReportData data = run_of(1000);
  data.steps["loss"].assign(1000, 2.5);
  data.steps["loss"][400] = 1e25;
  EXPECT_EQ(final_loss(data), "2.500");
  data.steps["loss"][995] = 4.5;  // the mean of the last 11 rows has one more
  EXPECT_EQ(final_loss(data), "2.682");
}

TEST(HtmlReport, GapsAndColumnsOfUnequalLength) {
  ReportData data = run_of(10);
  data.steps["loss"][4] = nan;
  data.steps["tokens_per_second"].resize(3);
  data.steps.erase("gradient_norm");
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_EQ(std::ranges::count(curves_of(html)[1], "null"), 1);
  EXPECT_EQ(curves_of(html)[1].size(), 10U);
}

TEST(HtmlReport, AColumnThatComesLateKeepsItsMean) {
  ReportData data = run_of(100);
  data.steps["time_data"].assign(100, nan);
  std::fill_n(data.steps["time_data"].begin() + 90, 10, 0.02);
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_NE(html.find("data</th><td>20.0</td><td>20.0</td>"), std::string::npos);
}

TEST(HtmlReport, AMillionRowsStaySmallAndKeepTheExtremes) {
  ReportData data = run_of(1'000'000);
  data.steps["learning_rate"][654'321] = 1.0;  // must survive the thinning, so that the axis reaches it
  for (int i = 0; i < 5000; ++i) {
    data.evaluations["step"].push_back(200.0 * i);
    data.evaluations["loss"].push_back(2.0 + 1.0 / (1.0 + i));
    data.launches["step"].push_back(200.0 * i);
  }
  const std::string html = html_report(data);
  expect_whole(html);
  EXPECT_LT(html.size(), 1'000'000U);
  const std::vector<std::vector<std::string>> curves = curves_of(html);
  EXPECT_EQ(curves.size(), 8U);
  for (const std::vector<std::string>& curve : curves) EXPECT_LE(curve.size(), 600U);
  const Json rates = plots_of(html)[1];
  EXPECT_EQ(rates.elements("y")[1].dump(), "1.0");
  const std::vector<std::int64_t> steps = rates.elements("curves")[0].integers("steps");
  const auto peak = std::ranges::find(steps, 654'322) - steps.begin();
  ASSERT_LT(peak, std::ssize(steps));
  EXPECT_EQ(curves[3][static_cast<std::size_t>(peak)], "1");
}

}  // namespace
}  // namespace mylos
