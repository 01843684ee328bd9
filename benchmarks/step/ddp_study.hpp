// SPDX-License-Identifier: BSD-3-Clause
// The DDP study (docs/results.md): the ways of averaging gradients that it compares, and its published
// figures.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mylos {

/// One row of the study; a figure that it does not have is 0.
struct DdpStudyRow {
  std::string_view name;
  std::string_view mode;  ///< parallel.ddp_mode
  double bucket_mb;       ///< MiB; the default if the mode has no buckets
  double step_ms;         ///< 2 x T4, GPT-2 medium-like, batch 32, context 64, vocabulary 10,000
  double all_reduce_ms;   ///< part of step_ms
  int calls;
  double call_ms;
};

inline constexpr std::array<DdpStudyRow, 7> ddp_study = {{
    {"per_parameter", "per_parameter", 25.0, 1406.7, 498.0, 0, 0.0},
    {"flat", "flat", 25.0, 1365.2, 500.0, 0, 0.0},
    {"overlapped", "overlapped", 25.0, 1075.7, 0.0, 0, 0.0},
    {"bucketed 1 MiB", "bucketed", 1.0, 1093.0, 0.0, 1700, 2.7},
    {"bucketed 10 MiB", "bucketed", 10.0, 1120.0, 0.0, 980, 4.4},
    {"bucketed 100 MiB", "bucketed", 100.0, 1213.0, 0.0, 150, 28.5},
    {"bucketed 1000 MiB", "bucketed", 1000.0, 1360.0, 0.0, 20, 214.9},
}};

}  // namespace mylos
