// SPDX-License-Identifier: BSD-3-Clause
// What the environment gives a process: variables that libraries read, and limits, checked before they are
// used.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/thread_limits.hpp"

namespace mylos {

/// Throws ExitCode::usage if a variable that OpenMP, Kokkos, HDF5 or oneDNN reads has a value that the
/// library would ignore or fail on. Call it before these libraries are used. An empty variable counts as not
/// set.
void check_variables();

/// Checks, before MPI starts, what it and this rank need: threads, open files, room in /dev/shm. Throws
/// ExitCode::internal, or ExitCode::io for a limit on files.
void check_limits();

/// Returns the number of threads to use: `wanted` from the deck if positive, otherwise OMP_NUM_THREADS, both
/// without a name, otherwise the smallest of `limits` and OMP_THREAD_LIMIT. Throws ExitCode::usage, naming
/// both variables, if OMP_THREAD_LIMIT forbids a number that the user has set.
ThreadLimit choose_threads(std::int64_t wanted, std::span<const ThreadLimit> limits);

/// Returns the threads that OMP_THREAD_LIMIT allows.
std::int64_t openmp_thread_limit();

/// Returns the text "OMP_NUM_THREADS=4, OMP_DYNAMIC=true" of all variables that are set and whose names begin
/// with one of `prefixes`; "" if there are none.
std::string variables_with(std::span<const std::string_view> prefixes);

}  // namespace mylos
