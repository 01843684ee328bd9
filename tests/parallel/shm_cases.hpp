// SPDX-License-Identifier: BSD-3-Clause
// The cases that every rank of a shared-memory communicator runs, whether it is a process or a thread.
#pragma once

#include <cstdint>

#include "core/communication/communicator.hpp"

namespace mylos {

/// The collectives except all_to_all_v on up to `count` elements of each type that they take, which begin
/// `start` elements after the beginning of a window.
void check_collectives_in_windows(Communicator& comm, std::int64_t start, std::int64_t count);
/// reduce_scatter with its output at the beginning, in the middle and at the end of its input, inside and
/// outside a window.
void check_outputs_within_inputs(Communicator& comm);
/// Operations on two communicators, for which the ranks wait in different orders.
void check_mixed_orders_of_waits(Communicator& comm);
/// Windows that the ranks free in different orders, while operations on other windows are under way.
void check_windows_come_and_go(Communicator& comm);
/// More operations than there are slots, inside and outside windows, completed by `test` from last to first.
void check_many_operations_under_way(Communicator& comm);
/// Messages with tags in different orders on both sides; among them empty messages, messages to the rank
/// itself, and messages that may arrive before their receives.
void check_tags_in_any_order(Communicator& comm);
/// Messages of `count` floats, which may exceed a ring, between all pairs of ranks at the same time.
void check_large_messages(Communicator& comm, std::int64_t count);
/// All of these cases except check_outputs_within_inputs, while another thread of the rank advances the
/// backend.
void check_alongside_a_progress_thread(Communicator& comm);

}  // namespace mylos
