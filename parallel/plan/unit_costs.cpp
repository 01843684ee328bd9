// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/unit_costs.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/number_text.hpp"
#include "core/model/model_programs.hpp"

namespace mylos {

namespace {

/// The chunks of a model with one block: embedding, block, head.
constexpr ScheduleKind one_unit_per_chunk{
    .name = "units", .doc = "a chunk for each unit of a model with one block", .chunks = 3};

/// The FLOPs of a program, or its seconds if there are times. A program without FLOPs moves data, as
/// EmbeddingForward does: an operation per 4 bytes.
double cost_of(const Program& program, MachineTimes* times) {
  if (times != nullptr) {
    double seconds = 0.0;
    for (const Entry& entry : program.entries) seconds += times->of_operation(entry);
    return seconds;
  }
  double flops = 0.0;
  double bytes = 0.0;
  for (const Entry& entry : program.entries) {
    flops += flops_of(entry);
    bytes += static_cast<double>(bytes_of(entry));
  }
  return flops > 0.0 ? flops : bytes / 4.0;
}

std::int64_t parameters_of_unit(const ParameterTable& table, int unit) {
  std::int64_t parameters = 0;
  for (const int index : table.unit(unit).parameters)
    parameters += table.parameters()[static_cast<std::size_t>(index)].size();
  return parameters;
}

/// The bytes of activations of forward passes that a chunk's backward pass reads before it writes them.
std::int64_t kept_bytes(const ModelPrograms& programs, const ChunkPrograms& chunk) {
  std::set<int> made, kept, written;
  for (const ChunkPrograms& other : programs.chunks) {
    for (const Entry& entry : other.forward.entries) made.merge(accesses_of(entry).writes);
  }
  for (const Program& part : chunk.backward) {
    for (const Entry& entry : part.entries) {
      const auto [reads, writes] = accesses_of(entry);
      for (const int storage : reads) {
        if (made.contains(storage) && !written.contains(storage)) kept.insert(storage);
      }
      written.insert(writes.begin(), writes.end());
    }
  }
  std::int64_t bytes = 0;
  for (const int storage : kept) bytes += static_cast<std::int64_t>(programs.storages.at(storage).bytes);
  return bytes;
}

/// The costs of embedding, block and head of a model with one block, which has experts and is routed if the
/// model has such blocks.
std::vector<UnitCost> costs_with_one_block(StepConfig small, MachineTimes* times) {
  small.model.layers = 1;
  small.model.experts.every = 1;
  small.model.depths.every = 1;
  small.parallel.pipeline = 1;
  small.parallel.data = small.parallel.expert;
  small.parallel.shard = 1;
  small.parallel.replicas = {};
  small.parallel.emulated_stages = 1;
  small.parallel.schedule = &one_unit_per_chunk;
  small.parallel.placement = {};
  small.parallel.cuts = {1, 2};
  small.cache = {};
  const Coordinates coordinates = small.parallel.coordinates(0);
  const ParameterTable table = small.table(coordinates);
  const Schedule split_backward{.actions = {{ActionKind::backward_weight}}};
  const ModelPrograms programs =
      record_programs(small.model, table, small.programs(split_backward, coordinates));

  std::vector<UnitCost> units;
  for (int block = 0; block < std::ssize(programs.chunks); ++block) {
    const ChunkPrograms& chunk = programs.chunks[static_cast<std::size_t>(block)];
    const auto output_bytes = chunk.output < 0 ? 0 : programs.storages.at(chunk.output).bytes;
    std::int64_t parameters = 0;
    for (const int unit : small.cuts().units(small.model, {block}))
      parameters += parameters_of_unit(table, unit);
    units.push_back({.name = table.unit(block).name,
                     .forward = cost_of(chunk.forward, times),
                     .input = cost_of(chunk.backward.front(), times),
                     .weight = cost_of(chunk.backward.back(), times),
                     .parameters = parameters,
                     .output_bytes = static_cast<std::int64_t>(output_bytes),
                     .kept_bytes = kept_bytes(programs, chunk)});
  }
  return units;
}

std::vector<UnitCost> all_costs(const StepConfig& config, MachineTimes* times) {
  std::vector<UnitCost> units;
  std::map<std::pair<bool, bool>, UnitCost> blocks;  // by whether they have experts and are routed
  for (std::int64_t layer = 0; layer < config.model.layers; ++layer) {
    const std::pair kind{config.model.experts.are_in(layer), config.model.depths.are_in(layer)};
    if (!blocks.contains(kind)) {
      StepConfig alike = config;
      if (!kind.first) alike.model.experts = {};
      if (!kind.second) alike.model.depths = {};
      const std::vector<UnitCost> costs = costs_with_one_block(alike, times);
      blocks[kind] = costs[1];
      if (units.empty()) units = {costs.front(), costs.back()};
    }
    units.insert(units.end() - 1, blocks[kind])->name = fmt::format("block {}", layer);
  }
  return units;
}

}  // namespace

std::vector<UnitCost> unit_costs(const StepConfig& config) {
  return all_costs(config, nullptr);
}

std::vector<UnitCost> unit_costs(const StepConfig& config, MachineTimes& times) {
  return all_costs(config, &times);
}

std::vector<UnitCost> chunk_costs(const std::vector<UnitCost>& units, const ModelCuts& cuts) {
  const ModelConfig model{.layers = std::ssize(units) - 2};
  std::vector<UnitCost> chunks(static_cast<std::size_t>(cuts.chunks));
  for (int chunk = 0; chunk < cuts.chunks; ++chunk) {
    UnitCost& sum = chunks[static_cast<std::size_t>(chunk)];
    const bool is_last = chunk + 1 == cuts.chunks;
    const int end = cuts.first_block(model, chunk + 1) + (is_last ? 1 : 0);  // the head follows the blocks
    for (int unit = cuts.first_block(model, chunk); unit < end; ++unit) {
      const UnitCost& own = units[static_cast<std::size_t>(unit)];
      sum.forward += own.forward;
      sum.input += own.input;
      sum.weight += own.weight;
      sum.parameters += own.parameters;
      sum.output_bytes = own.output_bytes;
      sum.kept_bytes += own.kept_bytes;
    }
  }
  return chunks;
}

std::vector<PassTimes> pass_times(const std::vector<UnitCost>& units, const ModelCuts& cuts) {
  std::vector<PassTimes> times;
  for (const UnitCost& chunk : chunk_costs(units, cuts))
    times.push_back({.forward = chunk.forward, .input = chunk.input, .weight = chunk.weight});
  return times;
}

namespace {

constexpr std::string_view profile_header = "unit,forward,input,weight,parameters,output_bytes,kept_bytes";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const std::size_t first = std::min(text.find_first_not_of(blanks), text.size());
  return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells = split(line, ',');
  std::ranges::transform(cells, cells.begin(), trimmed);
  return cells;
}

/// Returns the value of a column, which is no less than 0, as `parse` reads it.
auto number_of(std::string_view column, std::string_view cell, const auto& parse) {
  try {
    const auto number = parse(cell);
    if (number < 0) fail(ExitCode::usage, "is negative");
    return number;
  } catch (const Error& error) {
    fail(error.code(), "{} = \"{}\" {}", column, cell, error.what());
  }
}

UnitCost parse_row(std::span<const std::string_view> columns, std::span<const std::string_view> cells) {
  if (cells.size() != columns.size())
    fail(ExitCode::usage, "{} values, not {}", cells.size(), columns.size());
  const auto seconds = [&](std::size_t column) {
    return number_of(columns[column], cells[column],
                     [](std::string_view cell) { return parse_real(cell, "seconds"); });
  };
  const auto count = [&](std::size_t column) {
    return number_of(columns[column], cells[column], [](std::string_view cell) {
      const std::optional<std::int64_t> number = parse_integer(cell);
      if (!number) fail(ExitCode::usage, "does not fit 64 bits");
      return *number;
    });
  };
  return {.name = std::string(cells[0]),
          .forward = seconds(1),
          .input = seconds(2),
          .weight = seconds(3),
          .parameters = count(4),
          .output_bytes = count(5),
          .kept_bytes = count(6)};
}

}  // namespace

