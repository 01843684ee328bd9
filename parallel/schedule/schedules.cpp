// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

namespace mylos {

extern const ScheduleKind accumulate_schedule;
extern const ScheduleKind gpipe_schedule;
extern const ScheduleKind one_forward_one_backward_schedule;
extern const ScheduleKind interleaved_schedule;
extern const ScheduleKind zero_bubble_schedule;
extern const ScheduleKind zero_bubble_v_schedule;
extern const ScheduleKind pipedream_schedule;
extern const ScheduleKind pipedream_2bw_schedule;
extern const ScheduleKind file_schedule;

std::span<const ScheduleKind* const> schedules() {
  static constexpr const ScheduleKind* all[] = {
      &accumulate_schedule,  &gpipe_schedule,         &one_forward_one_backward_schedule,
      &interleaved_schedule, &zero_bubble_schedule,   &zero_bubble_v_schedule,
      &pipedream_schedule,   &pipedream_2bw_schedule, &file_schedule,
  };
  return all;
}

}  // namespace mylos
