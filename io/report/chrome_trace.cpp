// SPDX-License-Identifier: BSD-3-Clause
#include "io/report/chrome_trace.hpp"

#include <fstream>
#include <iterator>

#include "core/base/join.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"

namespace mylos {

namespace {

/// The labels that a viewer shows for the kinds of events, from top to bottom.
constexpr std::array<std::string_view, num_trace_kinds> thread_names = {"phases", "compute", "communication",
                                                                        "data"};

/// The summary is the first line, so that it is found without reading the events of all ranks.
constexpr std::string_view summary_opening = R"({"otherData":)";

TraceKind kind_named(const std::string& name) {
  for (int i = 0; i < num_trace_kinds; ++i) {
    if (name == name_of(static_cast<TraceKind>(i))) return static_cast<TraceKind>(i);
  }
  fail(ExitCode::bad_data, "no kind of event is called {}", name);
}

}  // namespace

std::string chrome_events(std::span<const TraceEvent> events, int rank) {
  std::string out;
  auto end = std::back_inserter(out);
  fmt::format_to(end, R"({{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"rank {0}"}}}})", rank);
  for (std::size_t i = 0; i < thread_names.size(); ++i) {
    fmt::format_to(end,
                   ",\n"
                   R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   rank, i, thread_names[i]);
  }
  for (const TraceEvent& event : events) {
    fmt::format_to(end,
                   ",\n"
                   R"({{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f})",
                   event.label(), name_of(event.kind), rank, static_cast<int>(event.kind),
                   1e-3 * static_cast<double>(event.begin),
                   1e-3 * static_cast<double>(event.end - event.begin));
    if (event.micro_batch >= 0)
      fmt::format_to(end, R"(,"args":{{"micro_batch":{},"chunk":{}}})", event.micro_batch, event.chunk);
    out += '}';
  }
  return out;
}

void write_chrome_trace(const std::filesystem::path& file, std::span<const std::string> events,
                        const TraceSummary& summary) {
  const auto& [profile, diagram] = summary;
  std::vector<Json> operations;
  for (const OperationTime& operation : profile.operations) {
    operations.push_back(Json::object({{"label", operation.label},
                                       {"kind", name_of(operation.kind)},
                                       {"calls", operation.calls},
                                       {"seconds", operation.seconds}}));
  }
  std::vector<Json::Member> members = {
      {"step", profile.step}, {"seconds", profile.seconds}, {"operations", Json::array(operations)}};
  if (!diagram.ranks.empty()) members.emplace_back("diagram", json_of(diagram));
  write_text_file(file, fmt::format("{}{},\n\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[\n{}\n]}}\n",
                                    summary_opening, Json::object(members).dump(), join(events, ",\n")));
}

std::optional<TraceSummary> read_summary(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line) || !line.starts_with(summary_opening) || !line.ends_with(','))
    return std::nullopt;
  line.pop_back();
  try {
    const Json json = Json::parse(line.substr(summary_opening.size()));
    TraceSummary summary;
    summary.profile.step = json.integer("step");
    summary.profile.seconds = json.real("seconds");
    for (const Json& operation : json.elements("operations")) {
      summary.profile.operations.push_back({.label = operation.text("label"),
                                            .kind = kind_named(operation.text("kind")),
                                            .calls = operation.integer("calls"),
                                            .seconds = operation.real("seconds")});
    }
    if (json.has("diagram")) summary.diagram = parse_diagram(json.at("diagram"));
    return summary;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace mylos
