// SPDX-License-Identifier: BSD-3-Clause
// What every rank of a shared-memory communicator does in its tests, whether it is a process or a thread.
#pragma once

#include <cstdint>

#include "core/communicator.hpp"

namespace mylos {

/// Every collective on `count` elements of each type that begin `start` elements behind a window's begin.
void check_collectives_in_windows(Communicator& comm, std::int64_t start, std::int64_t count);
/// reduce_scatter whose output lies anywhere in its input, in a window and out of one.
void check_outputs_within_inputs(Communicator& comm);
/// Operations on two communicators, for which the ranks wait in different orders.
void check_mixed_orders_of_waits(Communicator& comm);
/// Windows that each rank frees in an order of its own, beside operations on others.
void check_windows_come_and_go(Communicator& comm);
/// More operations than there are slots, in windows and out of them, completed by `test` from the last.
void check_many_operations_under_way(Communicator& comm);
/// Messages with tags in different orders on both sides, kept ones among them, empty ones and ones to
/// oneself.
void check_tags_in_any_order(Communicator& comm);
/// Messages that fill the rings, in all directions at once.
void check_large_messages(Communicator& comm, std::int64_t count);
/// All of it while another thread of the rank advances the backend.
void check_beside_a_progress_thread(Communicator& comm);

}  // namespace mylos
