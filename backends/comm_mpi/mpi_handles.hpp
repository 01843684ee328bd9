// SPDX-License-Identifier: BSD-3-Clause
// Owners of MPI communicators and reduction operations.
#pragma once

#include <utility>

#include <mpi.h>

namespace mylos::comm_mpi {

/// Whether MPI calls may be made: MPI is initialised and not yet finalised.
inline bool mpi_is_running() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

/// Frees its handle on destruction if MPI is still running.
template <class Handle, int (*Free)(Handle*)>
class MpiHandle {
 public:
  MpiHandle(Handle handle, Handle null) : handle_(handle), null_(null) {}
  MpiHandle(MpiHandle&& other) noexcept
      : handle_(std::exchange(other.handle_, other.null_)), null_(other.null_) {}
  MpiHandle(const MpiHandle&) = delete;
  MpiHandle& operator=(const MpiHandle&) = delete;
  MpiHandle& operator=(MpiHandle&&) = delete;
  ~MpiHandle() {
    if (handle_ != null_ && mpi_is_running()) Free(&handle_);
  }

  Handle get() const { return handle_; }

 private:
  Handle handle_;
  Handle null_;
};

using MpiComm = MpiHandle<MPI_Comm, MPI_Comm_free>;
using MpiOp = MpiHandle<MPI_Op, MPI_Op_free>;

}  // namespace mylos::comm_mpi
