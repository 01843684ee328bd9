// SPDX-License-Identifier: BSD-3-Clause
// The time of a step by operation, as text and as CSV.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/step/step_report.hpp"

namespace mylos {

/// What rank 0 spent in each operation, in communication and in reading data, the longest first; the sums of
/// compute, communication and data; what was in none of them. Medians over the traced steps, of which there
/// is at least one.
std::string operations_table(const ReportRow& row);
/// A header, and for each configuration a line an operation, "other" and "step".
std::string operations_csv(const std::vector<ReportRow>& rows);

}  // namespace mylos
