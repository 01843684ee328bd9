// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_mpi/mpi_reduce_ops.hpp"

#include "core/ops/host_reduction.hpp"

namespace mylos::comm_mpi {

namespace {

template <DType dtype, ReduceOp op>
void combine_elements(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
  combine(dtype, op, in, in_out, static_cast<std::size_t>(*count));
}

MpiOp make_op(MPI_User_function* function) {
  constexpr int commutes = 1;
  MPI_Op op = MPI_OP_NULL;
  if (MPI_Op_create(function, commutes, &op) != MPI_SUCCESS) fail(ExitCode::internal, "MPI_Op_create failed");
  return {op, MPI_OP_NULL};
}

}  // namespace

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return MPI_FLOAT;
    case DType::bf16:
    case DType::fp16:
      return MPI_UINT16_T;
    case DType::int32:
      return MPI_INT32_T;
    case DType::int64:
      return MPI_INT64_T;
    case DType::uint8:
      return MPI_UINT8_T;
  }
  fail(ExitCode::internal, "comm_mpi cannot send element type {}", static_cast<int>(dtype));
}

MpiReduceOps::MpiReduceOps()
    : bf16_sum_(make_op(combine_elements<DType::bf16, ReduceOp::sum>)),
      bf16_max_(make_op(combine_elements<DType::bf16, ReduceOp::max>)),
      bf16_min_(make_op(combine_elements<DType::bf16, ReduceOp::min>)),
      fp16_sum_(make_op(combine_elements<DType::fp16, ReduceOp::sum>)),
      fp16_max_(make_op(combine_elements<DType::fp16, ReduceOp::max>)),
      fp16_min_(make_op(combine_elements<DType::fp16, ReduceOp::min>)),
      fp32_max_(make_op(combine_elements<DType::fp32, ReduceOp::max>)),
      fp32_min_(make_op(combine_elements<DType::fp32, ReduceOp::min>)) {}

MPI_Op MpiReduceOps::get(DType dtype, ReduceOp op) const {
  const auto choose = [op](MPI_Op sum, MPI_Op max, MPI_Op min) {
    return op == ReduceOp::sum ? sum : op == ReduceOp::max ? max : min;
  };
  switch (dtype) {
    case DType::fp32:
      return choose(MPI_SUM, fp32_max_.get(), fp32_min_.get());
    case DType::bf16:
      return choose(bf16_sum_.get(), bf16_max_.get(), bf16_min_.get());
    case DType::fp16:
      return choose(fp16_sum_.get(), fp16_max_.get(), fp16_min_.get());
    case DType::int32:
    case DType::int64:
      return choose(MPI_SUM, MPI_MAX, MPI_MIN);
    case DType::uint8:
      break;
  }
  fail(ExitCode::internal, "comm_mpi cannot reduce {}", name_of(dtype));
}

}  // namespace mylos::comm_mpi
