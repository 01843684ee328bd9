// SPDX-License-Identifier: BSD-3-Clause
// Flash attention in fp32 arithmetic (Dao, "FlashAttention-2", 2023), for cases that cuDNN does not support.
//
// A block multiplies 64 queries by 64 keys at a time. Heads of more than 64 elements go through shared memory
// in slices, so that three tiles of fp32 suffice for every product: two operands and the weights. Blocks
// share no sum: the gradients of keys and queries have separate kernels, and both recompute the scores.
#include <cmath>

#include "backends/compute_cuda/device.cuh"
#include "backends/compute_cuda/kernel_operations.hpp"
#include "core/ops/heads_view.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr int tile = 64;       // queries or keys
constexpr int across = 16;     // threads along a row
constexpr int per_thread = 4;  // keys of a thread
static_assert(across * per_thread == tile);

/// How a block works on heads of up to `padded` elements. Of every product, thread (x, y) holds the rows
/// y * rows + r: in scores the columns x + 16 i, and in each slice of sums the columns x * pack + c.
template <int padded>
struct Plan {
  static constexpr int slice = padded < 64 ? padded : 64;  // elements of a head in a tile
  static constexpr int slices = padded / slice;
  static constexpr int threads = padded > 64 ? 256 : 128;
  static constexpr int blocks = padded > 64 ? 2 : 4;      // at least, per multiprocessor
  static constexpr int key_blocks = padded > 64 ? 2 : 3;  // the same for the gradients of keys
  static constexpr int rows = tile * across / threads;
  static constexpr int pack = slice / across;
};

struct Place {
  int x = static_cast<int>(threadIdx.x) % across;
  int y = static_cast<int>(threadIdx.x) / across;
};

template <class P>
struct alignas(16) Tiles {
  float left[tile * P::slice];   // (rows, slice)
  float right[tile * P::slice];  // (rows, slice), columns permuted by `swizzled`
  float weights[tile * tile];    // (queries, keys)
};

template <class P>
using Scores = float[P::rows][per_thread];
template <class P>
using Sums = float[P::slices][P::rows][P::pack];

/// The position of column `column` in a row: groups of four columns lie in different banks in neighbouring
/// rows.
__device__ int swizzled(int row, int column) {
  return column ^ (row % 8 * 4);
}

template <class T, int n>
struct alignas(sizeof(T) * n) Group {
  T values[n];
};

template <int n, class T>
__device__ Group<T, n> load_group(const T* from) {
  return *reinterpret_cast<const Group<T, n>*>(from);
}

/// The heads of `tensor`. Requires that the rows of a tile lie within 32-bit offsets.
template <class T>
HeadsView<T> heads_of(const TensorRef& tensor) {
  const HeadsView<T> heads(tensor);
  require(heads.position < INT32_MAX / tile, "a tile's rows within 32-bit offsets");
  return heads;
}

struct Shape : AttentionShape {
  bool has_fours;  // four elements can be loaded in one access

  Shape(const auto& op, std::initializer_list<const TensorRef*> tensors)
      : AttentionShape(op), has_fours(dimension % 4 == 0) {
    for (const TensorRef* tensor : tensors) {
      has_fours =
          has_fours && reinterpret_cast<std::uintptr_t>(tensor->data) % (4 * size_of(tensor->dtype)) == 0;
      for (int i = 0; i < 3; ++i) has_fours = has_fours && tensor->stride[i] % 4 == 0;
    }
  }

  dim3 grid(std::int64_t positions) const {
    return {static_cast<unsigned>(batch * heads), blocks_for(positions, tile)};
  }
  __device__ std::int64_t sample() const { return blockIdx.x / heads; }
  __device__ std::int64_t head() const { return blockIdx.x % heads; }
  /// One past the last key that the queries before `q` see.
  __device__ std::int64_t key_end(std::int64_t q) const { return min(keys, offset + q); }
};

__device__ int tile_rows(std::int64_t left) {
  return static_cast<int>(min(left, static_cast<std::int64_t>(tile)));
}

