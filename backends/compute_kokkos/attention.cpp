// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/dropout.hpp"
#include "backends/compute_kokkos/tile_product.hpp"
#include "backends/compute_kokkos/transformer_ops.hpp"

namespace mylos {

namespace {

// Tiles are fp32 in scratch memory. Lanes run over queries in the forward pass, over keys in the backward
// pass: each way, only the operand of the outer loop has to be transposed.
constexpr int block_queries = 64;
constexpr int block_keys = 64;
static_assert(block_queries % width == 0 && block_keys % width == 0);

constexpr int padded(int n) {
  return (n + width - 1) / width * width;
}

/// (B, T, H, D) with unit stride in D.
template <class T>
struct Heads {
  T* data;
  std::int64_t batch;
  std::int64_t position;
  std::int64_t head;

  explicit Heads(const TensorRef& tensor)
      : data(tensor.as<std::remove_const_t<T>>()),
        batch(tensor.stride[0]),
        position(tensor.stride[1]),
        head(tensor.stride[2]) {
    require(tensor.rank == 4 && (tensor.stride[3] == 1 || tensor.shape[3] == 1),
            "(B, T, H, D) with unit stride in D");
  }
  KOKKOS_FORCEINLINE_FUNCTION T* row(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return data + b * batch + t * position + h * head;
  }
};

struct Shape {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t queries;
  std::int64_t keys;
  int dimension;
  std::int64_t offset;  // position of the first query
  float scale;

  explicit Shape(const AttentionArgs& args)
      : batch(args.query.shape[0]),
        heads(args.query.shape[2]),
        queries(args.query.shape[1]),
        keys(args.key.shape[1]),
        dimension(static_cast<int>(args.query.shape[3])),
        offset(args.query_offset),
        scale(args.scale) {
    require(args.key.shape == args.value.shape && args.output.shape == args.query.shape &&
                args.key.shape[0] == batch && args.key.shape[2] == heads && args.key.shape[3] == dimension,
            "attention's shapes");
    require(args.lse.contiguous() && args.lse.size() == batch * heads * queries, "one lse for each query");
  }

