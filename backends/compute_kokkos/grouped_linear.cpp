// SPDX-License-Identifier: BSD-3-Clause
// The linear layers of experts, on packed rows, and of routers.
#include "backends/compute_kokkos/blocked_product.hpp"
#include "backends/compute_kokkos/gelu.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

/// The packed rows of experts: `parts` runs for each of `experts`.
struct PackedRows {
  const std::int32_t* offsets;  // (parts, experts + 1)
  std::int64_t parts, experts, room;

  PackedRows(const TensorRef& offsets_of_parts, const TensorRef& rows)
      : offsets(offsets_of_parts.as<std::int32_t>()),
        parts(offsets_of_parts.shape[0]),
        experts(offsets_of_parts.shape[1] - 1),
        room(rows.shape[1]) {
    require(offsets_of_parts.rank == 2 && rows.rank == 3 && rows.shape[0] == parts && rows.contiguous(),
            "packed rows (P, R, C) with offsets (P, L + 1)");
  }

  KOKKOS_FORCEINLINE_FUNCTION std::int64_t first(std::int64_t part, std::int64_t expert) const {
    return part * room + offsets[part * (experts + 1) + expert];
  }
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t count(std::int64_t part, std::int64_t expert) const {
    const std::int32_t* of_part = offsets + part * (experts + 1);
    return of_part[expert + 1] - of_part[expert];
  }
  /// The most tiles of rows of one expert that a part can have.
  std::int64_t tiles_of_part() const { return room / block_rows + experts; }
};

/// Rows of one expert.
struct RowTile {
  std::int64_t expert = 0;
  std::int64_t first = 0;
  int count = 0;
};

/// Tile `number` of the packed rows; its count is 0 if there is none.
KOKKOS_FORCEINLINE_FUNCTION RowTile row_tile(const PackedRows& rows, std::int64_t tiles_of_part,
                                             std::int64_t number) {
  const std::int64_t part = number / tiles_of_part;
  std::int64_t left = number % tiles_of_part;
  for (std::int64_t expert = 0; expert < rows.experts; ++expert) {
    const std::int64_t count = rows.count(part, expert);
    const std::int64_t tiles = (count + block_rows - 1) / block_rows;
    if (left < tiles) {
      const std::int64_t begin = left * block_rows;
      const std::int64_t rest = count - begin;
      return {expert, rows.first(part, expert) + begin,
              static_cast<int>(rest < block_rows ? rest : block_rows)};
    }
    left -= tiles;
  }
  return {};
}

/// Calls store(expert, packed row, Lanes of columns, value) for the values of x[r] w[expert], for the packed
/// rows x (P, R, k) that exist; w (L, k, n), or (L, n, k) if `transposed`.
template <class T, class Store>
void grouped_product(const std::string& label, PackedRows rows, std::int64_t n, std::int64_t k, const T* x,
                     const T* w, bool transposed, Store store) {
  const std::int64_t tiles_of_part = rows.tiles_of_part();
  const std::int64_t tile_columns = (n + block_columns - 1) / block_columns;
  const std::int64_t w_row = transposed ? 1 : n;
  const std::int64_t w_column = transposed ? k : 1;
  Kokkos::parallel_for(
      label, ProductTile::policy(rows.parts * tiles_of_part * tile_columns),
      KOKKOS_LAMBDA(const Member& member) {
        const RowTile at_rows = row_tile(rows, tiles_of_part, member.league_rank() / tile_columns);
        if (at_rows.count == 0) return;
        const std::int64_t j0 = member.league_rank() % tile_columns * block_columns;
        const ProductTile tile(member, at_rows.count,
                               static_cast<int>(n - j0 < block_columns ? n - j0 : block_columns));
        tile.multiply<T, T>(k, {x + at_rows.first * k, k, 1},
                            {w + at_rows.expert * k * n + j0 * w_column, w_row, w_column}, false);
        tile.for_each([&](int i, Lanes at, Vec value) {
          store(at_rows.expert, at_rows.first + i, Lanes{j0 + at.first, at.count}, value);
        });
      });
}