/// Copies `count` rows of this block's head, from position t0 and element d0, to `to`; the rest of `to` is 0.
template <class P, bool swizzles, class T>
__device__ void load_tile(const Shape& shape, const HeadsView<const T>& from, std::int64_t t0, int count,
                          int d0, float* to) {
  constexpr int fours = P::slice / 4;  // per row
  constexpr int step = P::threads / fours;
  constexpr int batch = tile / step / 2;  // loads in flight
  const int column = static_cast<int>(threadIdx.x) % fours * 4;
  const int elements = shape.dimension - d0 - column;
  const T* in = from.row(shape.sample(), t0, shape.head()) + d0;
  const auto row_stride = static_cast<unsigned>(from.position);
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / fours; row < tile; row += batch * step) {
    Group<T, 4> values[batch] = {};
#pragma unroll
    for (int n = 0; n < batch; ++n) {
      if (row + n * step >= count) continue;
      const unsigned at = static_cast<unsigned>(row + n * step) * row_stride + static_cast<unsigned>(column);
      if (shape.has_fours) {
        if (elements > 0) values[n] = load_group<4>(in + at);
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          if (v < elements) values[n].values[v] = in[at + static_cast<unsigned>(v)];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < batch; ++n) {
      const int at = swizzles ? swizzled(row + n * step, column) : column;
      Group<float, 4> four;
      for (int v = 0; v < 4; ++v) four.values[v] = static_cast<float>(values[n].values[v]);
      *reinterpret_cast<Group<float, 4>*>(to + (row + n * step) * P::slice + at) = four;
    }
  }
}

/// Writes factor(r) * sums to `count` rows of this block's head, from position t0.
template <class P, class T, class Factor>
__device__ void store_rows(const Shape& shape, const HeadsView<T>& to, std::int64_t t0, int count,
                           const Sums<P>& sums, const Factor& factor) {
  const Place at;
#pragma unroll
  for (int r = 0; r < P::rows; ++r) {
    const int row = at.y * P::rows + r;
    if (row >= count) return;
    T* out = to.row(shape.sample(), t0 + row, shape.head());
    for (int s = 0; s < P::slices; ++s) {
      const int column = s * P::slice + at.x * P::pack;
      Group<T, P::pack> values;
      for (int c = 0; c < P::pack; ++c) values.values[c] = static_cast<T>(sums[s][r][c] * factor(r));
      if (shape.has_fours) {
        if (column < shape.dimension) *reinterpret_cast<Group<T, P::pack>*>(out + column) = values;
      } else {
        for (int c = 0; c < P::pack; ++c) {
          if (column + c < shape.dimension) out[column + c] = values.values[c];
        }
      }
    }
  }
}

/// scores[r][i] += left[row r] . right[row x + 16 i]
template <class P>
__device__ void add_dot_products(const Tiles<P>& tiles, const Place& at, Scores<P>& scores) {
  const float* left = tiles.left + at.y * P::rows * P::slice;
  const float* right = tiles.right + at.x * P::slice;
#pragma unroll 1
  for (int d = 0; d < P::slice; d += 4) {
    Group<float, 4> b[per_thread];
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      b[i] = load_group<4>(right + i * across * P::slice + swizzled(at.x, d));
    }
#pragma unroll
    for (int r = 0; r < P::rows; ++r) {
      const auto a = load_group<4>(left + r * P::slice + d);
#pragma unroll
      for (int v = 0; v < 4; ++v) {
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
          scores[r][i] = fmaf(a.values[v], b[i].values[v], scores[r][i]);
        }
      }
    }
  }
}

/// sums[r][c] += the sum over `keys` keys j of weights[row r][j] right[j][x * pack + c]
template <class P>
__device__ void add_key_sums(const Tiles<P>& tiles, const Place& at, int keys,
                             float (&sums)[P::rows][P::pack]) {
  const float* weights = tiles.weights + at.y * P::rows * tile;
#pragma unroll 1
  for (int j = 0; j < keys; j += 4) {
    Group<float, P::pack> b[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      b[v] = load_group<P::pack>(tiles.right + (j + v) * P::slice + swizzled(j + v, at.x * P::pack));
    }
#pragma unroll
    for (int r = 0; r < P::rows; ++r) {
      const auto a = load_group<4>(weights + r * tile + j);
#pragma unroll
      for (int v = 0; v < 4; ++v) {
#pragma unroll
        for (int c = 0; c < P::pack; ++c) sums[r][c] = fmaf(a.values[v], b[v].values[c], sums[r][c]);
      }
    }
  }
}

