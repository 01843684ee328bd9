// SPDX-License-Identifier: BSD-3-Clause
// What differs between oneDNN 2 and 3: version 3 has no descriptions of operations besides those of
// primitives.
#pragma once

#include <dnnl.hpp>

namespace mylos::compute_onednn {

#if DNNL_VERSION_MAJOR < 3

inline dnnl::memory::dims dims_of(const dnnl::memory::desc& desc) {
  return desc.dims();
}

/// The description of a primitive from what its operation takes, without hints.
template <class Primitive>
typename Primitive::primitive_desc describe(const dnnl::engine& engine,
                                            const dnnl::primitive_attr& attributes,
                                            const auto&... operation) {
  return {typename Primitive::desc(operation...), attributes, engine};
}

/// The same with the description of a forward pass as a hint.
template <class Primitive>
typename Primitive::primitive_desc describe_with_hint(const dnnl::engine& engine,
                                                      const dnnl::primitive_attr& attributes,
                                                      const auto& hint, const auto&... operation) {
  return {typename Primitive::desc(operation...), attributes, engine, hint};
}

#else

inline dnnl::memory::dims dims_of(const dnnl::memory::desc& desc) {
  return desc.get_dims();
}

template <class Primitive>
typename Primitive::primitive_desc describe(const dnnl::engine& engine,
                                            const dnnl::primitive_attr& attributes,
                                            const auto&... operation) {
  return {engine, operation..., attributes};
}

template <class Primitive>
typename Primitive::primitive_desc describe_with_hint(const dnnl::engine& engine,
                                                      const dnnl::primitive_attr& attributes,
                                                      const auto& hint, const auto&... operation) {
  return {engine, operation..., hint, attributes};
}

#endif

}  // namespace mylos::compute_onednn
