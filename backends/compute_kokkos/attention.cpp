// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/dropout.hpp"
#include "backends/compute_kokkos/operations.hpp"
#include "backends/compute_kokkos/tile_product.hpp"
#include "core/ops/heads_view.hpp"

namespace mylos::compute_kokkos {

namespace {

// Tiles lie in scratch memory. They hold fp32 or, for bf16 tensors with AVX-512 BF16, pairs of bf16. Lanes
// run over queries in the forward pass and over keys in the backward pass, so that only the operands of the
// outer loop have to be transposed.
constexpr int block_queries = 64;
constexpr int block_keys = 64;
static_assert(block_queries % width == 0 && block_keys % width == 0 && block_queries % 2 == 0 &&
              block_keys % 2 == 0);

constexpr int padded(int n) {
  return (n + width - 1) / width * width;
}

/// The number of keys among k0 .. k0 + count - 1 that query q sees.
KOKKOS_FORCEINLINE_FUNCTION int seen_keys(const AttentionShape& shape, std::int64_t q, std::int64_t k0,
                                          int count) {
  const std::int64_t seen = shape.offset + q - k0 + 1;
  return static_cast<int>(seen < 0 ? 0 : (seen < count ? seen : count));
}

/// Copies `rows` rows of head (b, h), starting at row t0, to `tile`, which has `row` groups in each row. A
/// group holds successive values of one row; values beyond the dimension are 0.
template <class T, class E>
KOKKOS_FORCEINLINE_FUNCTION void load_rows(const HeadsView<const T>& from, std::int64_t b, std::int64_t t0,
                                           std::int64_t h, int rows, int dimension, E* tile, int row) {
  for (int i = 0; i < rows; ++i) {
    const T* in = from.row(b, t0 + i, h);
    if constexpr (std::is_same_v<E, float>) {
      for (int d = 0; d < row; d += width) {
        const int left = dimension - d;
        store(tile + i * row + d, Lanes{d, left < width ? (left < 0 ? 0 : left) : width}.load(in));
      }
    } else {
      T* out = reinterpret_cast<T*>(tile + i * row);
      std::memcpy(static_cast<void*>(out), in, static_cast<std::size_t>(dimension) * sizeof(T));
      std::memset(static_cast<void*>(out + dimension), 0,
                  static_cast<std::size_t>(row * group_size<E> - dimension) * sizeof(T));
    }
  }
}

/// Copies `rows` rows of head (b, h), starting at row t0, to `tile` (groups of rows, row). A group holds one
/// value from each of its rows. Values beyond the dimension, and beyond `rows` in the last group, are 0.
template <class T, class E>
KOKKOS_FORCEINLINE_FUNCTION void load_row_groups(const HeadsView<const T>& from, std::int64_t b,
                                                 std::int64_t t0, std::int64_t h, int rows, int dimension,
                                                 E* tile, int row) {
  if constexpr (std::is_same_v<E, float>) {
    load_rows(from, b, t0, h, rows, dimension, tile, row);
  } else {
    for (int i = 0; i < rows; i += 2) {
      const T* first = from.row(b, t0 + i, h);
      const T* second = from.row(b, t0 + i + 1, h);
      for (int d = 0; d < row; d += width) {
        const int left = dimension - d;
        const Lanes at{d, left < width ? (left < 0 ? 0 : left) : width};
        store_pair(tile + i / 2 * row + d, at.load(first), i + 1 < rows ? at.load(second) : Vec(0.0F));
      }
    }
  }
}

/// Transposes tile (rows, row) to transposed (groups, columns); columns beyond `rows` are 0.
template <class E>
KOKKOS_FORCEINLINE_FUNCTION void transpose(const E* tile, int rows, int row, int groups, int columns,
                                           E* transposed) {
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < rows; ++i) transposed[g * columns + i] = tile[i * row + g];
    for (int i = rows; i < columns; ++i) transposed[g * columns + i] = E{};
  }
}

/// Stores the values of rows `i` (even) and `i + 1` where a product that sums over rows expects them.
template <class E>
KOKKOS_FORCEINLINE_FUNCTION void store_two_rows(E* tile, int row, int i, int column, Vec first, Vec second) {
  if constexpr (std::is_same_v<E, float>) {
    store(tile + i * row + column, first);
    store(tile + (i + 1) * row + column, second);
  } else {
    store_pair(tile + i / 2 * row + column, first, second);
  }
}