/// sums[r][c] += the sum over `queries` queries q of weights[q][row r] left[q][x * pack + c]
template <class P>
__device__ void add_query_sums(const Tiles<P>& tiles, const Place& at, int queries,
                               float (&sums)[P::rows][P::pack]) {
#pragma unroll 2
  for (int q = 0; q < queries; ++q) {
    const auto b = load_group<P::pack>(tiles.left + q * P::slice + at.x * P::pack);
#pragma unroll
    for (int r = 0; r < P::rows; r += 4) {
      const auto a = load_group<4>(tiles.weights + q * tile + at.y * P::rows + r);
#pragma unroll
      for (int v = 0; v < 4; ++v) {
#pragma unroll
        for (int c = 0; c < P::pack; ++c) sums[r + v][c] = fmaf(a.values[v], b.values[c], sums[r + v][c]);
      }
    }
  }
}

/// scores = rows from q0 of `query` times rows from k0 of `key`. If `has_left`, the left tile already
/// holds the queries. The last slices stay in the tiles.
template <class P, class T>
__device__ void make_scores(const Shape& shape, Tiles<P>& tiles, const Place& at,
                            const HeadsView<const T>& query, std::int64_t q0, int queries,
                            const HeadsView<const T>& key, std::int64_t k0, int keys, bool has_left,
                            Scores<P>& scores) {
#pragma unroll
  for (int r = 0; r < P::rows; ++r) {
#pragma unroll
    for (int i = 0; i < per_thread; ++i) scores[r][i] = 0.0F;
  }
#pragma unroll 1
  for (int s = 0; s < P::slices; ++s) {
    __syncthreads();
    if (!has_left) load_tile<P, false>(shape, query, q0, queries, s * P::slice, tiles.left);
    load_tile<P, true>(shape, key, k0, keys, s * P::slice, tiles.right);
    __syncthreads();
    add_dot_products<P>(tiles, at, scores);
  }
}

/// The weights that dropout keeps.
struct Kept {
  unsigned bits[per_thread];  // bit 4 r of bits[i] is for row r and key x + 16 i
  float factor;

  __device__ float operator()(int r, int i) const { return (bits[i] >> (4 * r) & 1U) != 0 ? factor : 0.0F; }
};

/// Bit j: whether element 4 * group + j is kept.
__device__ unsigned keep_bits(const Dropout& dropout, std::int64_t step, std::int64_t sample,
                              std::int64_t group) {
  const PhiloxBlock block =
      philox(dropout.key, static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32U),
             static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(step));
  unsigned bits = 0;
  for (unsigned j = 0; j < 4; ++j) bits |= (uniform01(block.x[j]) >= dropout.probability ? 1U : 0U) << j;
  return bits;
}

/// Draws the weights that dropout keeps for queries q0 + row and keys k0 + column. Each thread draws for its
/// rows and keys 4 x .. 4 x + 3, which are one group of elements if the row begins at a multiple of four. It
/// then takes the bits of its own columns from the lanes that drew them.
template <class P>
__device__ Kept draw(const Shape& shape, const Dropout& dropout, const Place& at, std::int64_t q0,
                     std::int64_t k0) {
  static_assert(4 * P::rows <= 32);
  if (dropout.probability <= 0.0F) return {{~0U, ~0U, ~0U, ~0U}, 1.0F};
  const std::int64_t step = dropout.scalars->step;
  const std::int64_t sample = dropout.first_sample + shape.sample();
  std::int64_t element = shape.place.element(shape.head(), q0 + at.y * P::rows, k0 + 4 * at.x);
  unsigned own = 0;
#pragma unroll 1
  for (int r = 0; r < P::rows; ++r) {
    const auto shift = static_cast<int>(element % 4);
    unsigned four = keep_bits(dropout, step, sample, element / 4) >> shift;
    if (shift != 0) four |= keep_bits(dropout, step, sample, element / 4 + 1) << (4 - shift);
    own |= (four & 0xFU) << (4 * r);
    element += shape.place.positions;
  }
  Kept kept{{}, 1.0F / (1.0F - dropout.probability)};
  const int first_lane = static_cast<int>(threadIdx.x) % warp_size / across * across;
  for (int i = 0; i < per_thread; ++i) {
    kept.bits[i] = __shfl_sync(full_mask, own, first_lane + (at.x + across * i) / 4) >> (at.x % 4);
  }
  return kept;
}

