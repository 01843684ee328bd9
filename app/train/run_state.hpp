// SPDX-License-Identifier: BSD-3-Clause
// RunState: everything in a checkpoint except its tensors, as stored in state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/deck/run_config.hpp"
#include "app/train/read_totals.hpp"
#include "core/base/version.hpp"
#include "core/model/model_config.hpp"
#include "core/ops/grad_guard.hpp"
#include "io/tokens/sidecar.hpp"

namespace mylos {

/// Where the weights came from with which a run began.
struct InitialWeights {
  std::string path;    ///< [model] init, as expanded
  std::string kind;    ///< "Hugging Face folder"
  std::string digest;  ///< of the values (digest_of_weights), 16 hexadecimal digits

  std::string text() const { return fmt::format("{} ({}), digest {}", path, kind, digest); }
};

/// The older versions of weights that a checkpoint of an asynchronous pipeline holds.
struct VersionState {
  std::string rules;        ///< which micro-batch uses which (rules_text); empty if there are none
  std::int64_t oldest = 0;  ///< the oldest version that is used from then on
};

/// The rules of each unit's versions as text: runs with the same text can use each other's versions.
std::string rules_text(const StepConfig& config);

struct RunState {
  std::int64_t step = 0;
  std::int64_t sample = 0;  ///< running index of the next step's first sample
  ReadTotals read;          ///< in an older checkpoint without epochs
  std::uint64_t seed = 0;
  ModelConfig model;  ///< only its shape is stored, not its padding or dropout
  GuardState guard;
  std::int64_t ranks = 0;
  std::int64_t micro_batch = 0;  ///< sequences
  std::string compute;           ///< description of the compute backend
  std::string deck;              ///< text of the resolved deck
  std::string code = code_version();
  std::int64_t ranks_per_node = 0;  ///< as in JobSize
  std::string train_data;           ///< TokenDataset::identity; older checkpoints have none
  TokenizerIdentity tokenizer;      ///< of the data; without a name if unknown
  std::string folder;               ///< where relative paths of `deck` begin; empty in older checkpoints
  std::optional<InitialWeights> initial{};  ///< without [model] init, random weights
  VersionState versions{};
  bool evaluation_due = false;  ///< an evaluation of these weights is still to be run
};

/// Returns whether two tokenizers may be the same: an unknown name or unknown ranks match any.
bool may_be_same(const TokenizerIdentity& a, const TokenizerIdentity& b);

/// Returns the text of state.json.
std::string state_text(const RunState& state);

/// Parses the text of state.json. Throws ExitCode::bad_data with a message that begins with `place` if `text`
/// is not a valid state of `step`.
RunState parse_state(const std::string& text, const std::string& place, std::int64_t step);

/// Throws if a run with `config` cannot continue from `state`: ExitCode::bad_data if the model is another
/// one, ExitCode::usage if no step remains before that of `state`.
void check_continues(const RunState& state, const RunConfig& config);

}  // namespace mylos
