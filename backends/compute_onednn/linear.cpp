// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/linear.hpp"

#include <algorithm>
#include <array>
#include <omp.h>
#include <vector>

#include <fmt/core.h>

namespace mylos::compute_onednn {

namespace {

/// Whether a row-major or transposed matrix has no gaps.
bool is_dense(const TensorRef& w) {
  return w.contiguous() || (w.stride[0] == 1 && w.stride[1] == w.shape[0]);
}

/// sums (columns) = (accumulate ? sums : 0) + column sums of x (rows, columns). A thread owns its columns and
/// adds rows in order, so the result does not depend on the number of threads. It takes its whole share of
/// the columns at a time, up to `most`, so that it reads long runs of each row.
template <class T, class G>
void column_sums(const T* x, std::int64_t rows, std::int64_t columns, G* sums, bool accumulate) {
  constexpr std::int64_t lanes = 64;
  constexpr std::int64_t most = 1024;
  constexpr std::int64_t block = 64;
  const std::int64_t share = (columns / omp_get_max_threads() + lanes - 1) / lanes * lanes;
  const std::int64_t strip = std::clamp(share, lanes, most);
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < columns; first += strip) {
    const std::int64_t count = std::min(strip, columns - first);
    std::array<float, most> total{};
    for (std::int64_t row = 0; row < rows; row += block) {
      std::array<float, most> partial{};
      for (std::int64_t r = row; r < std::min(row + block, rows); ++r) {
        const T* in = x + r * columns + first;
        for (std::int64_t c = 0; c < count; ++c) partial[c] += static_cast<float>(in[c]);
      }
      for (std::int64_t c = 0; c < count; ++c) total[c] += partial[c];
    }
    for (std::int64_t c = 0; c < count; ++c) {
      G& sum = sums[first + c];
      sum = static_cast<G>(accumulate ? static_cast<float>(sum) + total[c] : total[c]);
    }
  }
}

/// Whether Matmul multiplies this type: of the types that it supports here, fp16, which oneDNN lacks, and
/// bf16, except with AMX, with which oneDNN is faster.
bool is_own(DType dtype) {
  return dtype != DType::fp32 && Matmul::supports(dtype) &&
         !(dtype == DType::bf16 && uses(dnnl::cpu_isa::avx512_core_amx));
}

bool is_multiplied(DType dtype) {
  return is_own(dtype) || MatmulCache::supports(dtype);
}

/// Matmul's scratch memory for the three products of a linear layer.
std::size_t scratch_bytes(const PlannedProduct& p, std::int64_t rows) {
  const bool declines = rows < OnednnOperations::least_rows;  // the forward product
  return std::max({declines ? 0 : Matmul::scratch_bytes(p.dtype, rows, p.out, p.in, false, p.threads),
                   Matmul::scratch_bytes(p.dtype, rows, p.in, p.out, false, p.threads),
                   Matmul::scratch_bytes(p.dtype, p.in, p.out, rows, true, p.threads)});
}

std::size_t grouped_scratch_bytes(const PlannedProduct& p) {
  const std::int64_t most = std::max(p.rows, p.evaluated_rows);
  return std::max({Matmul::most_scratch_bytes(p.dtype, most, p.out, p.in, false, p.threads),
                   Matmul::most_scratch_bytes(p.dtype, p.rows, p.in, p.out, false, p.threads),
                   Matmul::most_scratch_bytes(p.dtype, p.in, p.out, p.rows, true, p.threads)});
}

/// The bytes of the packed copies of a weight.
struct Copies {
  std::size_t forward = 0, input = 0;
};

/// Makes the oneDNN products of `rows` rows that the functions below choose: in evaluation, the forward
/// product only.
Copies make_products(Products& products, const PlannedProduct& p, std::int64_t rows, bool first,
                     bool accumulates, bool is_evaluated = false) {
  const MatrixView x{nullptr, p.dtype, p.in, 1};
  const MatrixView y{nullptr, p.dtype, p.out, 1};
  const auto weight = [&](DType dtype) {
    return MatrixView{nullptr, dtype, p.transposed ? 1 : p.out, p.transposed ? p.in : 1,
                      p.versioned ? 1U : 0U};
  };
  const MatrixView w = weight(p.dtype);
  MatrixView dw = weight(p.grad_dtype);
  dw.version = 0;

  const ProductKey forward = p.dtype == DType::fp32
                                 ? ProductKey::inner_product(rows, p.in, p.out, x, w, p.bias, y)
                                 : ProductKey::product(rows, p.out, p.in, x, w, p.bias, y, false);
  const ProductKey input = ProductKey::product(rows, p.in, p.out, y, w.transposed(), false, x, false);
  const auto make = [&](const ProductKey& key) {
    const Product& product = products.find(key);
    return key.kind == ProductKey::Kind::product_with_packed_weights ? product.b.get_desc().get_size() : 0;
  };
  Copies copies;
  if (rows >= OnednnOperations::least_rows) copies.forward = make(forward);
  if (is_evaluated) return copies;
  if (p.has_input_gradient) copies.input = make(input);
  if (first) products.find(ProductKey::weight_gradient(rows, p.in, p.out, x, y, dw));
  if (accumulates) {
    products.find(
        p.transposed ? ProductKey::product(p.out, p.in, rows, y.transposed(), x, false, dw.transposed(), true)
                     : ProductKey::product(p.in, p.out, rows, x.transposed(), y, false, dw, true));
  }
  return copies;
}

}  // namespace

