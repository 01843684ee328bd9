// SPDX-License-Identifier: BSD-3-Clause
// The time of a step by operation, as text and as CSV.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/step/step_report.hpp"

namespace mylos {

/// Rank 0's time in each operation, in communication and in reading data, longest first; the sums of compute,
/// communication and data; and the rest of the step. Medians over the traced steps; there must be at least
/// one.
std::string operations_table(const ReportRow& row);
/// A header, and for each configuration one line per operation, then "other" and "step".
std::string operations_csv(const std::vector<ReportRow>& rows);

}  // namespace mylos