std::vector<UnitCost> parse_unit_profile(std::string_view text) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  const std::vector<std::string_view> columns = split(profile_header, ',');
  std::vector<UnitCost> units;
  bool has_header = false;
  int number = 0;
  for (const std::string_view line : lines_of(text)) {
    ++number;
    if (trimmed(line).empty()) continue;
    try {
      const std::vector<std::string_view> cells = cells_of(line);
      if (has_header) {
        units.push_back(parse_row(columns, cells));
      } else if (cells != columns) {
        fail(ExitCode::usage, "the header is not {}", profile_header);
      }
      has_header = true;
    } catch (const Error& error) {
      fail(error.code(), "line {}: {}", number, error.what());
    }
  }
  if (!has_header) fail(ExitCode::usage, "no profile: it begins with {}", profile_header);
  return units;
}

std::string unit_profile_text(const std::vector<UnitCost>& units) {
  std::string text = fmt::format("{}\n", profile_header);
  for (const UnitCost& unit : units) {
    text += fmt::format("{},{},{},{},{},{},{}\n", unit.name, unit.forward, unit.input, unit.weight,
                        unit.parameters, unit.output_bytes, unit.kept_bytes);
  }
  return text;
}

void check_profile(const std::vector<UnitCost>& profile, const std::vector<UnitCost>& own) {
  if (profile.size() != own.size()) {
    fail(ExitCode::usage, "the profile has {} units, but the model has {}: embedding, {} blocks and head",
         profile.size(), own.size(), own.size() - 2);
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto check = [&](std::string_view column, std::int64_t found, std::int64_t expected) {
      if (found == expected) return;
      fail(ExitCode::usage, "the profile is of another model or micro-batch: {} of {} is {}, not {}", column,
           own[i].name, found, expected);
    };
    if (profile[i].name != own[i].name) {
      fail(ExitCode::usage, "unit {} of the profile is \"{}\", not {}", i + 1, profile[i].name, own[i].name);
    }
    check("parameters", profile[i].parameters, own[i].parameters);
    check("output_bytes", profile[i].output_bytes, own[i].output_bytes);
    const UnitCost& unit = profile[i];
    if (unit.forward + unit.input + unit.weight <= 0.0)
      fail(ExitCode::usage, "the times of {} in the profile are all 0", unit.name);
  }
}

}  // namespace mylos