/// Stores this thread's values in the tile's weights.
template <class P>
__device__ void store_weights(Tiles<P>& tiles, const Place& at, const Scores<P>& values) {
#pragma unroll
  for (int r = 0; r < P::rows; ++r) {
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      tiles.weights[(at.y * P::rows + r) * tile + at.x + across * i] = values[r][i];
    }
  }
}

constexpr float log2_e = 1.44269504F;
constexpr float ln_2 = 0.69314718F;

/// The number of keys among k0 .. k0 + count - 1 that query q sees; 0 or negative if it sees none.
__device__ int seen_keys(const Shape& shape, std::int64_t q, std::int64_t k0, int count) {
  return static_cast<int>(min(static_cast<std::int64_t>(count), shape.offset + q + 1 - k0));
}

/// One block for each tile of queries of a head; the tiles that see the most keys go first. The running
/// maximum and sum of Dao's algorithm are in base 2.
template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::blocks)
    forward(Shape shape, Dropout dropout, HeadsView<const T> query, HeadsView<const T> key,
            HeadsView<const T> value, HeadsView<T> output, float* lse) {
  __shared__ Tiles<P> tiles;
  const Place at;
  const std::int64_t q0 = static_cast<std::int64_t>(gridDim.y - 1 - blockIdx.y) * tile;
  const int queries = tile_rows(shape.queries - q0);
  const float scale = shape.scale * log2_e;
  Sums<P> sums = {};
  float top[P::rows];
  float total[P::rows] = {};  // of this thread's columns
  for (float& highest : top) highest = -INFINITY;

  const std::int64_t key_end = shape.key_end(q0 + queries);
  for (std::int64_t k0 = 0; k0 < key_end; k0 += tile) {
    const int keys = tile_rows(key_end - k0);
    Scores<P> scores;
    make_scores<P>(shape, tiles, at, query, q0, queries, key, k0, keys, P::slices == 1 && k0 > 0, scores);
    const Kept kept = draw<P>(shape, dropout, at, q0, k0);
#pragma unroll
    for (int r = 0; r < P::rows; ++r) {
      const int row = at.y * P::rows + r;
      const int seen = seen_keys(shape, q0 + row, k0, keys) - at.x;
      float highest = top[r];
#pragma unroll
      for (int i = 0; i < per_thread; ++i) {
        if (across * i < seen) highest = fmaxf(highest, scores[r][i] * scale);
      }
      for (int lanes = across / 2; lanes > 0; lanes /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(full_mask, highest, lanes));
      }
      const float decay = exp2f(top[r] - highest);
      top[r] = highest;
      total[r] *= decay;
#pragma unroll
      for (int i = 0; i < per_thread; ++i) {
        const float weight = across * i < seen ? exp2f(fmaf(scores[r][i], scale, -highest)) : 0.0F;
        total[r] += weight;
        tiles.weights[row * tile + at.x + across * i] = weight * kept(r, i);
      }
      for (int s = 0; s < P::slices; ++s) {
        for (int c = 0; c < P::pack; ++c) sums[s][r][c] *= decay;
      }
    }
#pragma unroll
    for (int s = 0; s < P::slices; ++s) {
      __syncthreads();
      load_tile<P, true>(shape, value, k0, keys, s * P::slice, tiles.right);
      __syncthreads();
      add_key_sums<P>(tiles, at, keys, sums[s]);
    }
  }
#pragma unroll
  for (int r = 0; r < P::rows; ++r) {
    for (int lanes = across / 2; lanes > 0; lanes /= 2) {
      total[r] += __shfl_xor_sync(full_mask, total[r], lanes);
    }
    const int row = at.y * P::rows + r;
    if (at.x == 0 && row < queries) {
      lse[blockIdx.x * shape.queries + q0 + row] = (top[r] + log2f(total[r])) * ln_2;
    }
  }
  store_rows<P>(shape, output, q0, queries, sums, [&](int r) { return 1.0F / total[r]; });
}

constexpr int delta_rows = 8;  // one warp each

