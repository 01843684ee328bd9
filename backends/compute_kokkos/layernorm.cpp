// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

constexpr float layernorm_epsilon = 1e-5F;

template <class T>
struct NormalizeRow {
  Matrix<const T> x;
  Vector<const T> gamma, beta;
  Matrix<T> y;
  Vector<float> mean, rstd;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const auto columns = static_cast<std::int64_t>(x.extent(1));
    const T* in = &x(row, 0);
    T* out = &y(row, 0);
    const float scale = 1.0F / static_cast<float>(columns);
    const float average =
        row_sums<1>(team, columns, [&](Lanes at) { return Vecs<1>{at.load(in)}; })[0] * scale;
    const float variance = row_sums<1>(team, columns,
                                       [&](Lanes at) {
                                         const Vec centred = at.load(in) - Vec(average);
                                         return Vecs<1>{centred * centred};
                                       })[0] *
                           scale;
    const float inverse = 1.0F / Kokkos::sqrt(variance + layernorm_epsilon);
    for_row(team, columns, [&](Lanes at) {
      const Vec normal = (at.load(in) - Vec(average)) * Vec(inverse);
      at.store(out, multiply_add(normal, at.load(gamma.data()), at.load(beta.data())));
    });
    if (team.team_rank() == 0) {
      mean(row) = average;
      rstd(row) = inverse;
    }
  }
};

template <class T>
void backward_input_kernel(Matrix<const T> dy, Matrix<const T> x, Vector<const T> gamma,
                           Vector<const float> mean, Vector<const float> rstd, const T* residual,
                           Matrix<T> dx) {
  const auto columns = static_cast<std::int64_t>(x.extent(1));
  Kokkos::parallel_for(
      "mylos::layernorm_backward_input::rows"_label, TeamPolicy(queue(), x.extent(0), row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t row = member.league_rank();
        const T* in = &x(row, 0);
        const T* gradient = &dy(row, 0);
        const Vec average(mean(row));
        const Vec inverse(rstd(row));
        const auto sums = row_sums<2>(member, columns, [&](Lanes at) {
          const Vec g = at.load(gradient) * at.load(gamma.data());
          return Vecs<2>{g, g * (at.load(in) - average) * inverse};
        });
        const float scale = 1.0F / static_cast<float>(columns);
        const Vec mean_g(sums[0] * scale);
        const Vec mean_gx(sums[1] * scale);
        const T* added = residual != nullptr ? residual + row * columns : nullptr;
        for_row(member, columns, [&](Lanes at) {
          const Vec g = at.load(gradient) * at.load(gamma.data());
          const Vec normal = (at.load(in) - average) * inverse;
          const Vec value = (g - mean_g - normal * mean_gx) * inverse;
          at.store(&dx(row, 0), added != nullptr ? value + at.load(added) : value);
        });
      });
}

template <class T, class G>
void backward_weight_kernel(Matrix<const T> dy, Matrix<const T> x, Vector<const float> mean,
                            Vector<const float> rstd, Vector<G> dgamma, Vector<G> dbeta, bool accumulate) {
  column_sums<2>(
      "mylos::layernorm_backward_weight::columns"_label, static_cast<std::int64_t>(x.extent(0)),
      static_cast<std::int64_t>(x.extent(1)),
      KOKKOS_LAMBDA(std::int64_t row, Lanes at) {
        const Vec gradient = at.load(&dy(row, 0));
        return Vecs<2>{gradient * (at.load(&x(row, 0)) - Vec(mean(row))) * Vec(rstd(row)), gradient};
      },
      Kokkos::Array<G*, 2>{dgamma.data(), dbeta.data()}, accumulate);
}

}  // namespace

void KokkosOperations::run(const LayernormForward& op) {
  require(op.x.size() == op.y.size() && op.mean.size() == rows_of(op.x) && op.rstd.size() == rows_of(op.x),
          "layernorm's shapes");
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    const auto x = matrix<const T>(op.x);
    for_rows("mylos::layernorm_forward::rows"_label, static_cast<std::int64_t>(x.extent(0)),
             static_cast<std::int64_t>(x.extent(1)),
             NormalizeRow<T>{x, vector<const T>(op.gamma), vector<const T>(op.beta), matrix<T>(op.y),
                             vector<float>(op.mean), vector<float>(op.rstd)});
  });
}

void KokkosOperations::run(const LayernormBackwardInput& op) {
  require(op.x.size() == op.dy.size() && op.x.size() == op.dx.size() && op.mean.size() == rows_of(op.x),
          "layernorm's shapes");
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    const T* added = op.residual ? vector<const T>(op.residual).data() : nullptr;
    backward_input_kernel<T>(matrix<const T>(op.dy), matrix<const T>(op.x), vector<const T>(op.gamma),
                             vector<const float>(op.mean), vector<const float>(op.rstd), added,
                             matrix<T>(op.dx));
  });
}

void KokkosOperations::run(const LayernormBackwardWeight& op) {
  require(op.x.size() == op.dy.size() && op.mean.size() == rows_of(op.x) && op.dgamma.dtype == op.dbeta.dtype,
          "layernorm's shapes");
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dgamma.dtype, [&]<class G>(G) {
      backward_weight_kernel<T, G>(matrix<const T>(op.dy), matrix<const T>(op.x),
                                   vector<const float>(op.mean), vector<const float>(op.rstd),
                                   vector<G>(op.dgamma), vector<G>(op.dbeta), op.accumulate);
    });
  });
}

}  // namespace mylos::compute_kokkos
