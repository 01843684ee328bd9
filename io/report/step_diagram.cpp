// SPDX-License-Identifier: BSD-3-Clause
#include "io/report/step_diagram.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/base/error.hpp"

namespace mylos {

namespace {

/// The time at which all but the first `most` spans begin.
std::int64_t end_of_excerpt(const std::vector<DiagramRow>& rows, std::size_t most) {
  std::vector<std::int64_t> begins;
  for (const DiagramRow& row : rows) {
    for (const WorkSpan& span : row.spans) begins.push_back(span.begin);
  }
  if (begins.size() <= most) return std::numeric_limits<std::int64_t>::max();
  const auto first_left_out = begins.begin() + static_cast<std::ptrdiff_t>(most);
  std::ranges::nth_element(begins, first_left_out);
  return *first_left_out;
}

std::int64_t last_end(const std::vector<DiagramRow>& rows) {
  std::int64_t end = 0;
  for (const DiagramRow& row : rows) end = std::max(end, row.end);
  return end;
}

WorkKind work_kind_of(char letter) {
  for (int i = 0; i < num_work_kinds; ++i) {
    const auto kind = static_cast<WorkKind>(i);
    if (letter == letter_of(kind)) return kind;
  }
  fail(ExitCode::bad_data, "no kind of work has the letter {}", letter);
}

/// Returns a member that is at least `least` and fits an int.
int small_integer(std::int64_t value, int least) {
  if (value < least || value > std::numeric_limits<int>::max())
    fail(ExitCode::bad_data, "{} is no number of a rank, stage, chunk or micro-batch", value);
  return static_cast<int>(value);
}

std::int64_t natural(const Json& json, std::string_view key) {
  const std::int64_t value = json.integer(key);
  if (value < 0) fail(ExitCode::bad_data, "{} = {} is negative", key, value);
  return value;
}

Json numbers_of(const std::vector<WorkSpan>& spans, const auto& number) {
  std::vector<Json> numbers;
  for (const WorkSpan& span : spans) numbers.emplace_back(span.*number);
  return Json::array(numbers);
}

Json json_of(const std::vector<DiagramRow>& rows) {
  std::vector<Json> elements;
  for (const DiagramRow& row : rows) elements.push_back(json_of(row));
  return Json::array(elements);
}

std::vector<DiagramRow> parse_rows(const Json& json, std::string_view key) {
  std::vector<DiagramRow> rows;
  for (const Json& row : json.elements(key)) rows.push_back(parse_diagram_row(row));
  return rows;
}

}  // namespace

void StepDiagram::finish(std::size_t most_spans) {
  simulated = last_end(simulation);
  traced = last_end(ranks);
  passes = 0;
  for (const DiagramRow& row : ranks) {
    for (const WorkSpan& span : row.spans) {
      if (is_pass(span.kind)) passes = std::max(passes, span.end);
    }
  }
  shown = std::min({std::max(simulated, traced), end_of_excerpt(simulation, most_spans),
                    end_of_excerpt(ranks, most_spans)});
  for (std::vector<DiagramRow>* rows : {&simulation, &ranks}) {
    for (DiagramRow& row : *rows)
      std::erase_if(row.spans, [&](const WorkSpan& span) { return span.begin >= shown; });
  }
}

Json json_of(const DiagramRow& row) {
  std::string kinds;
  for (const WorkSpan& span : row.spans) kinds += letter_of(span.kind);
  return Json::object({{"stage", row.stage},
                       {"rank", row.rank},
                       {"passes", row.passes},
                       {"busy", row.busy},
                       {"end", row.end},
                       {"kinds", kinds},
                       {"micro_batches", numbers_of(row.spans, &WorkSpan::micro_batch)},
                       {"chunks", numbers_of(row.spans, &WorkSpan::chunk)},
                       {"versions", numbers_of(row.spans, &WorkSpan::version)},
                       {"begins", numbers_of(row.spans, &WorkSpan::begin)},
                       {"ends", numbers_of(row.spans, &WorkSpan::end)}});
}

DiagramRow parse_diagram_row(const Json& json) {
  DiagramRow row{.stage = small_integer(json.integer("stage"), 0),
                 .rank = small_integer(json.integer("rank"), -1),
                 .passes = natural(json, "passes"),
                 .busy = natural(json, "busy"),
                 .end = natural(json, "end"),
                 .spans = {}};
  const std::string kinds = json.text("kinds");
  const std::vector<std::int64_t> micro_batches = json.integers("micro_batches");
  const std::vector<std::int64_t> chunks = json.integers("chunks");
  std::vector<std::int64_t> versions(kinds.size(), -1);  // that older runs do not name
  if (json.has("versions")) versions = json.integers("versions");
  const std::vector<std::int64_t> begins = json.integers("begins");
  const std::vector<std::int64_t> ends = json.integers("ends");
  for (const std::size_t size :
       {micro_batches.size(), chunks.size(), versions.size(), begins.size(), ends.size()}) {
    if (size != kinds.size()) fail(ExitCode::bad_data, "{} spans, not {}", size, kinds.size());
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (begins[i] < 0 || ends[i] < begins[i])
      fail(ExitCode::bad_data, "a span from {} to {} ns", begins[i], ends[i]);
    row.spans.push_back({.kind = work_kind_of(kinds[i]),
                         .micro_batch = small_integer(micro_batches[i], -1),
                         .chunk = small_integer(chunks[i], -1),
                         .begin = begins[i],
                         .end = ends[i],
                         .version = versions[i]});
  }
  return row;
}

Json json_of(const StepDiagram& diagram) {
  return Json::object({{"num_ranks", diagram.num_ranks},
                       {"num_stages", diagram.num_stages},
                       {"simulated", diagram.simulated},
                       {"passes", diagram.passes},
                       {"traced", diagram.traced},
                       {"shown", diagram.shown},
                       {"simulation", json_of(diagram.simulation)},
                       {"ranks", json_of(diagram.ranks)}});
}

StepDiagram parse_diagram(const Json& json) {
  return {.num_ranks = small_integer(json.integer("num_ranks"), 0),
          .num_stages = small_integer(json.integer("num_stages"), 0),
          .simulated = natural(json, "simulated"),
          .passes = natural(json, "passes"),
          .traced = natural(json, "traced"),
          .shown = natural(json, "shown"),
          .simulation = parse_rows(json, "simulation"),
          .ranks = parse_rows(json, "ranks")};
}

}  // namespace mylos
