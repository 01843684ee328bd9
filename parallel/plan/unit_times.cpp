// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/unit_times.hpp"

#include <array>
#include <map>
#include <set>
#include <sstream>

#include "core/base/statistics.hpp"
#include "core/model/program.hpp"

namespace mylos {

std::string unit_times_text(const Trace& trace) {
  if (trace.num_lost() > 0) return "";
  using Parts = std::array<double, 3>;          // forward, input, weight
  std::map<int, std::map<int, Parts>> seconds;  // by unit and micro-batch
  // An event is listed when it ends, and a phase ends after its operations.
  std::vector<const TraceEvent*> operations;
  for (const TraceEvent& event : trace.events()) {
    if (event.micro_batch < 0) continue;
    if (event.kind != TraceKind::phase) {
      if (event.kind == TraceKind::operation && event.entry != nullptr) operations.push_back(&event);
      continue;
    }
    for (const TraceEvent* own : operations) {
      const auto& entry = *static_cast<const Entry*>(own->entry);
      const std::size_t part = event.name == "forward" ? 0 : entry.is_deferrable ? 2 : 1;
      seconds[entry.block][own->micro_batch][part] += 1e-9 * static_cast<double>(own->end - own->begin);
    }
    operations.clear();
  }
  std::string text;
  for (const auto& [unit, by_micro_batch] : seconds) {
    text += fmt::format("{}", unit);
    for (std::size_t part = 0; part < Parts().size(); ++part) {
      std::vector<double> samples;
      for (const auto& [micro_batch, parts] : by_micro_batch) samples.push_back(parts[part]);
      text += fmt::format(" {}", median(samples));
    }
    text += "\n";
  }
  return text;
}

std::optional<std::vector<UnitCost>> with_times(std::vector<UnitCost> units,
                                                std::span<const std::string> texts) {
  std::set<std::size_t> known;
  for (const std::string& text : texts) {
    std::istringstream stream(text);
    std::size_t unit = 0;
    double forward = 0.0;
    double input = 0.0;
    double weight = 0.0;
    while (stream >> unit >> forward >> input >> weight) {
      if (unit >= units.size() || !known.insert(unit).second) continue;
      units[unit].forward = forward;
      units[unit].input = input;
      units[unit].weight = weight;
    }
  }
  if (known.size() < units.size()) return std::nullopt;
  return units;
}

}  // namespace mylos