template <class T>
void forward(const GroupedLinearForward& op) {
  const std::int64_t in = op.w.shape[1];
  const std::int64_t out = op.w.shape[2];
  const T* bias = op.bias ? vector<const T>(op.bias).data() : nullptr;
  T* y = op.y.as<T>();
  T* activated = op.activated ? op.activated.as<T>() : nullptr;
  grouped_product<T>(
      "mylos::grouped_linear_forward::tiles"_label, {op.offsets, op.x}, out, in, op.x.as<T>(), op.w.as<T>(),
      false, KOKKOS_LAMBDA(std::int64_t expert, std::int64_t row, Lanes at, Vec value) {
        if (bias != nullptr) value = value + at.load(bias + expert * out);
        at.store(y + row * out, value);
        if (activated != nullptr) at.store(activated + row * out, gelu(value));
      });
}

template <class T>
void backward_input(const GroupedLinearBackwardInput& op) {
  const std::int64_t in = op.w.shape[1];
  const std::int64_t out = op.w.shape[2];
  const T* pre = op.pre ? op.pre.as<T>() : nullptr;
  T* dx = op.dx.as<T>();
  grouped_product<T>(
      "mylos::grouped_linear_backward_input::tiles"_label, {op.offsets, op.dy}, in, out, op.dy.as<T>(),
      op.w.as<T>(), true, KOKKOS_LAMBDA(std::int64_t, std::int64_t row, Lanes at, Vec value) {
        at.store(dx + row * in, pre != nullptr ? value * gelu_slope(at.load(pre + row * in)) : value);
      });
}

/// A team adds up a tile of one expert's gradient over its runs of rows.
template <class T, class G>
void weight_kernel(PackedRows rows, std::int64_t in, std::int64_t out, const T* x, const T* dy, G* dw,
                   bool accumulate) {
  const std::int64_t tile_rows = (in + block_rows - 1) / block_rows;
  const std::int64_t tile_columns = (out + block_columns - 1) / block_columns;
  const std::int64_t tiles = tile_rows * tile_columns;
  Kokkos::parallel_for(
      "mylos::grouped_linear_backward_weight::tiles"_label, ProductTile::policy(rows.experts * tiles),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t expert = member.league_rank() / tiles;
        const std::int64_t i0 = member.league_rank() % tiles / tile_columns * block_rows;
        const std::int64_t j0 = member.league_rank() % tile_columns * block_columns;
        const ProductTile tile(member, static_cast<int>(in - i0 < block_rows ? in - i0 : block_rows),
                               static_cast<int>(out - j0 < block_columns ? out - j0 : block_columns));
        bool has_rows = false;
        for (std::int64_t part = 0; part < rows.parts; ++part) {
          const std::int64_t first = rows.first(part, expert);
          const std::int64_t count = rows.count(part, expert);
          if (count == 0) continue;
          tile.multiply<T, T>(count, {x + first * in + i0, 1, in}, {dy + first * out + j0, out, 1}, has_rows);
          has_rows = true;
        }
        if (!has_rows) {
          if (accumulate) return;
          tile.clear();
        }
        tile.for_each([&](int i, Lanes at, Vec value) {
          G* to = dw + (expert * in + i0 + i) * out + j0;
          at.store(to, accumulate ? value + at.load(to) : value);
        });
      });
}

/// A thread adds up some columns of one expert, over its runs of rows in order.
template <class T, class G>
void bias_kernel(PackedRows rows, std::int64_t out, const T* dy, G* dbias, bool accumulate) {
  constexpr int vectors = on_host ? 4 : 1;
  constexpr std::int64_t strip = static_cast<std::int64_t>(vectors) * width;
  const std::int64_t strips = (out + strip - 1) / strip;
  Kokkos::parallel_for(
      "mylos::grouped_linear_backward_weight::bias"_label, Range(queue(), 0, rows.experts * strips),
      KOKKOS_LAMBDA(std::int64_t item) {
        const std::int64_t expert = item / strips;
        Lanes lanes[vectors];
        Vec sums[vectors];
        for (int v = 0; v < vectors; ++v) {
          const std::int64_t first = item % strips * strip + v * width;
          const std::int64_t left = out - first;
          lanes[v] = {first, static_cast<int>(left < 0 ? 0 : (left < width ? left : width))};
          sums[v] = accumulate ? lanes[v].load(dbias + expert * out) : Vec(0.0F);
        }
        for (std::int64_t part = 0; part < rows.parts; ++part) {
          const T* row = dy + rows.first(part, expert) * out;
          for (std::int64_t r = 0; r < rows.count(part, expert); ++r, row += out) {
            for (int v = 0; v < vectors; ++v) sums[v] = sums[v] + lanes[v].load(row);
          }
        }
        for (int v = 0; v < vectors; ++v) lanes[v].store(dbias + expert * out, sums[v]);
      });
}

}  // namespace

