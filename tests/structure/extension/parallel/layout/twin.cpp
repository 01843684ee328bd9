// SPDX-License-Identifier: BSD-3-Clause
// twin: an axis along which two ranks do the same.
#include "parallel/layout/axis_kinds.hpp"

namespace mylos {

extern constinit const AxisKind twin_axis{
    .axis = Axis::twin,
    .key = integer_param("parallel", "twin", "1", 1, 2, "ranks", "Number of ranks that do the same.")
               .changes(Effect::speed)
               .evaluated_with("1"),
};

}  // namespace mylos