bool OnednnOperations::run(const LinearForward& op) {
  if (!is_multiplied(op.x.dtype) || op.x.size() == 0) return false;
  const auto [rows, in, out] = linear_sizes(op.x, op.w, op.bias, op.y);
  if (rows < OnednnOperations::least_rows) return false;
  require(!op.bias || op.bias.dtype == op.w.dtype, "a bias of the weight's type");
  if (op.w.dtype == DType::fp32 && is_dense(op.w)) {
    library_.inner_product(rows, in, out, activation_matrix(op.x), weight_matrix(op.w), op.bias.data,
                           activation_matrix(op.y));
  } else {
    multiply(rows, out, in, activation_matrix(op.x), weight_matrix(op.w), op.bias.data,
             activation_matrix(op.y));
  }
  return true;
}

bool OnednnOperations::run(const LinearBackwardInput& op) {
  if (!is_multiplied(op.dy.dtype) || op.dy.size() == 0) return false;
  const auto [rows, in, out] = linear_sizes(op.dx, op.w, {}, op.dy);
  multiply(rows, in, out, activation_matrix(op.dy), weight_matrix(op.w).transposed(), nullptr,
           activation_matrix(op.dx));
  return true;
}

void OnednnOperations::multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b,
                                void* bias, MatrixView c) {
  if (is_own(b.dtype)) {
    own_.multiply(m, n, k, a, b, bias, c, false);
  } else {
    library_.multiply(m, n, k, a, b, bias, c, false);
  }
}

bool OnednnOperations::run(const LinearBackwardWeight& op) {
  if (!is_multiplied(op.x.dtype) || op.x.size() == 0) return false;
  const LinearSizes sizes = linear_sizes(op.x, op.dw, op.dbias, op.dy);
  const auto [rows, in, out] = sizes;
  const MatrixView gradient = weight_matrix(op.dw);
  if (is_own(op.x.dtype)) {
    require(!op.dbias || op.dbias.dtype == op.dw.dtype, "gradients of one type");
    own_.multiply(in, out, rows, activation_matrix(op.x).transposed(), activation_matrix(op.dy), nullptr,
                  gradient, op.accumulate, op.dbias.data);
    return true;
  }
  if (!op.accumulate && is_dense(op.dw)) {
    library_.weight_gradient(rows, in, out, activation_matrix(op.x), activation_matrix(op.dy), gradient);
  } else if (gradient.column == 1) {
    library_.multiply(in, out, rows, activation_matrix(op.x).transposed(), activation_matrix(op.dy), nullptr,
                      gradient, op.accumulate);
  } else {
    // dwᵀ = dyᵀ x is row-major.
    library_.multiply(out, in, rows, activation_matrix(op.dy).transposed(), activation_matrix(op.x), nullptr,
                      gradient.transposed(), op.accumulate);
  }
  if (!op.dbias) return true;
  dispatch_float(op.dy.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dbias.dtype, [&]<class G>(G) {
      column_sums(op.dy.as<T>(), sizes.rows, sizes.out, op.dbias.as<G>(), op.accumulate);
    });
  });
  return true;
}

