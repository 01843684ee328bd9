// SPDX-License-Identifier: BSD-3-Clause
// What the programs of a schedule ask of an exchange.
#pragma once

#include "core/model/model_programs.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// Of one step, of an evaluation and of a generation, each in the order of execution.
UnitEvents unit_events_of(const Schedule& schedule, const ModelPrograms& programs);

}  // namespace mylos
