// SPDX-License-Identifier: BSD-3-Clause
// The measurements, as text and as CSV.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "benchmarks/step/ddp_study.hpp"
#include "benchmarks/step/measurement.hpp"
#include "benchmarks/step/step_ceiling.hpp"

namespace mylos {

/// A configuration and what it cost.
struct ReportRow {
  const Configuration& configuration;
  const Measurement& measurement;
  const DdpStudyRow* published = nullptr;  ///< null if nothing was published
};

/// What all configurations of a report share.
struct ReportContext {
  int ranks = 1;
  std::string compute;       ///< the backend's description
  double peak_tflops = 0.0;  ///< of one rank: what MFU refers to
  StepCeiling ceiling;       ///< of one rank; empty if not measured
};

/// Rates, times by phase, ratios to the first configuration, and memory; one line per configuration.
std::string step_tables(const std::vector<ReportRow>& rows, const ReportContext& context);
/// The ceilings and the share of each that each configuration reaches.
std::string ceiling_table(const std::vector<ReportRow>& rows, const ReportContext& context);
/// What averaging the gradients costs, next to the published figures, which every row must have.
std::string exchange_table(const std::vector<ReportRow>& rows);
/// A header and one line per configuration.
std::string step_csv(const std::vector<ReportRow>& rows, const ReportContext& context);

}  // namespace mylos