namespace {

/// Packed rows of one expert.
struct ExpertRows {
  std::int64_t expert, first, count;

  TensorRef of(const TensorRef& packed) const {
    return packed.reshaped({packed.shape[0] * packed.shape[1], packed.shape[2]}).rows(first, count);
  }
};

/// Calls visit(rows) for each run of packed rows of an expert.
void for_each_run(const TensorRef& offsets, std::int64_t room, const auto& visit) {
  const std::int64_t experts = offsets.shape[1] - 1;
  for (std::int64_t part = 0; part < offsets.shape[0]; ++part) {
    const std::int32_t* own = offsets.as<std::int32_t>() + part * (experts + 1);
    for (std::int64_t e = 0; e < experts; ++e) {
      if (own[e + 1] > own[e]) visit(ExpertRows{e, part * room + own[e], own[e + 1] - own[e]});
    }
  }
}

TensorRef of_expert(const TensorRef& weights, std::int64_t expert) {
  const std::int64_t rows = weights.rank == 3 ? weights.shape[1] : 1;
  const std::int64_t columns = weights.shape[weights.rank - 1];
  return weights.flat(expert * rows * columns, rows * columns).reshaped({rows, columns});
}

}  // namespace

bool OnednnOperations::run(const GroupedLinearForward& op) {
  if (!Matmul::supports(op.x.dtype)) return false;
  const std::int64_t in = op.w.shape[1];
  const std::int64_t out = op.w.shape[2];
  own_.reserve(Matmul::most_scratch_bytes(op.x.dtype, op.x.shape[1], out, in, false, 0));
  for_each_run(op.offsets, op.x.shape[1], [&](const ExpertRows& rows) {
    const TensorRef y = rows.of(op.y);
    own_.multiply(rows.count, out, in, activation_matrix(rows.of(op.x)),
                  weight_matrix(of_expert(op.w, rows.expert)),
                  op.bias ? of_expert(op.bias, rows.expert).data : nullptr, activation_matrix(y), false);
    if (op.activated) below_.run(GeluForward{.x = y, .y = rows.of(op.activated)});
  });
  return true;
}

bool OnednnOperations::run(const GroupedLinearBackwardInput& op) {
  if (!Matmul::supports(op.dy.dtype)) return false;
  const std::int64_t in = op.w.shape[1];
  const std::int64_t out = op.w.shape[2];
  own_.reserve(Matmul::most_scratch_bytes(op.dy.dtype, op.dy.shape[1], in, out, false, 0));
  for_each_run(op.offsets, op.dy.shape[1], [&](const ExpertRows& rows) {
    const TensorRef dx = rows.of(op.dx);
    own_.multiply(rows.count, in, out, activation_matrix(rows.of(op.dy)),
                  weight_matrix(of_expert(op.w, rows.expert)).transposed(), nullptr, activation_matrix(dx),
                  false);
    if (op.pre) below_.run(GeluBackward{.x = rows.of(op.pre), .dy = dx, .dx = dx});
  });
  return true;
}

