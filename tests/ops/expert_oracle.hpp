// SPDX-License-Identifier: BSD-3-Clause
// The operations of a mixture of experts in fp64: the reference that the backends are compared with. Results
// that are packed rows are taken by reference: rows that do not exist keep their old content.
#pragma once

#include <cstdint>

#include "core/ops/compute_backend.hpp"
#include "tests/ops/oracle.hpp"

namespace mylos::oracle {

/// x (B, T, C), w (C, E). Returns the logits (B, T, E).
Array router_forward(const Array& x, const Array& w);
Array router_backward_input(const Array& dlogits, const Array& w, const Array& residual);
void router_backward_weight(const Array& x, const Array& dlogits, bool accumulate, Array& dw);

/// z of element `e` of `sample` at `step`, as the comment on RouterNoise defines it; `noise.first_sample` and
/// `noise.scalars` are not read.
double router_noise(const RouterNoise& noise, std::int64_t step, std::int64_t sample, std::int64_t e);

/// The functions below do not read `noise.scalars`; the step is passed by value.
Array router_scores(const Array& logits, const Array& noise_logits, const RouterNoise& noise,
                    std::int64_t step);
/// Returns the `count` experts of the largest scores of each row, (B, T, count).
Array largest_scores(const Array& scores, std::int64_t count);
Array router_gates(const Array& scores, const Array& choices, RouterKind kind);
/// Returns (B, E).
Array router_loads(const Array& choices, std::int64_t experts);

/// P, R and L are those of the shapes of `pairs` (P, R) and `offsets` (P, L + 1).
void expert_places(const Array& choices, std::int64_t capacity, bool by_choice, Array& loads, Array& places,
                   Array& pairs, Array& offsets);

void gather_rows(const Array& x, const Array& pairs, const Array& offsets, std::int64_t choices, Array& rows);
/// `gates` and `residual` may be absent.
Array combine_rows(const Array& rows, const Array& places, const Array& gates, const Array& residual);
void combine_rows_backward(const Array& dy, const Array& rows, const Array& places, const Array& gates,
                           Array& drows, Array& dgates);

/// `bias` and `activated` may be absent.
void grouped_linear_forward(const Array& x, const Array& w, const Array& bias, const Array& offsets, Array& y,
                            Array& activated);
/// `pre` may be absent.
void grouped_linear_backward_input(const Array& dy, const Array& w, const Array& offsets, const Array& pre,
                                   Array& dx);
/// `dbias` may be absent.
void grouped_linear_backward_weight(const Array& x, const Array& dy, const Array& offsets, bool accumulate,
                                    Array& dw, Array& dbias);

/// `scores` may be absent.
void router_statistics(const Array& logits, const Array& scores, const Array& loads, std::int64_t choices,
                       std::int64_t capacity, bool accumulate, Array& sums);

struct RouterGradientInput {
  Array logits, noise_logits, scores, choices, gates, dgates, loads;
  RouterKind kind = RouterKind::topk_softmax;
  RouterNoise noise{};
  std::int64_t step = 0;
  double balance_scale = 0.0;  // both times the loss scale
  double z_scale = 0.0;
};

/// Sets `dnoise_logits` if the noise is learned.
void router_gradient(const RouterGradientInput& in, Array& dlogits, Array& dnoise_logits);

}  // namespace mylos::oracle