/// delta = row-wise dot product of output and its gradient.
template <class T>
__global__ void make_delta(Shape shape, HeadsView<const T> output, HeadsView<const T> output_grad,
                           float* delta) {
  const std::int64_t q = static_cast<std::int64_t>(blockIdx.y) * delta_rows + threadIdx.x / warp_size;
  if (q >= shape.queries) return;
  const T* out = output.row(shape.sample(), q, shape.head());
  const T* gradient = output_grad.row(shape.sample(), q, shape.head());
  float dot = 0.0F;
  for (int d = static_cast<int>(threadIdx.x) % warp_size; d < shape.dimension; d += warp_size) {
    dot = fmaf(static_cast<float>(out[d]), static_cast<float>(gradient[d]), dot);
  }
  dot = warp_sum(dot);
  if (threadIdx.x % warp_size == 0) delta[blockIdx.x * shape.queries + q] = dot;
}

/// Inputs of the backward kernels.
template <class T>
struct BackwardInput {
  HeadsView<const T> query;
  HeadsView<const T> key;
  HeadsView<const T> value;
  HeadsView<const T> output_grad;
  const float* lse;
  const float* delta;
};

/// Leaves the gradients of the scores, without the factor `scale`, in `tiles.weights`, and leaves in
/// `weights` the weights that multiplied the values. Both are 0 for masked keys and rows beyond `queries`.
/// The last slices of queries and keys stay in the tiles.
template <class P, class T>
__device__ void make_score_gradients(const Shape& shape, const Dropout& dropout, Tiles<P>& tiles,
                                     const Place& at, const BackwardInput<T>& in, std::int64_t q0,
                                     int queries, std::int64_t k0, int keys, Scores<P>& weights) {
  make_scores<P>(shape, tiles, at, in.output_grad, q0, queries, in.value, k0, keys, false, weights);
  store_weights<P>(tiles, at, weights);  // keeps the gradients of the weights out of registers
  make_scores<P>(shape, tiles, at, in.query, q0, queries, in.key, k0, keys, false, weights);
  const Kept kept = draw<P>(shape, dropout, at, q0, k0);
  const float scale = shape.scale * log2_e;
#pragma unroll
  for (int r = 0; r < P::rows; ++r) {
    const int row = at.y * P::rows + r;
    const std::int64_t i_row = blockIdx.x * shape.queries + q0 + row;
    const int seen = row < queries ? seen_keys(shape, q0 + row, k0, keys) - at.x : 0;
    const float lse = row < queries ? in.lse[i_row] * log2_e : 0.0F;
    const float delta = row < queries ? in.delta[i_row] : 0.0F;
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      float& gradient = tiles.weights[row * tile + at.x + across * i];
      const float probability = across * i < seen ? exp2f(fmaf(weights[r][i], scale, -lse)) : 0.0F;
      weights[r][i] = probability * kept(r, i);
      gradient = fmaf(weights[r][i], gradient, -probability * delta);
    }
  }
}

/// One block for each tile of keys of a head; the first keys, which the most queries see, go first.
template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::key_blocks)
    backward_keys(Shape shape, Dropout dropout, BackwardInput<T> in, HeadsView<T> key_grad,
                  HeadsView<T> value_grad) {
  __shared__ Tiles<P> tiles;
  const Place at;
  const std::int64_t k0 = static_cast<std::int64_t>(blockIdx.y) * tile;
  const int keys = tile_rows(shape.keys - k0);
  Sums<P> dkeys = {};
  Sums<P> dvalues = {};
  const std::int64_t first_query = k0 > shape.offset ? k0 - shape.offset : 0;
  for (std::int64_t q0 = first_query / tile * tile; q0 < shape.queries; q0 += tile) {
    const int queries = tile_rows(shape.queries - q0);
    Scores<P> weights;
    make_score_gradients<P>(shape, dropout, tiles, at, in, q0, queries, k0, keys, weights);
#pragma unroll
    for (int s = P::slices - 1; s >= 0; --s) {
      __syncthreads();
      if (s < P::slices - 1) {
        load_tile<P, false>(shape, in.query, q0, queries, s * P::slice, tiles.left);
        __syncthreads();
      }
      add_query_sums<P>(tiles, at, queries, dkeys[s]);
    }
    __syncthreads();
    store_weights<P>(tiles, at, weights);
#pragma unroll
    for (int s = 0; s < P::slices; ++s) {
      if (s > 0) __syncthreads();
      load_tile<P, false>(shape, in.output_grad, q0, queries, s * P::slice, tiles.left);
      __syncthreads();
      add_query_sums<P>(tiles, at, queries, dvalues[s]);
    }
  }
  store_rows<P>(shape, key_grad, k0, keys, dkeys, [&](int) { return shape.scale; });
  store_rows<P>(shape, value_grad, k0, keys, dvalues, [](int) { return 1.0F; });
}

