// SPDX-License-Identifier: BSD-3-Clause
// leave_outer_job: for tests that start ranks on this node and look for their processes.
#pragma once

namespace mylos::test {

/// Removes the variables of the Slurm job in which the test runs, if any, from the environment of the
/// processes that it starts: otherwise mpiexec would use all nodes of that job, and mylos would take its
/// limits for its own.
void leave_outer_job();

}  // namespace mylos::test
