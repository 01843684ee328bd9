// SPDX-License-Identifier: BSD-3-Clause
// Schedules that several tests use and decks cannot request.
#pragma once

#include <vector>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// Two micro-batches whose weight gradients come after both of their input gradients.
inline const ScheduleKind deferred_weights{
    .name = "deferred weights", .doc = "", .make = [](const ScheduleScope& /*scope*/) {
      using enum ActionKind;
      return std::vector{Schedule{.actions = {{forward, 0},
                                              {backward_input, 0},
                                              {forward, 1},
                                              {backward_input, 1},
                                              {backward_weight, 0},
                                              {backward_weight, 1},
                                              {reduce},
                                              {step}},
                                  .micro_batches = 2}};
    }};

}  // namespace mylos
