// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/dot_product.hpp"
#include "backends/compute_kokkos/operations.hpp"
#include "core/ops/heads_view.hpp"

namespace mylos::compute_kokkos {

namespace {

/// Keys or values (R, H, S, D), and where the texts of a call are in them.
template <class T>
struct Cache {
  T* data;
  std::int64_t heads, positions, dimension;
  const std::int32_t* rows;
  const std::int32_t* first;  // positions of the first new tokens

  Cache(const TensorRef& tensor, const TensorRef& rows_of_texts, const TensorRef& positions_of_texts)
      : data(tensor.as<std::remove_const_t<T>>()),
        heads(tensor.shape[1]),
        positions(tensor.shape[2]),
        dimension(tensor.shape[3]),
        rows(rows_of_texts.as<std::int32_t>()),
        first(positions_of_texts.as<std::int32_t>()) {}

  /// The vector of position 0, for a head of a text.
  KOKKOS_FORCEINLINE_FUNCTION T* of(std::int64_t text, std::int64_t head) const {
    return data + (rows[text] * heads + head) * positions * dimension;
  }
};

template <class T>
struct AppendRow {
  HeadsView<const T> key, value;
  std::int64_t tokens;
  Cache<T> keys, values;

  /// `row`: a head of a token of a text.
  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t head = row % keys.heads;
    const std::int64_t token = row / keys.heads % tokens;
    const std::int64_t text = row / keys.heads / tokens;
    const std::int64_t position = keys.first[text] + token;
    if (position < 0 || position >= keys.positions) return;
    const T* new_key = key.row(text, token, head);
    const T* new_value = value.row(text, token, head);
    T* const to_key = keys.of(text, head) + position * keys.dimension;
    T* const to_value = values.of(text, head) + position * values.dimension;
    for (std::int64_t d = team.team_rank(); d < keys.dimension; d += team.team_size()) {
      to_key[d] = new_key[d];
      to_value[d] = new_value[d];
    }
  }
};

constexpr int cached_keys_at_once = 64;
constexpr int value_vectors = on_host ? 4 : 1;  // of an output that are summed together

/// sum (dimension) = factor * sum + the values of `count` positions, weighted.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void add_values(const Member& member, const float* weights, int count,
                                            const T* values, std::int64_t dimension, Vec factor, float* sum) {
  constexpr int step = value_vectors * width;
  std::int64_t d = static_cast<std::int64_t>(member.team_rank()) * step;
  for (; d + step <= dimension; d += static_cast<std::int64_t>(member.team_size()) * step) {
    Vec total[value_vectors];
    for (int v = 0; v < value_vectors; ++v) total[v] = load(sum + d + v * width) * factor;
    for (int j = 0; j < count; ++j) {
      for (int v = 0; v < value_vectors; ++v)
        total[v] = multiply_add(Vec(weights[j]), load(values + j * dimension + d + v * width), total[v]);
    }
    for (int v = 0; v < value_vectors; ++v) store(sum + d + v * width, total[v]);
  }
  for (; d < dimension; d += width) {
    const Lanes at{d, static_cast<int>(dimension - d < width ? dimension - d : width)};
    Vec total = at.load(sum) * factor;
    for (int j = 0; j < count; ++j)
      total = multiply_add(Vec(weights[j]), at.load(values + j * dimension), total);
    at.store(sum, total);
  }
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void prefetch_row(const T* row, std::int64_t size) {
  constexpr int line = 64 / sizeof(T);
  for (std::int64_t i = 0; on_host && i < size; i += line) prefetch(row + i);
}

/// A team attends from one query. It visits the keys in blocks from position 0 on and updates the running
/// maximum and sum of Dao's algorithm ("FlashAttention-2", 2023), so the order of every sum depends only on
/// the number of keys. The queries of a head follow each other, so that its keys and values stay in a cache.
template <class T>
void attend_kernel(HeadsView<const T> query, std::int64_t texts, std::int64_t tokens, Cache<const T> keys,
                   Cache<const T> values, float scale, HeadsView<T> output) {
  // Texts differ in length.
  using DynamicTeam =
      Kokkos::TeamPolicy<Execution, Kokkos::IndexType<std::int64_t>, Kokkos::Schedule<Kokkos::Dynamic>>;
  const std::size_t scratch = Scratch::shmem_size(cached_keys_at_once) +
                              Scratch::shmem_size(static_cast<std::size_t>(keys.dimension));
  Kokkos::parallel_for(
      "mylos::cached_attention::queries"_label,
      DynamicTeam(queue(), texts * keys.heads * tokens, row_team_size)
          .set_scratch_size(1, Kokkos::PerTeam(scratch)),
      KOKKOS_LAMBDA(const DynamicTeam::member_type& member) {
        const std::int64_t token = member.league_rank() % tokens;
        const std::int64_t head = member.league_rank() / tokens % keys.heads;
        const std::int64_t text = member.league_rank() / tokens / keys.heads;
        const std::int64_t last = keys.first[text] + token;
        const std::int64_t seen = last < keys.positions ? last + 1 : keys.positions;
        const std::int64_t dimension = keys.dimension;
        const T* from = query.row(text, token, head);
        const T* key = keys.of(text, head);
        const T* value = values.of(text, head);
        const Scratch scores(member.team_scratch(1), cached_keys_at_once);
        const Scratch sum(member.team_scratch(1), static_cast<std::size_t>(dimension));
        float* const weights = scores.data();
        float top = -std::numeric_limits<float>::infinity();
        Vec total(0.0F);
        for_row(member, dimension, [&](Lanes at) { at.store(sum.data(), Vec(0.0F)); });
        for (std::int64_t k0 = 0; k0 < seen; k0 += cached_keys_at_once) {
          const int count =
              static_cast<int>(seen - k0 < cached_keys_at_once ? seen - k0 : cached_keys_at_once);
          for (int j = member.team_rank(); j < count; j += member.team_size()) {
            const std::int64_t place = (k0 + j) * dimension;
            // Values of a short text are elsewhere in memory; with a long one the hardware has found them.
            if (k0 == 0) prefetch_row(value + place, dimension);
            weights[j] = scale * dot_product(dimension, from, key + place);
          }
          member.team_barrier();
          const float block_top = row_max(member, count, weights);
          const float new_top = block_top > top ? block_top : top;
          const float added = row_sums<1>(member, count, [&](Lanes at) {
            const Vec weight = exponential(at.load(weights) - Vec(new_top));
            at.store(weights, weight);
            return Vecs<1>{weight};
          })[0];
          const Vec factor = exponential(Vec(top - new_top));
          total = multiply_add(total, factor, Vec(added));
          top = new_top;
          member.team_barrier();
          add_values(member, weights, count, value + k0 * dimension, dimension, factor, sum.data());
          member.team_barrier();
        }
        T* const to = output.row(text, token, head);
        const Vec inverse = Vec(1.0F) / total;
        for_row(member, dimension, [&](Lanes at) { at.store(to, at.load(sum.data()) * inverse); });
      });
}

/// Requires that the operands of a call fit each other; `tokens` is a tensor (B, T, H, D).
void check_cache(const TensorRef& tokens, const TensorRef& rows, const TensorRef& positions,
                 const TensorRef& keys, const TensorRef& values) {
  require(tokens.rank == 4 && rows.size() == tokens.shape[0] && positions.size() == tokens.shape[0],
          "a row and a position for each text");
  require(keys.rank == 4 && keys.contiguous() && values.contiguous() && keys.shape == values.shape &&
              keys.shape[1] == tokens.shape[2] && keys.shape[3] == tokens.shape[3],
          "a cache (R, H, S, D) of keys and values");
}

}  // namespace

