// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

/// `wpe`: the row of the first position, or null; `places`: how many rows there are from there. `positions`:
/// those of the texts, counted from there, or null.
template <class T>
struct EmbedRow {
  Matrix<const std::int32_t> tokens;
  Matrix<const T> wte;
  std::int64_t first_token;
  const T* wpe;
  std::int64_t places;
  const std::int32_t* positions;
  Matrix<T> out;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const auto columns = static_cast<std::int64_t>(wte.extent(1));
    const auto num_tokens = static_cast<std::int64_t>(wte.extent(0));
    const auto length = static_cast<std::int64_t>(tokens.extent(1));
    const std::int64_t token = tokens(row / length, row % length) - first_token;
    const std::int64_t place = row % length + (positions != nullptr ? positions[row / length] : 0);
    const T* of_token = token >= 0 && token < num_tokens ? &wte(token, 0) : nullptr;
    // Positions are data: one without a row, beyond the end of a text, must not be read.
    const T* of_place = wpe != nullptr && place >= 0 && place < places ? wpe + place * columns : nullptr;
    for_row(team, columns, [&](Lanes at) {
      const Vec sum = of_token != nullptr ? at.load(of_token) : Vec(0.0F);
      at.store(&out(row, 0), of_place != nullptr ? sum + at.load(of_place) : sum);
    });
  }
};

/// The first occurrence of a token adds up the rows of all its occurrences, in order and in fp32.
template <class T, class G>
void token_kernel(Vector<const std::int32_t> tokens, Matrix<const T> dout, std::int64_t first_token,
                  Matrix<G> dwte, bool accumulate) {
  const auto columns = static_cast<std::int64_t>(dwte.extent(1));
  const auto num_tokens = static_cast<std::int64_t>(dwte.extent(0));
  const auto rows = static_cast<std::int64_t>(tokens.extent(0));
  // Teams differ in work: first occurrences are dense at the beginning, and some tokens are much more
  // frequent than others.
  using DynamicTeam =
      Kokkos::TeamPolicy<Execution, Kokkos::IndexType<std::int64_t>, Kokkos::Schedule<Kokkos::Dynamic>>;
  const std::size_t scratch = Scratch::shmem_size(columns);
  Kokkos::parallel_for(
      "mylos::embedding_backward::tokens"_label,
      DynamicTeam(queue(), rows, row_team_size).set_scratch_size(1, Kokkos::PerTeam(scratch)),
      KOKKOS_LAMBDA(const DynamicTeam::member_type& member) {
        const std::int64_t row = member.league_rank();
        const std::int32_t token = tokens(row);
        const std::int64_t place = token - first_token;
        if (place < 0 || place >= num_tokens) return;
        for (std::int64_t earlier = 0; earlier < row; ++earlier) {
          if (tokens(earlier) == token) return;
        }
        const Scratch total(member.team_scratch(1), columns);
        for_row(member, columns,
                [&](Lanes at) { at.store(total.data(), accumulate ? at.load(&dwte(place, 0)) : Vec(0.0F)); });
        for (std::int64_t later = row; later < rows; ++later) {
          if (tokens(later) != token) continue;
          for_row(member, columns, [&](Lanes at) {
            at.store(total.data(), at.load(total.data()) + at.load(&dout(later, 0)));
          });
        }
        for_row(member, columns, [&](Lanes at) { at.store(&dwte(place, 0), at.load(total.data())); });
      });
}

template <class T, class G>
void position_kernel(std::int64_t samples, std::int64_t length, Matrix<const T> dout, std::int64_t position,
                     Matrix<G> dwpe, bool accumulate) {
  const auto columns = static_cast<std::int64_t>(dwpe.extent(1));
  Kokkos::parallel_for(
      "mylos::embedding_backward::positions"_label, TeamPolicy(queue(), dwpe.extent(0), row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t row = member.league_rank();
        const std::int64_t t = row - position;
        const bool seen = t >= 0 && t < length;
        if (accumulate && !seen) return;
        for_row(member, columns, [&](Lanes at) {
          Vec total = accumulate ? at.load(&dwpe(row, 0)) : Vec(0.0F);
          for (std::int64_t b = 0; seen && b < samples; ++b)
            total = total + at.load(&dout(b * length + t, 0));
          at.store(&dwpe(row, 0), total);
        });
      });
}

template <class G>
void zero_kernel(Matrix<G> y) {
  for_lanes(
      "mylos::embedding_backward::zero"_label, static_cast<std::int64_t>(y.size()),
      KOKKOS_LAMBDA(Lanes at) { at.store(y.data(), Vec(0.0F)); });
}

}  // namespace

void KokkosOperations::run(const EmbeddingForward& op) {
  require(op.tokens.rank == 2 && rows_of(op.out) == op.tokens.size(), "one row for each token");
  require(!op.wpe || (op.position >= 0 && op.position + op.tokens.shape[1] <= op.wpe.shape[0]),
          "positions inside wpe");
  require(!op.positions || op.positions.size() == op.tokens.shape[0], "a position for each text");
  dispatch_float(op.out.dtype, [&]<class T>(T) {
    const auto out = matrix<T>(op.out);
    const T* first = op.wpe ? op.wpe.template as<T>() + op.position * op.wpe.shape[1] : nullptr;
    const auto* positions = op.positions ? op.positions.template as<std::int32_t>() : nullptr;
    for_rows("mylos::embedding_forward::rows"_label, static_cast<std::int64_t>(out.extent(0)),
             static_cast<std::int64_t>(out.extent(1)),
             EmbedRow<T>{matrix<const std::int32_t>(op.tokens), matrix<const T>(op.wte), op.first_token,
                         first, op.wpe ? op.wpe.shape[0] - op.position : 0, positions, out});
  });
}

void KokkosOperations::run(const EmbeddingBackward& op) {
  require(op.tokens.rank == 2 && rows_of(op.dout) == op.tokens.size(), "one row for each token");
  require(op.position >= 0 && op.position + op.tokens.shape[1] <= op.dwpe.shape[0], "positions inside dwpe");
  require(op.dwte.dtype == op.dwpe.dtype, "one type for both gradients");
  dispatch_float(op.dout.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dwte.dtype, [&]<class G>(G) {
      if (!op.accumulate_wte) zero_kernel<G>(matrix<G>(op.dwte));
      token_kernel<T, G>(vector<const std::int32_t>(op.tokens), matrix<const T>(op.dout), op.first_token,
                         matrix<G>(op.dwte), op.accumulate_wte);
      position_kernel<T, G>(op.tokens.shape[0], op.tokens.shape[1], matrix<const T>(op.dout), op.position,
                            matrix<G>(op.dwpe), op.accumulate_wpe);
    });
  });
}

}  // namespace mylos::compute_kokkos
