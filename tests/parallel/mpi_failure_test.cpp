// SPDX-License-Identifier: BSD-3-Clause
// A call of MPI that fails while a communicator is made is an error: its rank and size would be made up.
#include <cstring>
#include <string>

#include <gtest/gtest.h>
#include <mpi.h>

#include "backends/comm_mpi/mpi_communicator.hpp"

namespace {
const char* failing_call = "";

bool fails(const char* call) {
  return std::strcmp(failing_call, call) == 0;
}
}  // namespace

// MPI's profiling interface: these take the place of the library's functions in this program.
extern "C" {
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  return fails("MPI_Comm_dup") ? MPI_ERR_COMM : PMPI_Comm_dup(comm, copy);
}
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler) {
  return fails("MPI_Comm_set_errhandler") ? MPI_ERR_COMM : PMPI_Comm_set_errhandler(comm, handler);
}
int MPI_Comm_rank(MPI_Comm comm, int* rank) {
  return fails("MPI_Comm_rank") ? MPI_ERR_COMM : PMPI_Comm_rank(comm, rank);
}
int MPI_Comm_size(MPI_Comm comm, int* size) {
  return fails("MPI_Comm_size") ? MPI_ERR_COMM : PMPI_Comm_size(comm, size);
}
}

namespace mylos {
namespace {

TEST(MpiFailure, WhileACommunicatorIsMadeIsAnError) {
  for (const char* call : {"MPI_Comm_dup", "MPI_Comm_set_errhandler", "MPI_Comm_rank", "MPI_Comm_size"}) {
    failing_call = call;
    std::string message = "nothing was thrown";
    try {
      comm_mpi::MpiCommunicator::duplicate(MPI_COMM_WORLD, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      message = error.what();
    }
    failing_call = "";
    EXPECT_EQ(message.substr(0, message.find(':')), std::string(call) + " failed");
  }
}

}  // namespace
}  // namespace mylos
