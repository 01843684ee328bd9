// SPDX-License-Identifier: BSD-3-Clause
// The residual stream (B * T, C), of which a rank holds all rows or, with sequence parallelism, some rows.
// The functions below record the operations that depend on which rows a rank holds, and the collectives that
// convert between all rows and the rank's rows.
#pragma once

#include <source_location>
#include <string_view>

#include "core/model/recorder.hpp"

namespace mylos {

/// Record DropoutAdd and DropoutAddLayernorm for the rank's rows: x, residual, y or sum (n, C).
void record(Recorder& run, const DropoutAdd& op);
void record(Recorder& run, const DropoutAddLayernorm& op);
/// Records `op` with its `gamma`, `dgamma` and `dbeta` set; as two operations if the gradients of weights are
/// deferred.
void record(Recorder& run, const Parameter& gamma, const Parameter& beta, LayernormBackward op,
            const std::source_location& where = std::source_location::current());

/// Returns all rows (B * T, C), gathered from the ranks' `rows` into a tensor of the block, or `rows` itself
/// if it has all rows.
TensorRef all_rows(Recorder& run, std::string_view name, const TensorRef& rows);
/// Does the same in the backward pass, for rows that the forward pass gathered under this name and that were
/// not kept. Gathers them again, unless the backward pass recomputes the block's forward pass and thus the
/// gather.
TensorRef all_rows_again(Recorder& run, std::string_view name, const TensorRef& rows);
/// Returns the rank's rows of the sum of all ranks' `terms` (B * T, C), stored in `terms` or in a tensor of
/// the block.
TensorRef sum_of_terms(Recorder& run, std::string_view name, const TensorRef& terms);

}  // namespace mylos
