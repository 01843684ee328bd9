// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

template <class T>
void largest_magnitude_kernel(const Execution& execution, Vector<const T> x, float* out, bool accumulate) {
  Kokkos::parallel_for(
      "mylos::largest_magnitude::team"_label, TeamPolicy(execution, 1, row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        Vec largest(0.0F);
        for_row(member, static_cast<std::int64_t>(x.extent(0)),
                [&](Lanes at) { largest = Kokkos::max(largest, Kokkos::abs(at.load(x.data()))); });
        float total = max_of(largest);
        member.team_reduce(Kokkos::Max<float>(total));
        Kokkos::single(Kokkos::PerTeam(member),
                       [&] { out[0] = accumulate && out[0] > total ? out[0] : total; });
      });
}

}  // namespace

void KokkosOperations::run(const LargestMagnitude& op) {
  dispatch_float(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    largest_magnitude_kernel<T>(queue(), vector<const T>(op.x), op.out.as<float>(), op.accumulate);
  });
}

}  // namespace mylos::compute_kokkos
