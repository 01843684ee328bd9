// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

namespace mylos {

Schedule accumulate(int micro_batches) {
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  for (int m = 0; m < micro_batches; ++m) {
    schedule.repeat.push_back({ActionKind::forward, m});
    schedule.repeat.push_back({ActionKind::backward, m});
  }
  schedule.repeat.push_back({ActionKind::reduce, micro_batches - 1});
  schedule.repeat.push_back({ActionKind::step, micro_batches - 1});
  return schedule;
}

}  // namespace mylos
