// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_mpi/mpi_reduce_ops.hpp"

#include <array>
#include <type_traits>

#include "core/communication/host_reduction.hpp"

namespace mylos::comm_mpi {

namespace {

template <class T, ReduceOp op>
void combine_elements(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
  combine(dtype_of<T>(), op, in, in_out, static_cast<std::size_t>(*count));
}

template <class T, ReduceOp op>
constexpr bool mpi_has = std::is_integral_v<T> || (std::is_same_v<T, float> && op == ReduceOp::sum);

MPI_Op make_op(MPI_User_function* function) {
  constexpr int commutes = 1;
  MPI_Op op = MPI_OP_NULL;
  if (MPI_Op_create(function, commutes, &op) != MPI_SUCCESS) fail(ExitCode::internal, "MPI_Op_create failed");
  return op;
}

}  // namespace

MPI_Datatype mpi_type(DType dtype) {
  const std::array<MPI_Datatype, num_dtypes> types = {MPI_FLOAT,   MPI_UINT16_T, MPI_UINT16_T,
                                                      MPI_INT32_T, MPI_INT64_T,  MPI_UINT8_T};
  return types[static_cast<std::size_t>(dtype)];
}

bool runs_on_host(DType dtype, ReduceOp op) {
  return dispatch_reduction(dtype, op, []<class T, ReduceOp reduction>() { return !mpi_has<T, reduction>; });
}

MPI_Op mpi_op(DType dtype, ReduceOp op) {
  return dispatch_reduction(dtype, op, []<class T, ReduceOp reduction>() -> MPI_Op {
    if constexpr (mpi_has<T, reduction>) {
      return reduction == ReduceOp::sum ? MPI_SUM : reduction == ReduceOp::max ? MPI_MAX : MPI_MIN;
    } else {
      static const MPI_Op made = make_op(combine_elements<T, reduction>);
      return made;
    }
  });
}

}  // namespace mylos::comm_mpi
