// SPDX-License-Identifier: BSD-3-Clause
// Dividing the cores of a node among ranks that nobody bound.
#pragma once

#include <sched.h>
#include <string>

namespace mylos {

/// Part `index` of `count` even parts of `cores`, contiguous in the system's numbering, which may put the
/// second hardware threads of all cores behind the first; all of them where there are fewer cores than parts.
cpu_set_t even_share(const cpu_set_t& cores, int index, int count);

/// The cores that the calling thread may use, as "0-3,8".
std::string own_cores();

}  // namespace mylos