  /// How many of the keys k0 .. k0 + count - 1 query q sees.
  KOKKOS_FORCEINLINE_FUNCTION int visible(std::int64_t q, std::int64_t k0, int count) const {
    const std::int64_t seen = offset + q - k0 + 1;
    return static_cast<int>(seen < 0 ? 0 : (seen < count ? seen : count));
  }
  /// The dropout element of query q and key k.
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t element(std::int64_t h, std::int64_t q, std::int64_t k) const {
    return (h * keys + offset + q) * keys + k;
  }
};

/// tile (rows, row) = factor * rows t0 .. of head (b, h).
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void load_rows(const Heads<const T>& from, std::int64_t b, std::int64_t t0,
                                           std::int64_t h, int rows, int dimension, float factor, float* tile,
                                           int row) {
  for (int i = 0; i < rows; ++i) {
    const T* in = from.row(b, t0 + i, h);
    for (int d = 0; d < dimension; d += width) {
      const Lanes at{d, dimension - d < width ? dimension - d : width};
      store(tile + i * row + d, at.load(in) * Vec(factor));
    }
  }
}

/// transposed (dimension, columns) from tile (rows, row); columns beyond `rows` are 0.
KOKKOS_FORCEINLINE_FUNCTION void transpose(const float* tile, int rows, int row, int dimension, int columns,
                                           float* transposed) {
  for (int d = 0; d < dimension; ++d) {
    for (int i = 0; i < columns; ++i) transposed[d * columns + i] = i < rows ? tile[i * row + d] : 0.0F;
  }
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void store_row(const float* from, int dimension, Vec factor, T* to) {
  for (int d = 0; d < dimension; d += width) {
    const Lanes at{d, dimension - d < width ? dimension - d : width};
    at.store(to, load(from + d) * factor);
  }
}

/// One team for each block of queries of a head: the running maximum and sum of Dao's algorithm, block by
/// block of keys.
template <class T>
void forward_kernel(const Execution& execution, const Shape& attention, const Dropout& layer,
                    Heads<const T> query, Heads<const T> key, Heads<const T> value, Heads<T> output,
                    float* lse) {
  const Shape shape = attention;
  const Dropout dropout = layer;
  const std::int64_t blocks = (shape.queries + block_queries - 1) / block_queries;
  const int row = padded(shape.dimension);
  const std::size_t scratch =
      Scratch::shmem_size(row * block_queries) + 2 * Scratch::shmem_size(block_keys * row) +
      Scratch::shmem_size(block_keys * block_queries) + Scratch::shmem_size(block_queries * row) +
      3 * Scratch::shmem_size(block_queries);
  Kokkos::parallel_for(
      "mylos::attention_forward::query_blocks"_label,
      Team(execution, shape.batch * shape.heads * blocks, 1).set_scratch_size(1, Kokkos::PerTeam(scratch)),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t b = member.league_rank() / (shape.heads * blocks);
        const std::int64_t h = member.league_rank() / blocks % shape.heads;
        const std::int64_t q0 = member.league_rank() % blocks * block_queries;
        const int count =
            static_cast<int>(shape.queries - q0 < block_queries ? shape.queries - q0 : block_queries);
        const auto& team_memory = member.team_scratch(1);
        const Scratch queries(team_memory, row * block_queries);         // (D, queries)
        const Scratch keys(team_memory, block_keys * row);               // (keys, D)
        const Scratch values(team_memory, block_keys * row);             // (keys, D)
        const Scratch weights(team_memory, block_keys * block_queries);  // (keys, queries)
        const Scratch sum(team_memory, block_queries * row);             // (queries, D)
        const Scratch top(team_memory, block_queries);
        const Scratch total(team_memory, block_queries);
        const Scratch decay(team_memory, block_queries);
        float* p = weights.data();

        load_rows(query, b, q0, h, count, shape.dimension, shape.scale, sum.data(), row);
        transpose(sum.data(), count, row, shape.dimension, block_queries, queries.data());
        for (int i = 0; i < block_queries * row; i += width) store(sum.data() + i, Vec(0.0F));
        for (int i = 0; i < block_queries; i += width) {
          store(top.data() + i, Vec(-std::numeric_limits<float>::infinity()));
          store(total.data() + i, Vec(0.0F));
        }
        const std::int64_t seen = shape.offset + q0 + count;
        const std::int64_t key_end = seen < shape.keys ? seen : shape.keys;
        for (std::int64_t k0 = 0; k0 < key_end; k0 += block_keys) {
          const int num_keys = static_cast<int>(key_end - k0 < block_keys ? key_end - k0 : block_keys);
          load_rows(key, b, k0, h, num_keys, shape.dimension, 1.0F, keys.data(), row);
          load_rows(value, b, k0, h, num_keys, shape.dimension, 1.0F, values.data(), row);
          tile_product(num_keys, block_queries, shape.dimension, {keys.data(), row, 1}, queries.data(),
                       block_queries, p, block_queries, false);
          // Key j is hidden from the queries before it.
          for (int j = shape.visible(q0, k0, num_keys); j < num_keys; ++j) {
            const auto hidden = static_cast<int>(k0 + j - shape.offset - q0);
            for (int i = 0; i < hidden && i < block_queries; ++i) {
              p[j * block_queries + i] = -std::numeric_limits<float>::infinity();
            }
          }
          for (int i = 0; i < block_queries; i += width) {
            const Vec old_top = load(top.data() + i);
            Vec new_top = old_top;
            for (int j = 0; j < num_keys; ++j)
              new_top = Kokkos::max(new_top, load(p + j * block_queries + i));
            Vec added(0.0F);
            for (int j = 0; j < num_keys; ++j) {
              const Vec weight = exponential(load(p + j * block_queries + i) - new_top);
              added = added + weight;
              store(p + j * block_queries + i, weight);
            }
            const Vec factor = exponential(old_top - new_top);
            store(top.data() + i, new_top);
            store(decay.data() + i, factor);
            store(total.data() + i, multiply_add(load(total.data() + i), factor, added));
          }
          if (dropout.probability > 0.0F) {
            float factors[block_keys];
            for (int i = 0; i < count; ++i) {
              keep_factors(dropout, dropout.scalars->step, dropout.first_sample + b,
                           shape.element(h, q0 + i, k0), num_keys, factors);
              for (int j = 0; j < num_keys; ++j) p[j * block_queries + i] *= factors[j];
            }
          }
          for (int i = 0; i < count; ++i)
            store_row(sum.data() + i * row, row, Vec(decay(i)), sum.data() + i * row);
          tile_product(count, row, num_keys, {p, 1, block_queries}, values.data(), row, sum.data(), row,
                       true);
        }
        for (int i = 0; i < count; ++i) {
          store_row(sum.data() + i * row, shape.dimension, Vec(1.0F / total(i)), output.row(b, q0 + i, h));
          lse[(b * shape.heads + h) * shape.queries + q0 + i] = top(i) + Kokkos::log(total(i));
        }
      });
}

/// delta = rowwise dot of output and its gradient.
template <class T>
void delta_kernel(const Execution& execution, const Shape& attention, Heads<const T> output,
                  Heads<const T> output_grad, float* delta) {
  const Shape shape = attention;
  Kokkos::parallel_for(
      "mylos::attention_backward::delta"_label,
      Team(execution, shape.batch * shape.heads * shape.queries, row_team_size),
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

/// One team for each head: blocks of keys outside, blocks of queries inside, so that no sum is shared.
template <class T>
void backward_kernel(const Execution& execution, const Shape& attention, const Dropout& layer,
                     Heads<const T> query, Heads<const T> key, Heads<const T> value, const float* lse,
                     Heads<const T> output_grad, const float* delta, Heads<T> query_grad, Heads<T> key_grad,
                     Heads<T> value_grad) {
  const Shape shape = attention;
  const Dropout dropout = layer;
  const int row = padded(shape.dimension);
  const auto num_queries = static_cast<int>(shape.queries);
  const std::size_t scratch =
      2 * Scratch::shmem_size(row * block_keys) + 3 * Scratch::shmem_size(block_keys * row) +
      2 * Scratch::shmem_size(block_queries * row) + 2 * Scratch::shmem_size(block_queries * block_keys) +
      Scratch::shmem_size(static_cast<std::size_t>(num_queries) * static_cast<std::size_t>(row));
  Kokkos::parallel_for(
      "mylos::attention_backward::heads"_label,
      Team(execution, shape.batch * shape.heads, 1).set_scratch_size(1, Kokkos::PerTeam(scratch)),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t b = member.league_rank() / shape.heads;
        const std::int64_t h = member.league_rank() % shape.heads;
        const float* head_lse = lse + member.league_rank() * shape.queries;
        const float* head_delta = delta + member.league_rank() * shape.queries;
        const auto& team_memory = member.team_scratch(1);
        const Scratch keys(team_memory, block_keys * row);                // (keys, D)
        const Scratch keys_t(team_memory, row * block_keys);              // (D, keys)
        const Scratch values_t(team_memory, row * block_keys);            // (D, keys)
        const Scratch dkeys(team_memory, block_keys * row);               // (keys, D)
        const Scratch dvalues(team_memory, block_keys * row);             // (keys, D)
        const Scratch queries(team_memory, block_queries * row);          // (queries, D), scaled
        const Scratch doutput(team_memory, block_queries * row);          // (queries, D)
        const Scratch weights(team_memory, block_queries * block_keys);   // (queries, keys)
        const Scratch dweights(team_memory, block_queries * block_keys);  // (queries, keys)
        const Scratch dqueries(team_memory,
                               static_cast<std::size_t>(num_queries) * row);  // (Tq, D), of the scaled ones
        const auto zero = [](const Scratch& tile) {
          for (std::size_t i = 0; i < tile.extent(0); i += width) store(tile.data() + i, Vec(0.0F));
        };

        zero(dqueries);
        for (std::int64_t k0 = 0; k0 < shape.keys; k0 += block_keys) {
          const int num_keys = static_cast<int>(shape.keys - k0 < block_keys ? shape.keys - k0 : block_keys);
          load_rows(value, b, k0, h, num_keys, shape.dimension, 1.0F, keys.data(), row);
          transpose(keys.data(), num_keys, row, shape.dimension, block_keys, values_t.data());
          load_rows(key, b, k0, h, num_keys, shape.dimension, 1.0F, keys.data(), row);
          transpose(keys.data(), num_keys, row, shape.dimension, block_keys, keys_t.data());
          zero(dkeys);
          zero(dvalues);
          const std::int64_t first_query = k0 > shape.offset ? k0 - shape.offset : 0;
          for (std::int64_t q0 = first_query / block_queries * block_queries; q0 < shape.queries;
               q0 += block_queries) {
            const int count =
                static_cast<int>(shape.queries - q0 < block_queries ? shape.queries - q0 : block_queries);
            load_rows(query, b, q0, h, count, shape.dimension, shape.scale, queries.data(), row);
            load_rows(output_grad, b, q0, h, count, shape.dimension, 1.0F, doutput.data(), row);
            float* p = weights.data();
            float* dp = dweights.data();
            tile_product(count, block_keys, shape.dimension, {queries.data(), row, 1}, keys_t.data(),
                         block_keys, p, block_keys, false);
            tile_product(count, block_keys, shape.dimension, {doutput.data(), row, 1}, values_t.data(),
                         block_keys, dp, block_keys, false);
            for (int i = 0; i < count; ++i) {
              const int visible = shape.visible(q0 + i, k0, num_keys);
              const Vec normaliser(head_lse[q0 + i]);
              const Vec dot(head_delta[q0 + i]);
              float factors[block_keys];
              if (dropout.probability > 0.0F) {
                keep_factors(dropout, dropout.scalars->step, dropout.first_sample + b,
                             shape.element(h, q0 + i, k0), num_keys, factors);
                for (int j = num_keys; j < block_keys; ++j) factors[j] = 0.0F;
              }
              for (int j = 0; j < block_keys; j += width) {
                float* weight = p + i * block_keys + j;
                float* dweight = dp + i * block_keys + j;
                const int left = visible - j < 0 ? 0 : (visible - j < width ? visible - j : width);
                const Vec exact = Lanes{j, left}.only(exponential(load(weight) - normaliser), 0.0F);
                const Vec kept = dropout.probability > 0.0F ? load(factors + j) : Vec(1.0F);
                store(weight, exact * kept);
                store(dweight, exact * (load(dweight) * kept - dot));
              }
            }
            tile_product(block_keys, row, count, {p, 1, block_keys}, doutput.data(), row, dvalues.data(), row,
                         true);
            tile_product(block_keys, row, count, {dp, 1, block_keys}, queries.data(), row, dkeys.data(), row,
                         true);
            tile_product(count, row, num_keys, {dp, block_keys, 1}, keys.data(), row,
                         dqueries.data() + q0 * row, row, true);
          }
          for (int j = 0; j < num_keys; ++j) {
            store_row(dkeys.data() + j * row, shape.dimension, Vec(1.0F), key_grad.row(b, k0 + j, h));
            store_row(dvalues.data() + j * row, shape.dimension, Vec(1.0F), value_grad.row(b, k0 + j, h));
          }
        }
        for (int i = 0; i < num_queries; ++i) {
          store_row(dqueries.data() + i * row, shape.dimension, Vec(shape.scale), query_grad.row(b, i, h));
        }
      });
}

}  // namespace

void KokkosTransformerOps::attention_forward(Stream stream, const AttentionArgs& args) {
  const Shape shape(args);
  dispatch_float(args.query.dtype, [&](auto type) {
    using T = decltype(type);
    forward_kernel<T>(execution_of(stream), shape, args.dropout, Heads<const T>(args.query),
                      Heads<const T>(args.key), Heads<const T>(args.value), Heads<T>(args.output),
                      args.lse.as<float>());
  });
}

void KokkosTransformerOps::attention_backward(Stream stream, const AttentionBackwardArgs& args) {
  const AttentionArgs& forward = args.forward;
  const Shape shape(forward);
  require(args.output_grad.shape == forward.query.shape && args.query_grad.shape == forward.query.shape &&
              args.key_grad.shape == forward.key.shape && args.value_grad.shape == forward.key.shape,
          "attention's gradients have the shapes of its tensors");
  require(args.delta.contiguous() && args.delta.size() == forward.lse.size(), "one delta for each query");
  const Execution& execution = execution_of(stream);
  dispatch_float(forward.query.dtype, [&](auto type) {
    using T = decltype(type);
    const Heads<const T> output_grad(args.output_grad);
    delta_kernel<T>(execution, shape, Heads<const T>(forward.output), output_grad, args.delta.as<float>());
    backward_kernel<T>(execution, shape, forward.dropout, Heads<const T>(forward.query),
                       Heads<const T>(forward.key), Heads<const T>(forward.value), forward.lse.as<float>(),
                       output_grad, args.delta.as<float>(), Heads<T>(args.query_grad),
                       Heads<T>(args.key_grad), Heads<T>(args.value_grad));
  });
}

}  // namespace mylos
