// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/products.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "backends/compute_onednn/primitive_desc.hpp"

namespace mylos::compute_onednn {

namespace {

using Desc = dnnl::memory::desc;

dnnl::primitive_attr own_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// `primitive` with operands a, b, c and, if it is not empty, `bias`. `ids` are the primitive's arguments for
/// a, b and c.
Product product_of(const dnnl::primitive& primitive, const std::array<int, 3>& ids, const Desc& a,
                   const Desc& b, const std::optional<Desc>& bias, const Desc& c, const Desc& scratchpad,
                   const dnnl::engine& engine) {
  const auto unset = [&](const Desc& desc) { return dnnl::memory(desc, engine, nullptr); };
  Product product{primitive, unset(a),          unset(b), bias ? unset(*bias) : dnnl::memory(),
                  unset(c),  unset(scratchpad), {},       scratchpad.get_size()};
  product.arguments = {{ids[0], product.a},
                       {ids[1], product.b},
                       {ids[2], product.c},
                       {DNNL_ARG_SCRATCHPAD, product.scratchpad}};
  if (bias) product.arguments.emplace(DNNL_ARG_BIAS, product.bias);
  return product;
}

constexpr std::array<int, 3> forward_ids = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};

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
  std::optional<Desc> bias;
  if (key.bias) bias = Desc({1, key.n}, type_of(key.b_type), {key.n, 1});
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
  const auto description = bias ? describe<dnnl::matmul>(engine_, attributes, a, b, *bias, c)
                                : describe<dnnl::matmul>(engine_, attributes, a, b, c);
  if (is_packed) layouts_.emplace(weight, description.weights_desc());

  return product_of(dnnl::matmul(description), forward_ids, a, description.weights_desc(), bias, c,
                    description.scratchpad_desc(), engine_);
}

Product Products::make_inner_product(const ProductKey& key) const {
  const Desc x({key.m, key.k}, type_of(key.a_type), {key.a_row, key.a_column});
  // oneDNN's weights are (out, in).
  const Desc w({key.n, key.k}, type_of(key.b_type), {key.b_column, key.b_row});
  std::optional<Desc> bias;
  if (key.bias) bias = Desc({key.n}, type_of(key.b_type), {1});
  const Desc y({key.m, key.n}, type_of(key.c_type), {key.c_row, key.c_column});
  constexpr auto inference = dnnl::prop_kind::forward_inference;
  using Forward = dnnl::inner_product_forward;
  const auto description = bias ? describe<Forward>(engine_, own_scratchpad(), inference, x, w, *bias, y)
                                : describe<Forward>(engine_, own_scratchpad(), inference, x, w, y);
  return product_of(Forward(description), forward_ids, x, description.weights_desc(), bias, y,
                    description.scratchpad_desc(), engine_);
}

Product Products::make_weight_gradient(const ProductKey& key) const {
  const Desc x({key.k, key.m}, type_of(key.a_type), {key.a_row, key.a_column});
  const Desc dy({key.k, key.n}, type_of(key.b_type), {key.b_row, key.b_column});
  // oneDNN's weights are (out, in).
  const Desc dw({key.n, key.m}, type_of(key.c_type), {key.c_column, key.c_row});
  const Desc weights({key.n, key.m}, type_of(key.a_type), dnnl::memory::format_tag::any);
  constexpr auto training = dnnl::prop_kind::forward_training;
  const auto forward =
      describe<dnnl::inner_product_forward>(engine_, dnnl::primitive_attr(), training, x, weights, dy);
  const auto description =
      describe_with_hint<dnnl::inner_product_backward_weights>(engine_, own_scratchpad(), forward, x, dw, dy);
  return product_of(dnnl::inner_product_backward_weights(description),
                    {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}, x, dy, std::nullopt, dw,
                    description.scratchpad_desc(), engine_);
}

}  // namespace mylos::compute_onednn
