// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_mpi/mpi_reduce_ops.hpp"

#include <cmath>
#include <limits>

namespace mylos {

namespace {

struct Sum {
  float operator()(float a, float b) const { return a + b; }
};

struct Max {
  float operator()(float a, float b) const {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
    return a > b || (a == b && !std::signbit(a)) ? a : b;
  }
};

struct Min {
  float operator()(float a, float b) const {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
    return a < b || (a == b && std::signbit(a)) ? a : b;
  }
};

template <class T, class Combine>
void combine_elements(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
  const T* a = static_cast<const T*>(in);
  T* b = static_cast<T*>(in_out);
  for (int i = 0; i < *count; ++i) b[i] = T(Combine{}(static_cast<float>(a[i]), static_cast<float>(b[i])));
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
      return MPI_UINT16_T;
    case DType::int32:
      return MPI_INT32_T;
    case DType::int64:
      return MPI_INT64_T;
    case DType::uint8:
      return MPI_UINT8_T;
    case DType::fp16:
      break;
  }
  fail(ExitCode::internal, "comm_mpi cannot send {}", name_of(dtype));
}

MpiReduceOps::MpiReduceOps()
    : bf16_sum_(make_op(combine_elements<bf16, Sum>)),
      bf16_max_(make_op(combine_elements<bf16, Max>)),
      bf16_min_(make_op(combine_elements<bf16, Min>)),
      fp32_max_(make_op(combine_elements<float, Max>)),
      fp32_min_(make_op(combine_elements<float, Min>)) {}

MPI_Op MpiReduceOps::get(DType dtype, ReduceOp op) const {
  const auto choose = [op](MPI_Op sum, MPI_Op max, MPI_Op min) {
    return op == ReduceOp::sum ? sum : op == ReduceOp::max ? max : min;
  };
  switch (dtype) {
    case DType::fp32:
      return choose(MPI_SUM, fp32_max_.get(), fp32_min_.get());
    case DType::bf16:
      return choose(bf16_sum_.get(), bf16_max_.get(), bf16_min_.get());
    case DType::int32:
    case DType::int64:
      return choose(MPI_SUM, MPI_MAX, MPI_MIN);
    case DType::fp16:
    case DType::uint8:
      break;
  }
  fail(ExitCode::internal, "comm_mpi cannot reduce {}", name_of(dtype));
}

}  // namespace mylos