void KokkosOperations::run(const CacheAppend& op) {
  check_cache(op.key, op.rows, op.positions, op.keys, op.values);
  require(op.key.shape == op.value.shape, "as many values as keys");
  dispatch_float(op.key.dtype, [&]<class T>(T) {
    for_rows(
        "mylos::cache_append::heads"_label, op.key.shape[0] * op.key.shape[1] * op.key.shape[2],
        op.key.shape[3],
        AppendRow<T>{HeadsView<const T>(op.key), HeadsView<const T>(op.value), op.key.shape[1],
                     Cache<T>(op.keys, op.rows, op.positions), Cache<T>(op.values, op.rows, op.positions)});
  });
}

void KokkosOperations::run(const CachedAttention& op) {
  check_cache(op.query, op.rows, op.positions, op.keys, op.values);
  require(op.output.shape == op.query.shape, "an output for each query");
  dispatch_float(op.query.dtype, [&]<class T>(T) {
    attend_kernel<T>(HeadsView<const T>(op.query), op.query.shape[0], op.query.shape[1],
                     Cache<const T>(op.keys, op.rows, op.positions),
                     Cache<const T>(op.values, op.rows, op.positions), op.scale, HeadsView<T>(op.output));
  });
}

}  // namespace mylos::compute_kokkos