/// Stores values contiguously, starting at value `first` of the tile.
template <class T, class E>
KOKKOS_FORCEINLINE_FUNCTION void store_values(E* tile, int first, Vec values) {
  if constexpr (std::is_same_v<E, float>) {
    store(tile + first, values);
  } else {
    store(reinterpret_cast<T*>(tile) + first, values);
  }
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void store_row(const float* from, int dimension, Vec factor, T* to) {
  for (int d = 0; d < dimension; d += width) {
    const Lanes at{d, dimension - d < width ? dimension - d : width};
    at.store(to, load(from + d) * factor);
  }
}

KOKKOS_FORCEINLINE_FUNCTION void fill(float* tile, int n, float value) {
  for (int i = 0; i < n; i += width) store(tile + i, Vec(value));
}

/// 0, 1, 2, ...
KOKKOS_FORCEINLINE_FUNCTION Vec lane_numbers() {
  float lanes[width];
  for (int l = 0; l < width; ++l) lanes[l] = static_cast<float>(l);
  return load(lanes);
}

/// Allocates `elements` elements in the team's scratch memory.
template <class E>
KOKKOS_FORCEINLINE_FUNCTION E* take(const Member& member, int elements) {
  static_assert(sizeof(E) == sizeof(float));
  return reinterpret_cast<E*>(Scratch(member.team_scratch(1), static_cast<std::size_t>(elements)).data());
}

template <class... Sizes>
std::size_t scratch_bytes(Sizes... elements) {
  return (Scratch::shmem_size(static_cast<std::size_t>(elements)) + ...);
}

/// One team per block of queries of a head. It visits the blocks of keys in order and updates the running
/// maximum and sum of Dao's algorithm ("FlashAttention-2", 2023).
template <class T>
void forward_kernel(const AttentionShape& shape, const Dropout& dropout, HeadsView<const T> query,
                    HeadsView<const T> key, HeadsView<const T> value, HeadsView<T> output, float* lse) {
  using E = TileElement<T>;
  constexpr int group = group_size<E>;
  constexpr int tile_size = block_keys * block_queries;
  const bool drops = dropout.probability > 0.0F;
  const std::int64_t blocks = (shape.queries + block_queries - 1) / block_queries;
  const int row = padded(shape.dimension);  // values
  const int groups = (row + group - 1) / group;
  const std::size_t scratch = scratch_bytes(
      block_queries * groups, block_queries * groups, block_keys * groups, block_keys * row, tile_size,
      tile_size, drops ? tile_size : 0, block_queries * row, block_queries, block_queries, block_queries);
  Kokkos::parallel_for(
      "mylos::attention_forward::query_blocks"_label,
      TeamPolicy(queue(), shape.batch * shape.heads * blocks, 1)
          .set_scratch_size(1, Kokkos::PerTeam(scratch)),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t b = member.league_rank() / (shape.heads * blocks);
        const std::int64_t h = member.league_rank() / blocks % shape.heads;
        const std::int64_t q0 = member.league_rank() % blocks * block_queries;
        const int count =
            static_cast<int>(shape.queries - q0 < block_queries ? shape.queries - q0 : block_queries);
        E* const queries = take<E>(member, block_queries * groups);      // (queries, D groups)
        E* const queries_t = take<E>(member, block_queries * groups);    // (D groups, queries)
        E* const keys = take<E>(member, block_keys * groups);            // (keys, D groups)
        E* const values = take<E>(member, block_keys * row);             // (key groups, D)
        float* const scores = take<float>(member, tile_size);            // (keys, queries)
        E* const weights = take<E>(member, tile_size);                   // (key groups, queries)
        float* const kept = take<float>(member, drops ? tile_size : 0);  // (keys, queries)
        float* const sum = take<float>(member, block_queries * row);     // (queries, D)
        float* const top = take<float>(member, block_queries);
        float* const total = take<float>(member, block_queries);
        float* const decay = take<float>(member, block_queries);
        const Vec scale(shape.scale);
        const Vec lane = lane_numbers();
        const Vec lowest(-std::numeric_limits<float>::infinity());

        load_rows(query, b, q0, h, count, shape.dimension, queries, groups);
        transpose(queries, count, groups, groups, block_queries, queries_t);
        fill(sum, block_queries * row, 0.0F);
        fill(top, block_queries, -std::numeric_limits<float>::infinity());
        fill(total, block_queries, 0.0F);
        const std::int64_t seen = shape.offset + q0 + count;
        const std::int64_t key_end = seen < shape.keys ? seen : shape.keys;
        for (std::int64_t k0 = 0; k0 < key_end; k0 += block_keys) {
          const int num_keys = static_cast<int>(key_end - k0 < block_keys ? key_end - k0 : block_keys);
          load_rows(key, b, k0, h, num_keys, shape.dimension, keys, groups);
          load_row_groups(value, b, k0, h, num_keys, shape.dimension, values, row);
          tile_product(num_keys, block_queries, groups, Tile<E>{keys, groups, 1}, queries_t, block_queries,
                       scores, block_queries, false);
          // Key j is hidden from the queries before it.
          for (int j = seen_keys(shape, q0, k0, num_keys); j < num_keys; ++j) {
            const auto hidden = static_cast<int>(k0 + j - shape.offset - q0);
            for (int i = 0; i < hidden && i < block_queries; i += width) {
              float* const score = scores + j * block_queries + i;
              store(score, condition(lane < Vec(static_cast<float>(hidden - i)), lowest, load(score)));
            }
          }
          if (drops) {
            for (int i = 0; i < count; ++i) {
              float factors[block_keys];
              keep_factors(dropout, dropout.scalars->step, dropout.first_sample + b,
                           shape.place.element(h, q0 + i, k0), num_keys, factors);
              for (int j = 0; j < num_keys; ++j) kept[j * block_queries + i] = factors[j];
            }
          }
          for (int i = 0; i < block_queries; i += width) {
            const Vec old_top = load(top + i);
            Vec highest[2] = {lowest, lowest};
            for (int j = 0; j < num_keys; ++j) {
              highest[j % 2] = Kokkos::max(highest[j % 2], load(scores + j * block_queries + i));
            }
            const Vec new_top = Kokkos::max(old_top, Kokkos::max(highest[0], highest[1]) * scale);
            const auto weight = [&](int j) {
              return exponential(multiply_add(load(scores + j * block_queries + i), scale, -new_top));
            };
            Vec added[2] = {Vec(0.0F), Vec(0.0F)};
            for (int j = 0; j < num_keys; j += 2) {
              const bool is_pair = j + 1 < num_keys;
              Vec first = weight(j);
              Vec second = is_pair ? weight(j + 1) : Vec(0.0F);
              added[0] = added[0] + first;
              added[1] = added[1] + second;
              if (drops) {
                first = first * load(kept + j * block_queries + i);
                if (is_pair) second = second * load(kept + (j + 1) * block_queries + i);
              }
              store_two_rows(weights, block_queries, j, i, first, second);
            }
            const Vec factor = exponential(old_top - new_top);
            store(top + i, new_top);
            store(decay + i, factor);
            store(total + i, multiply_add(load(total + i), factor, added[0] + added[1]));
          }
          for (int i = 0; i < count; ++i) store_row(sum + i * row, row, Vec(decay[i]), sum + i * row);
          tile_product(count, row, (num_keys + group - 1) / group, Tile<E>{weights, 1, block_queries}, values,
                       row, sum, row, true);
        }
        for (int i = 0; i < count; ++i) {
          store_row(sum + i * row, shape.dimension, Vec(1.0F / total[i]), output.row(b, q0 + i, h));
          lse[(b * shape.heads + h) * shape.queries + q0 + i] = top[i] + Kokkos::log(total[i]);
        }
      });
}

