// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/matmul_cache.hpp"

#include "core/error.hpp"

namespace mylos {

namespace {

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

using Desc = dnnl::memory::desc;

}  // namespace

MatmulCache::MatmulCache(ComputeBackend& memory, MemoryLedger* ledger)
    : memory_(memory), ledger_(ledger), packed_(memory, ledger, engine_) {}

MatmulCache::~MatmulCache() {
  if (scratchpad_ == nullptr) return;
  memory_.deallocate(scratchpad_);
  if (ledger_ != nullptr) ledger_->release(MemoryCategory::workspace, scratchpad_bytes_);
}

bool MatmulCache::supports(DType dtype) {
  if (dtype == DType::fp32) return true;
  // The instruction sets are bit masks; bf16 has no kernels below AVX-512.
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return dtype == DType::bf16 && (isa & needed) == needed;
}

void MatmulCache::multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b,
                           void* bias, MatrixRef c, bool accumulate) {
  require(c.column == 1, "a row-major product");
  const bool is_packed = b.version != 0 && packs(m);
  const Key key{m,     n,       k,       a.row,   a.column,        b.row,      b.column,
                c.row, a.dtype, b.dtype, c.dtype, bias != nullptr, accumulate, is_packed};
  auto found = products_.find(key);
  if (found == products_.end()) {
    found = products_.emplace(key, make(key)).first;
    reserve(found->second.scratchpad_bytes);
  }
  Product& product = found->second;
  if (is_packed) {
    b.data = packed_.packed(b, {{k, n}, type_of(b.dtype), {b.row, b.column}}, product.b.get_desc(), b.version,
                            stream_);
  }
  product.a.set_data_handle(a.data);
  product.b.set_data_handle(b.data);
  product.c.set_data_handle(c.data);
  product.scratchpad.set_data_handle(scratchpad_);
  if (bias != nullptr) product.bias.set_data_handle(bias);
  product.primitive.execute(stream_, product.arguments);
}

MatmulCache::Product MatmulCache::make(const Key& key) {
  const Desc a({key.m, key.k}, type_of(key.a_type), {key.a_row, key.a_column});
  const Desc c({key.m, key.n}, type_of(key.c_type), {key.c_row, 1});
  const Desc bias({1, key.n}, type_of(key.b_type), {key.n, 1});
  const WeightShape weight{key.k, key.n, key.b_row, key.b_column, key.b_type};
  const auto known = layouts_.find(weight);
  const Desc b = !key.is_packed ? Desc({key.k, key.n}, type_of(key.b_type), {key.b_row, key.b_column})
                 : known != layouts_.end()
                     ? known->second
                     : Desc({key.k, key.n}, type_of(key.b_type), dnnl::memory::format_tag::any);

  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc operation =
      key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc description(operation, attributes, engine_);
  if (key.is_packed) layouts_.emplace(weight, description.weights_desc());

  Product product{dnnl::matmul(description),
                  dnnl::memory(a, engine_, nullptr),
                  dnnl::memory(description.weights_desc(), engine_, nullptr),
                  dnnl::memory(bias, engine_, nullptr),
                  dnnl::memory(c, engine_, nullptr),
                  dnnl::memory(description.scratchpad_desc(), engine_, nullptr),
                  {},
                  description.scratchpad_desc().get_size()};
  product.arguments = {{DNNL_ARG_SRC, product.a},
                       {DNNL_ARG_WEIGHTS, product.b},
                       {DNNL_ARG_DST, product.c},
                       {DNNL_ARG_SCRATCHPAD, product.scratchpad}};
  if (key.bias) product.arguments.emplace(DNNL_ARG_BIAS, product.bias);
  return product;
}

void MatmulCache::reserve(std::size_t bytes) {
  if (bytes <= scratchpad_bytes_) return;
  void* larger = memory_.allocate(bytes, "mylos::onednn::scratchpad");
  if (scratchpad_ != nullptr) memory_.deallocate(scratchpad_);
  if (ledger_ != nullptr) {
    ledger_->charge(MemoryCategory::workspace, bytes);
    ledger_->release(MemoryCategory::workspace, scratchpad_bytes_);
  }
  scratchpad_ = larger;
  scratchpad_bytes_ = bytes;
}

}  // namespace mylos
