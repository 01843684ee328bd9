// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/matmul_cache.hpp"

#include "core/base/error.hpp"
#include "core/base/instruction_set.hpp"

namespace mylos::compute_onednn {

namespace {

/// The set that MYLOS_CPU allows. It may include VNNI, which is for integers and not used.
dnnl::cpu_isa allowed_isa() {
  const InstructionSet set = instruction_set();
  return set == InstructionSet::avx512_bf16 ? dnnl::cpu_isa::avx512_core_bf16
         : set == InstructionSet::avx512    ? dnnl::cpu_isa::avx512_core_vnni
                                            : dnnl::cpu_isa::avx2;
}

void limit_once() {
  [[maybe_unused]] static const bool is_limited = [] {
    if (instruction_set_limit() && dnnl::set_max_cpu_isa(allowed_isa()) != dnnl::status::success)
      fail(ExitCode::usage, "oneDNN cannot be limited to the instructions that MYLOS_CPU allows");
    return true;
  }();
}

}  // namespace

dnnl::engine cpu_engine() {
  limit_once();
  return {dnnl::engine::kind::cpu, 0};
}

bool uses(dnnl::cpu_isa set) {
  limit_once();
  const auto needed = static_cast<unsigned>(set);  // oneDNN's instruction sets are bit masks
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
}

MatmulCache::MatmulCache(ComputeBackend& memory, MemoryLedger* ledger)
    : packed_(memory, ledger, engine_), scratchpad_(memory, ledger, "mylos::onednn::scratchpad") {}

bool MatmulCache::supports(DType dtype) {
  // oneDNN has no bf16 kernels for AVX2.
  return dtype == DType::fp32 || (dtype == DType::bf16 && uses(dnnl::cpu_isa::avx512_core));
}

void MatmulCache::multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b,
                           void* bias, MatrixView c, bool accumulate) {
  require(c.column == 1, "a row-major product");
  const ProductKey key = ProductKey::product(m, n, k, a, b, bias != nullptr, c, accumulate);
  Product& product = products_.find(key);
  if (key.kind == ProductKey::Kind::product_with_packed_weights) {
    b.data = packed_.packed(b, {{k, n}, type_of(b.dtype), {b.row, b.column}}, product.b.get_desc(), b.version,
                            stream_);
  }
  run(product, a.data, b.data, bias, c.data);
}

void MatmulCache::inner_product(std::int64_t rows, std::int64_t in, std::int64_t out, MatrixView x,
                                MatrixView w, void* bias, MatrixView y) {
  Product& product = products_.find(ProductKey::inner_product(rows, in, out, x, w, bias != nullptr, y));
  run(product, x.data, w.data, bias, y.data);
}

void MatmulCache::weight_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, MatrixView x,
                                  MatrixView dy, MatrixView dw) {
  Product& product = products_.find(ProductKey::weight_gradient(rows, in, out, x, dy, dw));
  run(product, x.data, dy.data, nullptr, dw.data);
}

void MatmulCache::run(Product& product, void* a, void* b, void* bias, void* c) {
  scratchpad_.reserve(product.scratchpad_bytes);
  product.a.set_data_handle(a);
  product.b.set_data_handle(b);
  product.c.set_data_handle(c);
  product.scratchpad.set_data_handle(scratchpad_.data());
  if (bias != nullptr) product.bias.set_data_handle(bias);
  product.primitive.execute(stream_, product.arguments);
}

}  // namespace mylos::compute_onednn