/// delta = row-wise dot product of the output and its gradient.
template <class T>
void delta_kernel(const AttentionShape& shape, HeadsView<const T> output, HeadsView<const T> output_grad,
                  float* delta) {
  Kokkos::parallel_for(
      "mylos::attention_backward::delta"_label,
      TeamPolicy(queue(), shape.batch * shape.heads * shape.queries, row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t i = member.league_rank();
        const std::int64_t q = i % shape.queries;
        const std::int64_t h = i / shape.queries % shape.heads;
        const std::int64_t b = i / shape.queries / shape.heads;
        const T* out = output.row(b, q, h);
        const T* gradient = output_grad.row(b, q, h);
        const float dot = row_sums<1>(member, shape.dimension,
                                      [&](Lanes at) { return Vecs<1>{at.load(out) * at.load(gradient)}; })[0];
        Kokkos::single(Kokkos::PerTeam(member), [&]() { delta[i] = dot; });
      });
}

/// One team per head, with blocks of keys in the outer loop and blocks of queries in the inner loop, so that
/// no two teams share a sum.
template <class T>
void backward_kernel(const AttentionShape& shape, const Dropout& dropout, HeadsView<const T> query,
                     HeadsView<const T> key, HeadsView<const T> value, const float* lse,
                     HeadsView<const T> output_grad, const float* delta, HeadsView<T> query_grad,
                     HeadsView<T> key_grad, HeadsView<T> value_grad) {
  using E = TileElement<T>;
  constexpr int group = group_size<E>;
  constexpr int tile_size = block_queries * block_keys;
  const int row = padded(shape.dimension);  // values
  const int groups = (row + group - 1) / group;
  const auto num_queries = static_cast<int>(shape.queries);
  const std::size_t scratch = scratch_bytes(
      block_keys * groups, block_keys * groups, block_keys * groups, block_keys * row, block_keys * row,
      block_keys * row, block_queries * groups, block_queries * groups, block_queries * row,
      block_queries * row, tile_size, tile_size, tile_size, tile_size, tile_size, num_queries * row);
  Kokkos::parallel_for(
      "mylos::attention_backward::heads"_label,
      TeamPolicy(queue(), shape.batch * shape.heads, 1).set_scratch_size(1, Kokkos::PerTeam(scratch)),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t b = member.league_rank() / shape.heads;
        const std::int64_t h = member.league_rank() % shape.heads;
        const float* head_lse = lse + member.league_rank() * shape.queries;
        const float* head_delta = delta + member.league_rank() * shape.queries;
        E* const loaded = take<E>(member, block_keys * groups);          // (keys, D groups)
        E* const keys_t = take<E>(member, block_keys * groups);          // (D groups, keys)
        E* const values_t = take<E>(member, block_keys * groups);        // (D groups, keys)
        E* const keys = take<E>(member, block_keys * row);               // (key groups, D)
        float* const dkeys = take<float>(member, block_keys * row);      // (keys, D)
        float* const dvalues = take<float>(member, block_keys * row);    // (keys, D)
        E* const queries = take<E>(member, block_queries * groups);      // (queries, D groups)
        E* const doutput = take<E>(member, block_queries * groups);      // (queries, D groups)
        E* const query_groups = take<E>(member, block_queries * row);    // (query groups, D)
        E* const doutput_groups = take<E>(member, block_queries * row);  // (query groups, D)
        float* const scores = take<float>(member, tile_size);            // (queries, keys)
        float* const dweights = take<float>(member, tile_size);          // (queries, keys)
        E* const weights = take<E>(member, tile_size);                   // (query groups, keys)
        E* const dscores = take<E>(member, tile_size);                   // (query groups, keys)
        E* const dscores_by_row = take<E>(member, tile_size);            // (queries, key groups)
        float* const dqueries = take<float>(member, num_queries * row);  // (Tq, D)
        const Vec scale(shape.scale);
        const Vec lane = lane_numbers();

        fill(dqueries, num_queries * row, 0.0F);
        for (std::int64_t k0 = 0; k0 < shape.keys; k0 += block_keys) {
          const int num_keys = static_cast<int>(shape.keys - k0 < block_keys ? shape.keys - k0 : block_keys);
          load_rows(value, b, k0, h, num_keys, shape.dimension, loaded, groups);
          transpose(loaded, num_keys, groups, groups, block_keys, values_t);
          load_rows(key, b, k0, h, num_keys, shape.dimension, loaded, groups);
          transpose(loaded, num_keys, groups, groups, block_keys, keys_t);
          load_row_groups(key, b, k0, h, num_keys, shape.dimension, keys, row);
          fill(dkeys, block_keys * row, 0.0F);
          fill(dvalues, block_keys * row, 0.0F);
          const std::int64_t first_query = k0 > shape.offset ? k0 - shape.offset : 0;
          for (std::int64_t q0 = first_query / block_queries * block_queries; q0 < shape.queries;
               q0 += block_queries) {
            const int count =
                static_cast<int>(shape.queries - q0 < block_queries ? shape.queries - q0 : block_queries);
            load_rows(query, b, q0, h, count, shape.dimension, queries, groups);
            load_rows(output_grad, b, q0, h, count, shape.dimension, doutput, groups);
            load_row_groups(query, b, q0, h, count, shape.dimension, query_groups, row);
            load_row_groups(output_grad, b, q0, h, count, shape.dimension, doutput_groups, row);
            tile_product(count, block_keys, groups, Tile<E>{queries, groups, 1}, keys_t, block_keys, scores,
                         block_keys, false);
            tile_product(count, block_keys, groups, Tile<E>{doutput, groups, 1}, values_t, block_keys,
                         dweights, block_keys, false);
            for (int i = 0; i < count; i += 2) {
              float factors[2][block_keys];
              for (int r = 0; dropout.probability > 0.0F && r < 2 && i + r < count; ++r) {
                keep_factors(dropout, dropout.scalars->step, dropout.first_sample + b,
                             shape.place.element(h, q0 + i + r, k0), num_keys, factors[r]);
                for (int j = num_keys; j < block_keys; ++j) factors[r][j] = 0.0F;
              }
              for (int j = 0; j < block_keys; j += width) {
                Vec weight[2] = {Vec(0.0F), Vec(0.0F)};
                Vec dscore[2] = {Vec(0.0F), Vec(0.0F)};
                for (int r = 0; r < 2 && i + r < count; ++r) {
                  const int at = (i + r) * block_keys + j;
                  const auto visible = static_cast<float>(seen_keys(shape, q0 + i + r, k0, num_keys) - j);
                  const Vec exact = condition(
                      lane < Vec(visible),
                      exponential(multiply_add(load(scores + at), scale, Vec(-head_lse[q0 + i + r]))),
                      Vec(0.0F));
                  const Vec kept = dropout.probability > 0.0F ? load(factors[r] + j) : Vec(1.0F);
                  weight[r] = exact * kept;
                  dscore[r] = exact * (load(dweights + at) * kept - Vec(head_delta[q0 + i + r]));
                  store_values<T>(dscores_by_row, at, dscore[r]);
                }
                store_two_rows(weights, block_keys, i, j, weight[0], weight[1]);
                store_two_rows(dscores, block_keys, i, j, dscore[0], dscore[1]);
              }
            }
            const int query_count = (count + group - 1) / group;
            tile_product(block_keys, row, query_count, Tile<E>{weights, 1, block_keys}, doutput_groups, row,
                         dvalues, row, true);
            tile_product(block_keys, row, query_count, Tile<E>{dscores, 1, block_keys}, query_groups, row,
                         dkeys, row, true);
            tile_product(count, row, (num_keys + group - 1) / group,
                         Tile<E>{dscores_by_row, block_keys / group, 1}, keys, row, dqueries + q0 * row, row,
                         true);
          }
          for (int j = 0; j < num_keys; ++j) {
            store_row(dkeys + j * row, shape.dimension, scale, key_grad.row(b, k0 + j, h));
            store_row(dvalues + j * row, shape.dimension, Vec(1.0F), value_grad.row(b, k0 + j, h));
          }
        }
        for (int i = 0; i < num_queries; ++i) {
          store_row(dqueries + i * row, shape.dimension, scale, query_grad.row(b, i, h));
        }
      });
}

}  // namespace

void KokkosOperations::run(const AttentionForward& op) {
  const AttentionShape shape(op);
  dispatch_float(op.query.dtype, [&]<class T>(T) {
    forward_kernel<T>(shape, op.dropout, HeadsView<const T>(op.query), HeadsView<const T>(op.key),
                      HeadsView<const T>(op.value), HeadsView<T>(op.output), op.lse.as<float>());
  });
}

void KokkosOperations::run(const AttentionBackward& op) {
  const AttentionForward& forward = op.forward;
  const AttentionShape shape(op);
  dispatch_float(forward.query.dtype, [&]<class T>(T) {
    const HeadsView<const T> output_grad(op.output_grad);
    delta_kernel<T>(shape, HeadsView<const T>(forward.output), output_grad, op.delta.as<float>());
    backward_kernel<T>(shape, forward.dropout, HeadsView<const T>(forward.query),
                       HeadsView<const T>(forward.key), HeadsView<const T>(forward.value),
                       forward.lse.as<float>(), output_grad, op.delta.as<float>(),
                       HeadsView<T>(op.query_grad), HeadsView<T>(op.key_grad), HeadsView<T>(op.value_grad));
  });
}

}  // namespace mylos::compute_kokkos
