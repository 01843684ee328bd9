// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/fault.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <source_location>
#include <sstream>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "core/communication/call_site.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

/// Returns the names of the actions of a step.
std::vector<std::string> action_names() {
  std::vector<std::string> names;
  for (int i = 0; i < num_action_kinds; ++i) names.emplace_back(name_of(static_cast<ActionKind>(i)));
  return names;
}

/// Returns the names of all phases.
std::vector<std::string> phase_names() {
  std::vector<std::string> names = action_names();
  for (const std::string_view name : {Fault::launch, Fault::data, Fault::evaluation})
    names.emplace_back(name);
  for (int i = 0; i < num_checkpoint_phases; ++i)
    names.push_back(Fault::phase_of(static_cast<CheckpointPhase>(i)));
  return names;
}

/// Returns whether `text` is a whole number without a sign.
bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

constexpr std::string_view checkpoint_prefix = "checkpoint.";
constexpr std::string_view any_step = "*";

constexpr std::array<std::string_view, 8> kind_names = {"none", "kill",  "stop", "error",
                                                        "nan",  "spike", "flip", "mismatch"};

}  // namespace

Fault Fault::from_environment(int rank) {
  Fault fault;
  const char* text = std::getenv("MYLOS_FAULT");
  if (text == nullptr || *text == '\0') return fault;
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ':');) words.push_back(word);
  std::string micro_batch;
  if (const std::size_t at = words.empty() ? std::string::npos : words[0].find('@');
      at != std::string::npos) {
    micro_batch = words[0].substr(at + 1);
    words[0].resize(at);
    if (!is_number(micro_batch)) words.clear();
  }
  const std::vector<std::string> phases = phase_names();
  const std::vector<std::string> actions = action_names();
  const bool has_place = words.size() == 4 && std::ranges::find(phases, words[0]) != phases.end() &&
                         is_number(words[1]) && (is_number(words[2]) || words[2] == any_step);
  for (std::size_t i = 1; has_place && i < kind_names.size(); ++i) {
    const auto kind = static_cast<FaultKind>(i);
    const bool needs_an_action = kind > FaultKind::error;
    if (words[3] == kind_names[i] &&
        (!(needs_an_action || !micro_batch.empty()) || std::ranges::find(actions, words[0]) != actions.end()))
      fault.kind_ = kind;
  }
  if (fault.kind_ == FaultKind::none) {
    fail(ExitCode::usage,
         "MYLOS_FAULT=\"{}\" is not phase:rank:step:kind with phase {} and kind kill, stop or error, or, "
         "in {}, nan, spike, flip or mismatch",
         text, join(phases, ", "), join(actions, ", "));
  }
  if (rank == 0) say(stderr, "mylos: MYLOS_FAULT={} is set: this run will fail on purpose\n", text);
  fault.rank_ = rank;
  fault.phase_ = words[0];
  if (!micro_batch.empty()) fault.micro_batch_ = std::atoi(micro_batch.c_str());
  fault.step_ = words[2] == any_step ? -1 : std::atoll(words[2].c_str());
  if (std::atoi(words[1].c_str()) != rank) fault.kind_ = FaultKind::none;
  return fault;
}

std::string Fault::phase_of(CheckpointPhase phase) {
  return fmt::format("{}{}", checkpoint_prefix, name_of(phase));
}

FaultKind Fault::at(std::string_view phase, std::int64_t step, int micro_batch) const {
  const bool is_due = phase == phase_ && (step_ == -1 || step_ == step) &&
                      (micro_batch_ == -1 || micro_batch_ == micro_batch);
  if (kind_ == FaultKind::none || !is_due) return FaultKind::none;
  say(stderr, "mylos: rank {}: fault {} at {} of step {}\n", rank_,
      kind_names[static_cast<std::size_t>(kind_)], phase, step);
  std::fflush(stderr);
  switch (kind_) {
    case FaultKind::kill:
      std::raise(SIGKILL);
      break;
    case FaultKind::stop:
      std::raise(SIGSTOP);
      break;
    case FaultKind::error:
      fail(ExitCode::internal, "rank {} failed at {} of step {} (MYLOS_FAULT)", rank_, phase, step);
    default:
      break;
  }
  return kind_;
}

void apply_fault(FaultKind kind, ComputeBackend& backend, const RankState& state,
                 Communicator& communicator) {
  if (kind == FaultKind::none) return;
  const std::vector<UnitPart>& owned = state.owned();
  const auto part_at = std::ranges::find_if(owned, [](const UnitPart& part) { return part.count > 0; });
  if (part_at == owned.end()) return;
  const UnitPart& part = *part_at;
  const UnitPart first{part.unit, part.begin, std::min<std::int64_t>(part.count, 8)};
  if (kind == FaultKind::nan) {
    backend.run(Fill{.y = state.gradient(first), .value = std::numeric_limits<float>::quiet_NaN()});
  } else if (kind == FaultKind::spike) {
    backend.run(Fill{.y = state.gradient(first), .value = 1000.0F});
  } else if (kind == FaultKind::flip) {
    const TensorRef weights = state.weights(first);
    std::uint8_t byte = 0;
    backend.copy_to_host(weights.data, &byte, 1);
    backend.synchronize();
    byte ^= 1U;
    backend.copy_to_device(&byte, weights.data, 1);
    backend.synchronize();
  } else if (kind == FaultKind::mismatch) {
    const CallSite site{.program = "MYLOS_FAULT", .where = std::source_location::current()};
    const CallSiteScope scope(site);
    communicator.barrier();
  }
}

}  // namespace mylos
