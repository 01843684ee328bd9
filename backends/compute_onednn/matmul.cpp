// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/matmul.hpp"

#include <algorithm>
#include <cstring>
#include <omp.h>

#include "core/base/error.hpp"
#include "core/base/instruction_set.hpp"

namespace mylos::compute_onednn {

namespace {

/// The largest number of sums (fp32) that a part keeps if the summed dimension has several blocks: 2 MiB of
/// sums, or the sums of one panel if that is more.
constexpr std::int64_t most_sums = std::int64_t{1} << 19;

const MatmulKernel* kernel_for(DType type) {
#if defined(__x86_64__)
  const InstructionSet set = instruction_set();
  if (set == InstructionSet::avx512_bf16 && type == DType::bf16) return avx512_bf16_matmul(type);
  if (set >= InstructionSet::avx512) return avx512_matmul(type);
  if (set == InstructionSet::avx2) return avx2_matmul(type);
#endif
  return nullptr;
}

/// Whether all rows of `a` have to be packed: because they are widened, because their values are not
/// contiguous, or because the last pair of a row of odd length would reach into the next row.
bool packs_rows(const MatmulTile& tile, DType type, std::int64_t k, bool a_is_transposed) {
  return a_is_transposed || static_cast<std::size_t>(tile.group) * size_of(type) != sizeof(float) ||
         k % tile.group != 0;
}

}  // namespace

MatmulDivision::MatmulDivision(const MatmulTile& of, std::int64_t m, std::int64_t n, std::int64_t k,
                               bool packs_all_rows, int threads)
    : tile(of),
      packs_rows(packs_all_rows),
      row_blocks(ceil_div(m, of.rows)),
      panels(ceil_div(n, of.columns)),
      k_blocks(ceil_div(k, of.most_k)),
      k_block(ceil_div(ceil_div(k, k_blocks), of.k_multiple) * of.k_multiple),
      sums(of.rows * of.columns) {
  std::int64_t best = row_blocks * panels + 1;
  for (int rows = 1; rows <= threads; ++rows) {
    const int columns = threads / rows;
    const std::int64_t work = ceil_div(row_blocks, rows) * ceil_div(panels, columns);
    if (work >= best) continue;
    best = work;
    row_parts = rows;
    column_parts = columns;
  }
  packed_tiles = packs_rows ? ceil_div(row_blocks, row_parts) : 1;
  if (k_blocks == 1) return;
  // Groups of equal size, except the last. The size is chosen so that the number of groups is near a multiple
  // of column_parts.
  const std::int64_t panel_sums = ceil_div(row_blocks, row_parts) * of.rows * of.columns;
  const std::int64_t most = std::max<std::int64_t>(most_sums / panel_sums, 1);
  group = ceil_div(panels, column_parts * ceil_div(ceil_div(panels, column_parts), most));
  sums = group * panel_sums;
}

bool Matmul::supports(DType type) {
  return kernel_for(type) != nullptr;
}

void Matmul::multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b,
                      const void* bias, MatrixView c, bool accumulate, void* column_sums) {
  require(m > 0 && n > 0 && k > 0, "a product that is not empty");
  require(a.dtype == b.dtype && (c.dtype == a.dtype || c.dtype == DType::fp32), "factors of one type");
  require(c.column == 1 || bias == nullptr, "a row-major product if there is a bias");
  const MatmulKernel* kernel = kernel_for(a.dtype);
  require(kernel != nullptr, "a kernel for this type and machine");
  const MatmulOperands operands = {m, n, k, a, b, bias, c, accumulate, column_sums};
  const MatmulDivision division(kernel->tile, m, n, k, packs_rows(kernel->tile, a.dtype, k, a.column != 1),
                                omp_get_max_threads());
  scratch_.reserve(division.bytes());
  auto* counters = static_cast<std::int64_t*>(scratch_.data());
  float* parts = static_cast<float*>(scratch_.data()) + division.counter_floats();
  std::memset(counters, 0, static_cast<std::size_t>(division.counter_floats()) * sizeof(float));
#pragma omp parallel for schedule(static, 1)
  for (int part = 0; part < division.parts(); ++part) {
    const int row_part = part / division.column_parts;
    kernel->multiply(operands, division, row_part, parts + part * division.part_floats(),
                     counters + row_part * MatmulDivision::line / 2);
  }
}

std::size_t Matmul::scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k,
                                  bool a_is_transposed, int threads) {
  const MatmulKernel* kernel = kernel_for(type);
  require(kernel != nullptr, "a kernel for this type and machine");
  return MatmulDivision(kernel->tile, m, n, k, packs_rows(kernel->tile, type, k, a_is_transposed),
                        threads > 0 ? threads : omp_get_max_threads())
      .bytes();
}

std::size_t Matmul::most_scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k,
                                       bool a_is_transposed, int threads) {
  // The division depends on the number of blocks only.
  const MatmulTile& tile = kernel_for(type)->tile;
  std::int64_t& varied = a_is_transposed ? k : m;
  const std::int64_t limit = varied;
  const std::int64_t block = a_is_transposed ? tile.k_multiple : tile.rows;
  std::size_t most = 0;
  for (varied = block; varied < limit + block; varied += block)
    most = std::max(most, scratch_bytes(type, m, n, k, a_is_transposed, threads));
  return most;
}

}  // namespace mylos::compute_onednn