void KokkosOperations::run(const GroupedLinearForward& op) {
  require(op.w.rank == 3 && op.w.contiguous() && op.y.contiguous() &&
              (!op.activated || op.activated.contiguous()),
          "weights (L, I, O)");
  dispatch_float(op.x.dtype, [&]<class T>(T) { forward<T>(op); });
}

void KokkosOperations::run(const GroupedLinearBackwardInput& op) {
  require(op.w.rank == 3 && op.w.contiguous() && op.dx.contiguous() && (!op.pre || op.pre.contiguous()),
          "weights (L, I, O)");
  dispatch_float(op.dy.dtype, [&]<class T>(T) { backward_input<T>(op); });
}

void KokkosOperations::run(const GroupedLinearBackwardWeight& op) {
  require(op.dw.rank == 3 && op.dw.contiguous() && op.x.contiguous(), "gradients (L, I, O)");
  const PackedRows rows(op.offsets, op.dy);
  const std::int64_t in = op.dw.shape[1];
  const std::int64_t out = op.dw.shape[2];
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dw.dtype, [&]<class G>(G) {
      weight_kernel<T, G>(rows, in, out, op.x.as<T>(), op.dy.as<T>(), op.dw.as<G>(), op.accumulate);
      if (op.dbias) bias_kernel<T, G>(rows, out, op.dy.as<T>(), op.dbias.as<G>(), op.accumulate);
    });
  });
}

// ---- Routers: products with few columns, whose result is fp32

namespace {

template <class T>
void router_forward(const RouterForward& op, const LinearSizes& sizes) {
  float* logits = vector<float>(op.logits).data();
  const std::int64_t columns = sizes.out;
  blocked_product<T, T>(
      "mylos::router_forward::tiles"_label, sizes.rows, sizes.out, sizes.in,
      strided<const T>(activation_matrix(op.x)), strided<const T>(weight_matrix(op.w)),
      KOKKOS_LAMBDA(std::int64_t row, Lanes at, Vec value) { at.store(logits + row * columns, value); });
}

template <class T>
void router_backward_input(const RouterBackwardInput& op, const LinearSizes& sizes) {
  const std::int64_t columns = sizes.in;
  const T* residual = op.residual ? vector<const T>(op.residual).data() : nullptr;
  T* dx = vector<T>(op.dx).data();
  const float scale = op.scale;
  blocked_product<float, T>(
      "mylos::router_backward_input::tiles"_label, sizes.rows, sizes.in, sizes.out,
      strided<const float>(activation_matrix(op.dlogits)), strided<const T>(weight_matrix(op.w).transposed()),
      KOKKOS_LAMBDA(std::int64_t row, Lanes at, Vec value) {
        value = value * Vec(scale);
        if (residual != nullptr) value = value + at.load(residual + row * columns);
        at.store(dx + row * columns, value);
      });
}

template <class T, class G>
void router_backward_weight(const RouterBackwardWeight& op, const LinearSizes& sizes) {
  const std::int64_t columns = sizes.out;
  const bool accumulate = op.accumulate;
  G* dw = vector<G>(op.dw).data();
  blocked_product<T, float>(
      "mylos::router_backward_weight::tiles"_label, sizes.in, sizes.out, sizes.rows,
      strided<const T>(activation_matrix(op.x).transposed()),
      strided<const float>(activation_matrix(op.dlogits)),
      KOKKOS_LAMBDA(std::int64_t row, Lanes at, Vec value) {
        G* to = dw + row * columns;
        at.store(to, accumulate ? value + at.load(to) : value);
      });
}

}  // namespace

void KokkosOperations::run(const RouterForward& op) {
  const LinearSizes sizes = linear_sizes(op.x, op.w, {}, op.logits);
  dispatch_float(op.x.dtype, [&]<class T>(T) { router_forward<T>(op, sizes); });
}

void KokkosOperations::run(const RouterBackwardInput& op) {
  const LinearSizes sizes = linear_sizes(op.dx, op.w, {}, op.dlogits);
  dispatch_float(op.dx.dtype, [&]<class T>(T) { router_backward_input<T>(op, sizes); });
}

void KokkosOperations::run(const RouterBackwardWeight& op) {
  const LinearSizes sizes = linear_sizes(op.x, op.dw, {}, op.dlogits);
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dw.dtype, [&]<class G>(G) { router_backward_weight<T, G>(op, sizes); });
  });
}

}  // namespace mylos::compute_kokkos
