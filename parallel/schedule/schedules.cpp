// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

namespace mylos {

extern const ScheduleKind accumulate_schedule;

std::span<const ScheduleKind* const> schedules() {
  static constexpr const ScheduleKind* all[] = {&accumulate_schedule};
  return all;
}

}  // namespace mylos
