// SPDX-License-Identifier: BSD-3-Clause
// Fault: deliberate failures at named places, so that tests exercise the code that users run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/checkpoint/checkpoint.hpp"
#include "parallel/engine/rank_state.hpp"

namespace mylos {

enum class FaultKind : std::uint8_t {
  none,
  kill,      ///< SIGKILL to this process
  stop,      ///< SIGSTOP to this process
  error,     ///< throws ExitCode::internal, naming the rank
  nan,       ///< up to eight elements of the gradient become NaN
  spike,     ///< up to eight elements of the gradient become 1000
  flip,      ///< one bit of this rank's weights flips
  mismatch,  ///< this rank calls a collective that no other rank calls
};

/// `MYLOS_FAULT=phase:rank:step:kind`. A phase is the name of an ActionKind, which may be followed by @ and a
/// micro-batch, `phase_of` a CheckpointPhase, or one of the names below. A fault at step `*` strikes at each
/// step. Rank 0 announces the fault on stderr.
class Fault {
 public:
  Fault() = default;
  static constexpr std::string_view launch = "launch";          ///< before the deck is parsed; the step is 0
  static constexpr std::string_view data = "data";              ///< before the data are opened; the step is 0
  static constexpr std::string_view evaluation = "evaluation";  ///< at its beginning, after the step

  /// Reads MYLOS_FAULT. Throws ExitCode::usage if it is malformed, or if its phase is no ActionKind and its
  /// kind is not kill, stop or error.
  static Fault from_environment(int rank);

  /// "checkpoint." and the name of `phase`.
  static std::string phase_of(CheckpointPhase phase);

  /// Executes a kill, stop or error fault that is due. Returns the kind that is due, or none; `apply_fault`
  /// executes the other kinds.
  FaultKind at(std::string_view phase, std::int64_t step, int micro_batch = 0) const;

 private:
  FaultKind kind_ = FaultKind::none;
  std::string phase_;
  std::int64_t step_ = 0;  // -1: each step
  int micro_batch_ = -1;   // -1: each
  int rank_ = 0;
};

/// Executes the kinds that `Fault::at` leaves to its caller: nan, spike and flip on the first elements of the
/// first non-empty part that this rank owns, mismatch on `communicator`. Does nothing if the rank owns no
/// elements.
void apply_fault(FaultKind kind, ComputeBackend& backend, const RankState& state, Communicator& communicator);

}  // namespace mylos
