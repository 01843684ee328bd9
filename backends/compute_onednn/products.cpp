// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/products.hpp"

#include <algorithm>
#include <utility>

namespace mylos::compute_onednn {

namespace {

using Desc = dnnl::memory::desc;

dnnl::primitive_attr own_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// c = a times weights, plus `bias` if `has_bias`.
template <class Description>
Product forward_product(const dnnl::primitive& primitive, const Description& description, const Desc& a,
                        const Desc& bias, const Desc& c, bool has_bias, const dnnl::engine& engine) {
  Product product{primitive,
                  dnnl::memory(a, engine, nullptr),
                  dnnl::memory(description.weights_desc(), engine, nullptr),
                  dnnl::memory(bias, engine, nullptr),
                  dnnl::memory(c, engine, nullptr),
                  dnnl::memory(description.scratchpad_desc(), engine, nullptr),
                  {},
                  description.scratchpad_desc().get_size()};
  product.arguments = {{DNNL_ARG_SRC, product.a},
                       {DNNL_ARG_WEIGHTS, product.b},
                       {DNNL_ARG_DST, product.c},
                       {DNNL_ARG_SCRATCHPAD, product.scratchpad}};
  if (has_bias) product.arguments.emplace(DNNL_ARG_BIAS, product.bias);
  return product;
}

ProductKey key_of(ProductKey::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView& a,
                  const MatrixView& b, const MatrixView& c, bool bias, bool accumulate) {
  return {kind,  m,        n,       k,       a.row,   a.column, b.row,     b.column,
          c.row, c.column, a.dtype, b.dtype, c.dtype, bias,     accumulate};
}

}  // namespace

ProductKey ProductKey::product(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView& a,
                               const MatrixView& b, bool bias, const MatrixView& c, bool accumulate) {
  const bool is_packed = b.version != 0 && packs(m);
  return key_of(is_packed ? Kind::product_with_packed_weights : Kind::product, m, n, k, a, b, c, bias,
                accumulate);
}

ProductKey ProductKey::inner_product(std::int64_t rows, std::int64_t in, std::int64_t out,
                                     const MatrixView& x, const MatrixView& w, bool bias,
                                     const MatrixView& y) {
  return key_of(Kind::inner_product, rows, out, in, x, w, y, bias, false);
}

ProductKey ProductKey::weight_gradient(std::int64_t rows, std::int64_t in, std::int64_t out,
                                       const MatrixView& x, const MatrixView& dy, const MatrixView& dw) {
  return key_of(Kind::weight_gradient, in, out, rows, x, dy, dw, false, false);
}

Product& Products::find(const ProductKey& key) {
  auto found = products_.find(key);
  if (found == products_.end()) {
    Product made = key.kind == ProductKey::Kind::weight_gradient ? make_weight_gradient(key)
                   : key.kind == ProductKey::Kind::inner_product ? make_inner_product(key)
                                                                 : make_product(key);
    found = products_.emplace(key, std::move(made)).first;
    scratchpad_bytes_ = std::max(scratchpad_bytes_, found->second.scratchpad_bytes);
  }
  return found->second;
}

Product Products::make_product(const ProductKey& key) {
  const Desc a({key.m, key.k}, type_of(key.a_type), {key.a_row, key.a_column});
  const Desc c({key.m, key.n}, type_of(key.c_type), {key.c_row, key.c_column});
  const Desc bias({1, key.n}, type_of(key.b_type), {key.n, 1});
  const WeightShape weight{key.k, key.n, key.b_row, key.b_column, key.b_type};
  const bool is_packed = key.kind == ProductKey::Kind::product_with_packed_weights;
  const auto known = layouts_.find(weight);
  const Desc b = !is_packed ? Desc({key.k, key.n}, type_of(key.b_type), {key.b_row, key.b_column})
                 : known != layouts_.end()
                     ? known->second
                     : Desc({key.k, key.n}, type_of(key.b_type), dnnl::memory::format_tag::any);

  dnnl::primitive_attr attributes = own_scratchpad();
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc operation =
      key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc description(operation, attributes, engine_);
  if (is_packed) layouts_.emplace(weight, description.weights_desc());

  return forward_product(dnnl::matmul(description), description, a, bias, c, key.bias, engine_);
}

Product Products::make_inner_product(const ProductKey& key) const {
  const Desc x({key.m, key.k}, type_of(key.a_type), {key.a_row, key.a_column});
  // oneDNN's weights are (out, in).
  const Desc w({key.n, key.k}, type_of(key.b_type), {key.b_column, key.b_row});
  const Desc bias({key.n}, type_of(key.b_type), {1});
  const Desc y({key.m, key.n}, type_of(key.c_type), {key.c_row, key.c_column});
  constexpr auto inference = dnnl::prop_kind::forward_inference;
  const dnnl::inner_product_forward::desc operation =
      key.bias ? dnnl::inner_product_forward::desc(inference, x, w, bias, y)
               : dnnl::inner_product_forward::desc(inference, x, w, y);
  const dnnl::inner_product_forward::primitive_desc description(operation, own_scratchpad(), engine_);
  return forward_product(dnnl::inner_product_forward(description), description, x, bias, y, key.bias,
                         engine_);
}

Product Products::make_weight_gradient(const ProductKey& key) const {
  const Desc x({key.k, key.m}, type_of(key.a_type), {key.a_row, key.a_column});
  const Desc dy({key.k, key.n}, type_of(key.b_type), {key.b_row, key.b_column});
  // oneDNN's weights are (out, in).
  const Desc dw({key.n, key.m}, type_of(key.c_type), {key.c_column, key.c_row});
  const Desc weights({key.n, key.m}, type_of(key.a_type), dnnl::memory::format_tag::any);
  const dnnl::inner_product_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, x, weights, dy}, engine_);
  const dnnl::inner_product_backward_weights::primitive_desc description({x, dw, dy}, own_scratchpad(),
                                                                         engine_, forward);
  Product product{dnnl::inner_product_backward_weights(description),
                  dnnl::memory(x, engine_, nullptr),
                  dnnl::memory(dy, engine_, nullptr),
                  {},
                  dnnl::memory(dw, engine_, nullptr),
                  dnnl::memory(description.scratchpad_desc(), engine_, nullptr),
                  {},
                  description.scratchpad_desc().get_size()};
  product.arguments = {{DNNL_ARG_SRC, product.a},
                       {DNNL_ARG_DIFF_DST, product.b},
                       {DNNL_ARG_DIFF_WEIGHTS, product.c},
                       {DNNL_ARG_SCRATCHPAD, product.scratchpad}};
  return product;
}

}  // namespace mylos::compute_onednn
