// SPDX-License-Identifier: BSD-3-Clause
// Measures what a machine file says: products, operations, collectives and overlap, on all ranks at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/launch/session.hpp"
#include "app/launch/setup.hpp"
#include "parallel/plan/machine.hpp"

namespace mylos {

/// Medians of a machine, and where two halves of a measurement differ by more than a tenth.
struct MachineMeasurement {
  Machine machine;
  std::vector<std::string> differing;
  std::vector<double> spreads{};  ///< by operation: half the distance of the quartiles over the median
  double waiting =
      0.0;  ///< seconds that the shortest operation of a device and the wait for it take; 0: a host
};

/// Measures what the host takes to queue an operation, if operations run on a device. Collective.
void measure_host(Session& session, MachineMeasurement& measured);

/// Trains a deck for a few steps on random tokens, with a micro-batch per step, and adds the
/// times of its operations to `measured`. A time includes what passes until the next operation. Collective.
void measure_operations(Session& session, const RunConfig& config, int traced_steps,
                        MachineMeasurement& measured);

/// Adds the times of collectives of all group sizes that are powers of two and of all ranks, and of messages,
/// up to `most_bytes`; and by what factor they and products slow each other down. Collective.
void measure_communication(Session& session, std::int64_t ranks_per_node, std::int64_t most_bytes,
                           MachineMeasurement& measured);

/// Has every rank's medians replaced by the medians over the ranks. Collective.
void take_medians_of_ranks(Session& session, MachineMeasurement& measured);

/// Takes the times of operations from the trace of a run's profiled step: what operations of one name and
/// shape took is divided among them by their work. Throws ExitCode::usage if there is no trace.
void take_operations_from_run(const std::string& folder, const std::string& plugin_path, Machine& machine);

/// Makes times of larger sizes no less than those of smaller ones, as machine files must have them.
void make_curves_rise(Machine& machine);

}  // namespace mylos
