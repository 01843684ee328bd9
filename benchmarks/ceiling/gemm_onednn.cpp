// SPDX-License-Identifier: BSD-3-Clause
// The GEMM ceiling with oneDNN: tries matmul and inner product with several weight layouts for every product.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dnnl.hpp>

#include "backends/compute_onednn/primitive_desc.hpp"
#include "benchmarks/ceiling/caches.hpp"
#include "benchmarks/ceiling/gemm.hpp"
#include "benchmarks/ceiling/timing.hpp"
#include "core/base/rng.hpp"

namespace mylos {

namespace {

using compute_onednn::describe;
using compute_onednn::describe_with_hint;
using dnnl::memory;
using Layout = memory::format_tag;

constexpr std::size_t cache_line = 64;

/// A way to compute a product: a primitive, and the layouts that it needs.
struct Variant {
  dnnl::primitive primitive;
  std::array<int, 3> arguments;          // oneDNN's argument indices; the result comes last
  std::array<memory::desc, 3> operands;  // layouts
};

/// The variants of the products of y = x w. Activations x (M, I) and y (M, O) are row-major.
class LinearVariants {
 public:
  LinearVariants(const dnnl::engine& engine, std::int64_t rows, std::int64_t inputs, std::int64_t outputs,
                 memory::data_type type)
      : engine_(engine),
        m_(rows),
        i_(inputs),
        o_(outputs),
        type_(type),
        x_({m_, i_}, type, Layout::ab),
        y_({m_, o_}, type, Layout::ab) {}

  /// y = x w
  std::vector<Variant> forward() const {
    std::vector<Variant> variants;
    for (const Layout layout : weight_layouts) {
      add_matmul(variants, x_, {{i_, o_}, type_, layout}, y_);
      add(variants, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, [&] { return inner_product(layout); });
    }
    return variants;
  }

  /// dx = dy wᵀ
  std::vector<Variant> backward_input() const {
    std::vector<Variant> variants;
    for (const Layout layout : weight_layouts) {
      add_matmul(variants, y_, {{o_, i_}, type_, layout}, x_);
      add(variants, {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC}, [&] {
        return describe_with_hint<dnnl::inner_product_backward_data>(
            engine_, {}, inner_product(Layout::any), x_, memory::desc({o_, i_}, type_, layout), y_);
      });
    }
    return variants;
  }

  /// dw = xᵀ dy, or its transpose, in fp32 or in the type of the factors
  std::vector<Variant> backward_weight() const {
    std::vector<Variant> variants;
    const memory::desc x_transposed({i_, m_}, type_, Layout::ba);
    const memory::desc y_transposed({o_, m_}, type_, Layout::ba);
    for (const memory::data_type gradient : {memory::data_type::f32, type_}) {
      add_matmul(variants, x_transposed, y_, {{i_, o_}, gradient, Layout::ab});
      add_matmul(variants, y_transposed, x_, {{o_, i_}, gradient, Layout::ab});
      for (const Layout layout : weight_layouts) {
        add(variants, {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}, [&] {
          return describe_with_hint<dnnl::inner_product_backward_weights>(
              engine_, {}, inner_product(Layout::any), x_, memory::desc({o_, i_}, gradient, layout), y_);
        });
      }
      if (gradient == type_) break;
    }
    return variants;
  }

 private:
  static constexpr std::array weight_layouts = {Layout::ab, Layout::ba, Layout::any};

  /// Adds the primitive that `describe` describes, unless oneDNN has no implementation for these layouts or
  /// only its reference implementation.
  template <class Describe>
  static void add(std::vector<Variant>& variants, const std::array<int, 3>& arguments, Describe&& describe) {
    try {
      const auto description = describe();
      if (std::string_view(description.impl_info_str()).starts_with("ref")) return;
      const auto operand = [&](int i) {
        return description.query_md(dnnl::query::exec_arg_md, arguments[static_cast<std::size_t>(i)]);
      };
      variants.push_back({dnnl::primitive(description), arguments, {operand(0), operand(1), operand(2)}});
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  }

  /// y = x w, which oneDNN also needs as a hint for the gradients.
  dnnl::inner_product_forward::primitive_desc inner_product(Layout layout) const {
    return describe<dnnl::inner_product_forward>(engine_, {}, dnnl::prop_kind::forward_training, x_,
                                                 memory::desc({o_, i_}, type_, layout), y_);
  }

  void add_matmul(std::vector<Variant>& variants, const memory::desc& a, const memory::desc& b,
                  const memory::desc& c) const {
    add(variants, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        [&] { return describe<dnnl::matmul>(engine_, {}, a, b, c); });
  }

  const dnnl::engine& engine_;
  std::int64_t m_, i_, o_;
  memory::data_type type_;
  memory::desc x_, y_;
};

/// Memory full of numbers of either sign. Their magnitude is between 2^-7 and 2^-5 if they are read as bf16
/// or fp32, and between 1 and 1.25 if they are read as fp16.
class Numbers {
 public:
  /// At least `bytes` of numbers, aligned to cache lines. A call for more bytes than any earlier call may
  /// free the memory that earlier calls returned.
  std::byte* at_least(std::size_t bytes) {
    const std::size_t lines = (bytes + sizeof(Line) - 1) / sizeof(Line);
    if (lines > lines_) {
      lines_ = std::max(lines, lines_ + lines_ / 2);
      memory_.reset();
      memory_ = std::make_unique_for_overwrite<Line[]>(lines_);
      fill();
    }
    return reinterpret_cast<std::byte*>(memory_.get());
  }

