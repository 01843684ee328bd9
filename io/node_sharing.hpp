// SPDX-License-Identifier: BSD-3-Clause
// What the ranks of a node share: processors and the CPU quota.
#pragma once

#include <mpi.h>

#include "core/base/thread_limits.hpp"

namespace mylos {

/// How this rank shares what it may use with the ranks of `node`, which are on its node. Collective.
Sharing sharing_on(MPI_Comm node);

}  // namespace mylos
