// SPDX-License-Identifier: BSD-3-Clause
// The blocking MPI calls of HDF5 and MPI-IO, polled with a yield, through MPI's profiling interface (MPI 4.0,
// chapter 15). MPICH's own calls spin: where ranks share a core, one collective then costs a time slice, and
// a dataset costs over twenty collectives (measured: a barrier of 4 ranks on 2 busy cores takes 31 ms
// spinning, 4 ms polled).
#include <sched.h>

#include <mpi.h>

namespace {

constexpr int polls_before_yield = 64;

template <class Test>
int poll(int started, const Test& test) {
  int error = started;
  int done = 0;
  for (int polls = 0; error == MPI_SUCCESS && done == 0; ++polls) {
    error = test(&done);
    if (done == 0 && polls >= polls_before_yield) sched_yield();
  }
  return error;
}

int finish(int started, MPI_Request request) {
  return poll(started, [&](int* done) { return PMPI_Test(&request, done, MPI_STATUS_IGNORE); });
}

}  // namespace

extern "C" {

int MPI_Barrier(MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int started = PMPI_Ibarrier(comm, &request);
  return finish(started, request);
}

int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int started = PMPI_Ibcast(buffer, count, type, root, comm, &request);
  return finish(started, request);
}

int MPI_Allreduce(const void* input, void* output, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int started = PMPI_Iallreduce(input, output, count, type, op, comm, &request);
  return finish(started, request);
}

int MPI_Allgather(const void* input, int input_count, MPI_Datatype input_type, void* output, int output_count,
                  MPI_Datatype output_type, MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int started =
      PMPI_Iallgather(input, input_count, input_type, output, output_count, output_type, comm, &request);
  return finish(started, request);
}

int MPI_Alltoall(const void* input, int input_count, MPI_Datatype input_type, void* output, int output_count,
                 MPI_Datatype output_type, MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int started =
      PMPI_Ialltoall(input, input_count, input_type, output, output_count, output_type, comm, &request);
  return finish(started, request);
}

int MPI_Gather(const void* input, int input_count, MPI_Datatype input_type, void* output, int output_count,
               MPI_Datatype output_type, int root, MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int started =
      PMPI_Igather(input, input_count, input_type, output, output_count, output_type, root, comm, &request);
  return finish(started, request);
}

int MPI_Gatherv(const void* input, int input_count, MPI_Datatype input_type, void* output,
                const int* output_counts, const int* displacements, MPI_Datatype output_type, int root,
                MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int started = PMPI_Igatherv(input, input_count, input_type, output, output_counts, displacements,
                                    output_type, root, comm, &request);
  return finish(started, request);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]) {
  return poll(MPI_SUCCESS, [&](int* done) { return PMPI_Testall(count, requests, done, statuses); });
}

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  return poll(MPI_SUCCESS, [&](int* done) { return PMPI_Test(request, done, status); });
}

}  // extern "C"
