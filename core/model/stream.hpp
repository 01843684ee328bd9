// SPDX-License-Identifier: BSD-3-Clause
// The residual stream (B * T, C), of which a rank holds all rows or, with sequence parallelism, some: the
// operations that must know which, and the collectives that lead from one to the other.
#pragma once

#include <string_view>

#include "core/model/recorder.hpp"

namespace mylos {

/// DropoutAdd and DropoutAddLayernorm of the rank's rows: x, residual, y or sum (n, C).
void record(Recorder& run, const DropoutAdd& op);
void record(Recorder& run, const DropoutAddLayernorm& op);

/// All rows (B * T, C), gathered from the rank's own `rows`: these themselves if they are all, else a tensor
/// of the block's.
TensorRef all_rows(Recorder& run, std::string_view name, const TensorRef& rows);
/// The same in the backward pass, of what the forward pass gathered under this name and did not keep.
TensorRef all_rows_again(Recorder& run, std::string_view name, const TensorRef& rows);
/// The rank's rows of the sum of all ranks' `terms` (B * T, C); in `terms` or in a tensor of the block's.
TensorRef sum_of_terms(Recorder& run, std::string_view name, const TensorRef& terms);

}  // namespace mylos