/// One block for each tile of queries of a head; the tiles that see the most keys go first.
template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::blocks)
    backward_queries(Shape shape, Dropout dropout, BackwardInput<T> in, HeadsView<T> query_grad) {
  __shared__ Tiles<P> tiles;
  const Place at;
  const std::int64_t q0 = static_cast<std::int64_t>(gridDim.y - 1 - blockIdx.y) * tile;
  const int queries = tile_rows(shape.queries - q0);
  Sums<P> dqueries = {};
  const std::int64_t key_end = shape.key_end(q0 + queries);
  for (std::int64_t k0 = 0; k0 < key_end; k0 += tile) {
    const int keys = tile_rows(key_end - k0);
    Scores<P> weights;
    make_score_gradients<P>(shape, dropout, tiles, at, in, q0, queries, k0, keys, weights);
#pragma unroll
    for (int s = P::slices - 1; s >= 0; --s) {
      __syncthreads();
      if (s < P::slices - 1) {
        load_tile<P, true>(shape, in.key, k0, keys, s * P::slice, tiles.right);
        __syncthreads();
      }
      add_key_sums<P>(tiles, at, keys, dqueries[s]);
    }
  }
  store_rows<P>(shape, query_grad, q0, queries, dqueries, [&](int) { return shape.scale; });
}

/// Calls function(plan, T{}) for the heads of `query`; false if they are too large.
template <class Function>
bool dispatch(const TensorRef& query, const Function& function) {
  const std::int64_t dimension = query.shape[3];
  if (dimension > 128) return false;
  dispatch_float(query.dtype, [&](auto type) {
    if (dimension <= 32) {
      function(Plan<32>{}, type);
    } else if (dimension <= 64) {
      function(Plan<64>{}, type);
    } else {
      function(Plan<128>{}, type);
    }
  });
  return true;
}

}  // namespace

bool KernelOperations::run(const AttentionForward& args) {
  return dispatch(args.query, [&]<class P, class T>(P, T) {
    const Shape shape(args, {&args.query, &args.key, &args.value, &args.output});
    if (args.query.size() == 0) return;
    launch(forward<P, T>, shape.grid(shape.queries), P::threads, queue(), shape, args.dropout,
           heads_of<const T>(args.query), heads_of<const T>(args.key), heads_of<const T>(args.value),
           heads_of<T>(args.output), args.lse.as<float>());
  });
}

bool KernelOperations::run(const AttentionBackward& args) {
  const AttentionForward& forward = args.forward;
  return dispatch(forward.query, [&]<class P, class T>(P, T) {
    const Shape shape(args, {&forward.query, &forward.key, &forward.value, &args.output_grad,
                             &args.query_grad, &args.key_grad, &args.value_grad});
    const HeadsView<const T> output_grad = heads_of<const T>(args.output_grad);
    const BackwardInput<T> in{heads_of<const T>(forward.query), heads_of<const T>(forward.key),
                              heads_of<const T>(forward.value), output_grad,
                              forward.lse.as<float>(),          args.delta.as<float>()};
    if (forward.query.size() > 0) {
      const dim3 rows(static_cast<unsigned>(shape.batch * shape.heads),
                      blocks_for(shape.queries, delta_rows));
      launch(make_delta<T>, rows, delta_rows * warp_size, queue(), shape, heads_of<const T>(forward.output),
             output_grad, args.delta.as<float>());
      launch(backward_queries<P, T>, shape.grid(shape.queries), P::threads, queue(), shape, forward.dropout,
             in, heads_of<T>(args.query_grad));
    }
    if (forward.key.size() > 0) {
      launch(backward_keys<P, T>, shape.grid(shape.keys), P::threads, queue(), shape, forward.dropout, in,
             heads_of<T>(args.key_grad), heads_of<T>(args.value_grad));
    }
  });
}

}  // namespace mylos::compute_cuda
