// SPDX-License-Identifier: BSD-3-Clause
// unit_events_of: the requests that the programs of a schedule make to an exchange.
#pragma once

#include "core/model/model_programs.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// The events of a step, an evaluation and a generation, each in the order of execution.
UnitEvents unit_events_of(const Schedule& schedule, const ModelPrograms& programs);

}  // namespace mylos