 private:
  struct alignas(cache_line) Line {
    std::array<std::uint16_t, cache_line / sizeof(std::uint16_t)> halves;
  };

  void fill() {
    std::array<Line, 64> page;
    std::uint64_t count = 0;
    for (Line& line : page) {
      for (std::uint16_t& half : line.halves)
        half = static_cast<std::uint16_t>(0x3c00U | (mix64(++count) & 0x80ffU));  // 16 bits, or half an fp32
    }
    const auto lines = static_cast<std::int64_t>(lines_);
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < lines; ++i) memory_[i] = page[static_cast<std::size_t>(i) % page.size()];
  }

  std::unique_ptr<Line[]> memory_;
  std::size_t lines_ = 0;
};

/// Times variants on operands that are out of cache.
class Stopwatch {
 public:
  explicit Stopwatch(const dnnl::engine& engine) : engine_(engine), stream_(engine) {}

  /// Seconds of the fastest variant; infinite if there are no variants.
  double fastest(const std::vector<Variant>& variants) {
    constexpr double glance = 0.02;
    constexpr double look = 0.2;
    constexpr std::size_t finalists = 2;
    std::vector<std::pair<double, const Variant*>> ranking;
    for (const Variant& variant : variants) ranking.emplace_back(seconds(variant, glance, 1), &variant);
    std::ranges::sort(ranking);
    double least = std::numeric_limits<double>::infinity();
    ranking.resize(std::min(ranking.size(), finalists));
    for (const auto& [unused, variant] : ranking) least = std::min(least, seconds(*variant, look, 3));
    return least;
  }

 private:
  /// Median seconds of a call.
  double seconds(const Variant& variant, double budget, int calls) {
    std::array<std::size_t, 3> bytes{};
    std::ranges::transform(variant.operands, bytes.begin(), [](const memory::desc& operand) {
      return (operand.get_size() + cache_line - 1) / cache_line * cache_line;
    });
    const std::size_t copies = out_of_cache_copies(static_cast<double>(bytes[0] + bytes[1] + bytes[2]));
    std::byte* factors = factors_.at_least(copies * (bytes[0] + bytes[1]));
    std::byte* results = results_.at_least(copies * bytes[2]);
    memory a(variant.operands[0], engine_, factors);
    memory b(variant.operands[1], engine_, factors);
    memory c(variant.operands[2], engine_, results);
    const std::unordered_map<int, memory> arguments = {
        {variant.arguments[0], a}, {variant.arguments[1], b}, {variant.arguments[2], c}};
    return median_seconds(budget, calls, [&](int i) {
      const std::size_t copy = static_cast<std::size_t>(i) % copies;
      a.set_data_handle(factors + copy * (bytes[0] + bytes[1]));
      b.set_data_handle(factors + copy * (bytes[0] + bytes[1]) + bytes[0]);
      c.set_data_handle(results + copy * bytes[2]);
      variant.primitive.execute(stream_, arguments);
      stream_.wait();
    });
  }

  const dnnl::engine& engine_;
  dnnl::stream stream_;
  Numbers factors_;
  Numbers results_;
};

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return memory::data_type::f32;
    case DType::bf16:
      return memory::data_type::bf16;
    case DType::fp16:
      return memory::data_type::f16;
    default:
      fail(ExitCode::internal, "no matrix products of {}", name_of(dtype));
  }
}

}  // namespace

std::optional<double> measure_gemm_ceiling(const GemmShapes& shapes, const std::function<void()>& meet) {
  struct Layer {
    std::int64_t inputs, outputs, count;
  };
  const std::int64_t c = shapes.width;
  const std::array<Layer, 5> layers = {{{c, 3 * c, shapes.layers},
                                        {c, c, shapes.layers},
                                        {c, shapes.inner, shapes.layers},
                                        {shapes.inner, c, shapes.layers},
                                        {c, shapes.padded_vocab, 1}}};
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  Stopwatch stopwatch(engine);
  double flops = 0.0;
  double seconds = 0.0;
  for (const Layer& layer : layers) {
    const LinearVariants variants(engine, shapes.rows, layer.inputs, layer.outputs, type_of(shapes.dtype));
    for (const auto& product : {variants.forward(), variants.backward_input(), variants.backward_weight()}) {
      meet();
      seconds += static_cast<double>(layer.count) * stopwatch.fastest(product);
      flops += 2.0 * static_cast<double>(layer.count * shapes.rows * layer.inputs * layer.outputs);
    }
  }
  if (!std::isfinite(seconds)) return std::nullopt;
  return 1e-9 * flops / seconds;
}

}  // namespace mylos
