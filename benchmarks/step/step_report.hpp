// SPDX-License-Identifier: BSD-3-Clause
// The measurements, as text and as CSV.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/step/ddp_study.hpp"
#include "benchmarks/step/measurement.hpp"

namespace mylos {

/// A configuration and what it cost.
struct ReportRow {
  const Configuration& configuration;
  const Measurement& measurement;
  const DdpStudyRow* published = nullptr;  ///< null if there is none
};

/// What all configurations of a report share.
struct ReportContext {
  int ranks = 1;
  std::string compute;                 ///< the backend's description
  double peak_tflops = 0.0;            ///< of one rank: what MFU refers to
  std::optional<double> gemm_ceiling;  ///< of one rank in GFLOP/s, if measured
};

/// Rates, times by phase and memory, one line per configuration.
std::string step_tables(const std::vector<ReportRow>& rows, const ReportContext& context);
/// The GEMM ceiling and the share of it that each configuration reaches.
std::string ceiling_table(const std::vector<ReportRow>& rows, const ReportContext& context);
/// What averaging the gradients costs, next to the published figures, which every row must have.
std::string exchange_table(const std::vector<ReportRow>& rows);
/// A header and one line per configuration.
std::string step_csv(const std::vector<ReportRow>& rows, const ReportContext& context);

}  // namespace mylos