bool OnednnOperations::run(const GroupedLinearBackwardWeight& op) {
  if (!Matmul::supports(op.x.dtype)) return false;
  const std::int64_t in = op.dw.shape[1];
  const std::int64_t out = op.dw.shape[2];
  own_.reserve(Matmul::most_scratch_bytes(op.x.dtype, in, out, op.x.shape[1], true, 0));
  std::vector<bool> has_rows(static_cast<std::size_t>(op.dw.shape[0]), op.accumulate);
  for_each_run(op.offsets, op.x.shape[1], [&](const ExpertRows& rows) {
    auto&& adds = has_rows[static_cast<std::size_t>(rows.expert)];
    own_.multiply(in, out, rows.count, activation_matrix(rows.of(op.x)).transposed(),
                  activation_matrix(rows.of(op.dy)), nullptr, weight_matrix(of_expert(op.dw, rows.expert)),
                  adds, op.dbias ? of_expert(op.dbias, rows.expert).data : nullptr);
    adds = true;
  });
  for (std::size_t e = 0; e < has_rows.size(); ++e) {
    if (has_rows[e]) continue;
    for (const TensorRef& gradient : {op.dw, op.dbias}) {
      if (gradient)
        below_.run(Fill{.y = of_expert(gradient, static_cast<std::int64_t>(e)).flat(), .value = 0.0F});
    }
  }
  return true;
}

bool OnednnOperations::run(const MatrixProduct& op) {
  if (!is_multiplied(op.x.dtype)) return false;
  for (std::int64_t i = 0; i < op.z.shape[0]; ++i) {
    multiply(op.z.shape[1], op.z.shape[2], op.inner(), matrix_of_stack(op.x, i, op.x_transposed),
             matrix_of_stack(op.y, i, op.y_transposed), nullptr, matrix_of_stack(op.z, i));
  }
  return true;
}

std::string OnednnOperations::own_products() {
  std::string types;
  for (const DType type : {DType::bf16, DType::fp16}) {
    if (is_own(type)) types += fmt::format("{}{}", types.empty() ? "" : ", ", name_of(type));
  }
  return types.empty() ? "" : fmt::format(", own GEMM ({})", types);
}

std::size_t OnednnOperations::workspace(const PlannedWork& work) {
  Products products(cpu_engine());
  const int threads = omp_get_max_threads();
  std::size_t copies = 0;
  std::size_t own_scratch = 0;
  for (const PlannedProduct& p : work.products) {
    if (p.is_grouped) {
      if (Matmul::supports(p.dtype)) own_scratch = std::max(own_scratch, grouped_scratch_bytes(p));
      continue;
    }
    if (!is_multiplied(p.dtype)) continue;
    if (p.threads > 0) omp_set_num_threads(p.threads);
    if (is_own(p.dtype)) {
      own_scratch = std::max(own_scratch, scratch_bytes(p, p.rows));
      if (p.last_rows > 0) own_scratch = std::max(own_scratch, scratch_bytes(p, p.last_rows));
      if (p.evaluated_rows >= least_rows)
        own_scratch = std::max(
            own_scratch, Matmul::scratch_bytes(p.dtype, p.evaluated_rows, p.out, p.in, false, p.threads));
    } else {
      Copies most = make_products(products, p, p.rows, true, p.accumulates);
      const auto add = [&](const Copies& other) {
        most = {std::max(most.forward, other.forward), std::max(most.input, other.input)};
      };
      if (p.last_rows > 0) add(make_products(products, p, p.last_rows, false, true));
      if (p.evaluated_rows > 0) add(make_products(products, p, p.evaluated_rows, false, false, true));
      // One per weight, version and use.
      copies += (most.forward + most.input) * static_cast<std::size_t>(p.places);
    }
  }
  for (const PlannedMatrixProduct& p : work.matrix_products) {
    if (!is_multiplied(p.dtype)) continue;
    if (p.threads > 0) omp_set_num_threads(p.threads);
    if (is_own(p.dtype)) {
      own_scratch =
          std::max(own_scratch, Matmul::scratch_bytes(p.dtype, p.m, p.n, p.k, p.x_transposed, p.threads));
      continue;
    }
    const MatrixView x{nullptr, p.dtype, p.x_transposed ? p.m : p.k, 1};
    const MatrixView y{nullptr, p.dtype, p.y_transposed ? p.k : p.n, 1};
    products.find(ProductKey::product(p.m, p.n, p.k, p.x_transposed ? x.transposed() : x,
                                      p.y_transposed ? y.transposed() : y, false,
                                      {nullptr, DType::fp32, p.n, 1}, false));
  }
  omp_set_num_threads(threads);
  return copies + own_scratch + products.scratchpad_bytes();
}

}  // namespace mylos::compute_onednn
