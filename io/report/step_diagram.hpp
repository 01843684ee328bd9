// SPDX-License-Identifier: BSD-3-Clause
// StepDiagram: what the ranks of a pipeline did in a traced step and when, and the same step simulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "io/json.hpp"

namespace mylos {

/// What a rank does. `other` is reading samples and posting messages. `wait` is for other ranks, also within
/// a pass.
enum class WorkKind : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  reduce,
  update,
  other,
  wait
};
inline constexpr int num_work_kinds = 8;

/// The letter of a kind, in files and drawings.
constexpr char letter_of(WorkKind kind) {
  constexpr std::string_view letters = "FBIWRUO-";
  return letters[static_cast<std::size_t>(kind)];
}
constexpr bool is_pass(WorkKind kind) {
  return kind <= WorkKind::backward_weight;
}

/// A part of a step. Times are in nanoseconds since the step began.
struct WorkSpan {
  WorkKind kind = WorkKind::forward;
  int micro_batch = -1;  ///< of a pass, otherwise -1
  int chunk = -1;        ///< likewise
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t version = -1;  ///< of a pass if steps overlap: the updates that made the weights

  bool operator==(const WorkSpan&) const = default;
};

/// What one rank does, or one stage of the simulation.
struct DiagramRow {
  int stage = 0;
  int rank = -1;            ///< -1: of the simulation
  std::int64_t passes = 0;  ///< their number
  std::int64_t busy = 0;    ///< time in everything but waits
  std::int64_t end = 0;     ///< of the rank's step, or of the stage's last pass
  /// In order of time. A pass is in several pieces if the rank waits within it.
  std::vector<WorkSpan> spans;

  bool operator==(const DiagramRow&) const = default;
};

struct StepDiagram {
  int num_ranks = 0;
  int num_stages = 0;
  std::int64_t simulated = 0;  ///< the end of the last pass of the simulation
  std::int64_t passes = 0;     ///< the end of the last pass of the traced step
  std::int64_t traced = 0;     ///< the end of the traced step
  std::int64_t shown = 0;      ///< spans that begin later are left out
  std::vector<DiagramRow> simulation;
  std::vector<DiagramRow> ranks;

  /// Sets all times from the rows, then leaves out the later part of the step if the simulation or the ranks
  /// have more than `most_spans` spans in all.
  void finish(std::size_t most_spans);

  bool operator==(const StepDiagram&) const = default;
};

Json json_of(const DiagramRow& row);
/// Throws ExitCode::bad_data if `json` is not what json_of returns.
DiagramRow parse_diagram_row(const Json& json);

Json json_of(const StepDiagram& diagram);
/// Throws ExitCode::bad_data if `json` is not what json_of returns.
StepDiagram parse_diagram(const Json& json);

}  // namespace mylos
