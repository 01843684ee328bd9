// SPDX-License-Identifier: BSD-3-Clause
// Which experts rows choose, where their copies lie, and the way there and back.
#include "backends/compute_kokkos/lanes.hpp"
#include "backends/compute_kokkos/operations.hpp"
#include "core/base/rng.hpp"

namespace mylos::compute_kokkos {

namespace {

/// The noise of a router, as RouterNoise defines it.
struct Noise {
  RouterNoise::Kind kind;
  PhiloxKey key;
  std::int64_t first_sample, tokens, experts;
  const StepScalars* scalars;
  const float* noise_logits;  // (B * T, E), with learned noise

  Noise(const RouterNoise& noise, const TensorRef& logits, const TensorRef& of_noise)
      : kind(noise.kind),
        key(noise.key),
        first_sample(noise.first_sample),
        tokens(logits.shape[1]),
        experts(logits.shape[2]),
        scalars(noise.scalars),
        noise_logits(of_noise ? of_noise.as<float>() : nullptr) {
    require(kind == RouterNoise::Kind::none || scalars != nullptr, "noise knows the step");
    require((kind == RouterNoise::Kind::learned) == (noise_logits != nullptr), "noise logits if learned");
  }

  /// The normal number z. normal_pair, which is of the host, draws the same up to rounding.
  KOKKOS_FUNCTION float normal(std::int64_t row, std::int64_t expert) const {
    const std::int64_t element = row % tokens * experts + expert;
    const auto pair = static_cast<std::uint64_t>(element) / 2;
    const PhiloxBlock block = philox(
        key, static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32U),
        static_cast<std::uint32_t>(first_sample + row / tokens), static_cast<std::uint32_t>(scalars->step));
    const double u = (static_cast<double>(block.x[0]) + 1.0) * 0x1.0p-32;
    const double angle = 2.0 * 3.14159265358979323846 * static_cast<double>(block.x[1]) * 0x1.0p-32;
    const double radius = Kokkos::sqrt(-2.0 * Kokkos::log(u));
    return static_cast<float>(radius * (element % 2 == 0 ? Kokkos::cos(angle) : Kokkos::sin(angle)));
  }
  KOKKOS_FUNCTION float at(std::int64_t row, std::int64_t expert) const {
    if (kind == RouterNoise::Kind::none) return 0.0F;
    const float z = normal(row, expert);
    if (kind == RouterNoise::Kind::normal) return z / static_cast<float>(experts);
    const float x = noise_logits[row * experts + expert];
    return z * (x > 0.0F ? x + Kokkos::log1p(Kokkos::exp(-x)) : Kokkos::log1p(Kokkos::exp(x)));
  }
  /// The derivative of `at` by the noise logit.
  KOKKOS_FUNCTION float slope(std::int64_t row, std::int64_t expert) const {
    return normal(row, expert) / (1.0F + Kokkos::exp(-noise_logits[row * experts + expert]));
  }
};

/// Largest and logsumexp of a row's scores.
struct RowScores {
  float largest, lse;

  KOKKOS_FUNCTION RowScores(const float* scores, std::int64_t experts) : largest(scores[0]), lse(0.0F) {
    for (std::int64_t e = 1; e < experts; ++e) largest = scores[e] > largest ? scores[e] : largest;
    float sum = 0.0F;
    for (std::int64_t e = 0; e < experts; ++e) sum += Kokkos::exp(scores[e] - largest);
    lse = largest + Kokkos::log(sum);
  }
};

void choice_kernel(const RouterChoice& op) {
  const std::int64_t experts = op.logits.shape[2];
  const std::int64_t k = op.choices.shape[2];
  require(k >= 1 && k <= experts, "at most as many choices as experts");
  const Noise noise(op.noise, op.logits, op.noise_logits);
  const bool has_noise = noise.kind != RouterNoise::Kind::none;
  require(has_noise == static_cast<bool>(op.scores), "scores if there is noise");
  const auto* logits = op.logits.as<float>();
  float* scores = has_noise ? op.scores.as<float>() : nullptr;
  auto* choices = op.choices.as<std::int32_t>();
  auto* gates = op.gates.as<float>();
  const bool is_normalised = op.kind == RouterKind::topk_softmax;
  Kokkos::parallel_for(
      "mylos::router_choice::rows"_label, Range(queue(), 0, op.logits.shape[0] * op.logits.shape[1]),
      KOKKOS_LAMBDA(std::int64_t row) {
        const float* own = logits + row * experts;
        if (has_noise) {
          for (std::int64_t e = 0; e < experts; ++e) scores[row * experts + e] = own[e] + noise.at(row, e);
          own = scores + row * experts;
        }
        std::int32_t* chosen = choices + row * k;
        float* gate = gates + row * k;
        for (std::int64_t j = 0; j < k; ++j) {
          std::int64_t best = -1;
          for (std::int64_t e = 0; e < experts; ++e) {
            bool is_taken = false;
            for (std::int64_t i = 0; i < j; ++i) is_taken = is_taken || chosen[i] == e;
            if (!is_taken && (best < 0 || own[e] > own[best])) best = e;
          }
          chosen[j] = static_cast<std::int32_t>(best);
          gate[j] = own[best];
        }
        float lse = 0.0F;
        if (is_normalised) {
          const float largest = gate[0];
          for (std::int64_t j = 0; j < k; ++j) lse += Kokkos::exp(gate[j] - largest);
          lse = largest + Kokkos::log(lse);
        } else {
          lse = RowScores(own, experts).lse;
        }
        for (std::int64_t j = 0; j < k; ++j) gate[j] = Kokkos::exp(gate[j] - lse);
      });
}

/// The pairs of one sequence that chose one expert are the work of one thread.
void places_kernel(const ExpertPlaces& op) {
  const std::int64_t batch = op.choices.shape[0];
  const std::int64_t tokens = op.choices.shape[1];
  const std::int64_t k = op.choices.shape[2];
  const std::int64_t experts = op.loads.shape[1];
  const std::int64_t parts = op.offsets.shape[0];
  const std::int64_t own = op.offsets.shape[1] - 1;  // experts of a part
  const std::int64_t room = op.pairs.shape[1];
  require(own * parts == experts && op.pairs.shape[0] == parts && op.loads.shape[0] == batch,
          "experts in parts");
  const auto* choices = op.choices.as<std::int32_t>();
  auto* loads = op.loads.as<std::int32_t>();
  auto* places = op.places.as<std::int32_t>();
  auto* pairs = op.pairs.as<std::int32_t>();
  auto* offsets = op.offsets.as<std::int32_t>();
  const std::int64_t capacity = op.capacity > 0 ? op.capacity : tokens;  // a token chooses an expert once
  const bool by_choice = op.by_choice;
  Kokkos::parallel_for(
      "mylos::expert_places::drop"_label, Range(queue(), 0, batch * experts),
      KOKKOS_LAMBDA(std::int64_t item) {
        const std::int64_t first = item / experts * tokens * k;
        const std::int64_t expert = item % experts;
        std::int64_t load = 0;
        for (std::int64_t i = 0; i < tokens * k; ++i) {
          const std::int64_t pair = first + (by_choice ? i % tokens * k + i / tokens : i);
          if (choices[pair] == expert) places[pair] = load++ < capacity ? 0 : -1;
        }
        loads[item] = static_cast<std::int32_t>(load);
      });
  Kokkos::parallel_for(
      "mylos::expert_places::offsets"_label, Range(queue(), 0, parts), KOKKOS_LAMBDA(std::int64_t part) {
        std::int32_t* of_part = offsets + part * (own + 1);
        std::int64_t rows = 0;
        for (std::int64_t e = 0; e < own; ++e) {
          of_part[e] = static_cast<std::int32_t>(rows);
          for (std::int64_t b = 0; b < batch; ++b) {
            const std::int64_t load = loads[b * experts + part * own + e];
            rows += load < capacity ? load : capacity;
          }
        }
        of_part[own] = static_cast<std::int32_t>(rows);
      });
  Kokkos::parallel_for(
      "mylos::expert_places::places"_label, Range(queue(), 0, batch * experts),
      KOKKOS_LAMBDA(std::int64_t item) {
        const std::int64_t sequence = item / experts;
        const std::int64_t expert = item % experts;
        const std::int64_t part = expert / own;
        std::int64_t place = part * room + offsets[part * (own + 1) + expert % own];
        for (std::int64_t b = 0; b < sequence; ++b) {
          const std::int64_t load = loads[b * experts + expert];
          place += load < capacity ? load : capacity;
        }
        for (std::int64_t pair = sequence * tokens * k; pair < (sequence + 1) * tokens * k; ++pair) {
          if (choices[pair] != expert || places[pair] < 0) continue;
          pairs[place] = static_cast<std::int32_t>(pair);
          places[pair] = static_cast<std::int32_t>(place++);
        }
      });
}

template <class T>
struct GatherRow {
  const T* x;
  const std::int32_t *pairs, *offsets;
  T* rows;
  std::int64_t choices, room, experts, columns;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    if (row % room >= offsets[row / room * (experts + 1) + experts]) return;
    const T* from = x + pairs[row] / choices * columns;
    T* to = rows + row * columns;
    for_row(team, columns, [&](Lanes at) {
      for (int l = 0; l < at.count; ++l) to[at.first + l] = from[at.first + l];
    });
  }
};

template <class T>
struct CombineRow {
  const T* rows;
  const std::int32_t* places;
  const float* gates;
  const T* residual;
  T* y;
  std::int64_t choices, columns;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    for_row(team, columns, [&](Lanes at) {
      Vec sum = residual != nullptr ? at.load(residual + row * columns) : Vec(0.0F);
      for (std::int64_t pair = row * choices; pair < (row + 1) * choices; ++pair) {
        if (places[pair] < 0) continue;
        const Vec value = at.load(rows + places[pair] * columns);
        sum = gates != nullptr ? multiply_add(Vec(gates[pair]), value, sum) : sum + value;
      }
      at.store(y + row * columns, sum);
    });
  }
};

template <class T>
struct CombineRowBackward {
  const T *dy, *rows;
  const std::int32_t* places;
  const float* gates;
  T* drows;
  float* dgates;
  std::int64_t choices, columns;

  /// `pair`: a row and one of its choices. drows may be rows: each value is read before it is overwritten.
  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team, std::int64_t pair) const {
    float dot = 0.0F;
    if (places[pair] >= 0) {
      const T* gradient = dy + pair / choices * columns;
      const T* from = rows + places[pair] * columns;
      T* to = drows + places[pair] * columns;
      const Vec gate(gates[pair]);
      dot = row_sums<1>(team, columns, [&](Lanes at) {
        const Vec value = at.load(from);
        const Vec of_row = at.load(gradient);
        at.store(to, gate * of_row);
        return Vecs<1>{value * of_row};
      })[0];
    }
    if (team.team_rank() == 0) dgates[pair] = dot;
  }
};

/// Spans of tokens are added up by a thread each, then the spans: one order for any number of threads.
void statistics_kernel(const RouterStatistics& op, const Kokkos::View<double*, Memory>& partials) {
  const std::int64_t batch = op.logits.shape[0];
  const std::int64_t tokens = op.logits.shape[1];
  const std::int64_t experts = op.logits.shape[2];
  const std::int64_t rows = batch * tokens;
  const auto* logits = op.logits.as<float>();
  const auto* scores = op.scores ? op.scores.as<float>() : logits;
  const auto* loads = op.loads.as<std::int32_t>();
  auto* sums = op.sums.as<float>();
  const auto room = static_cast<std::int64_t>(partials.extent(0)) / 2;
  const std::int64_t spans = rows < room ? rows : room;
  const double share =
      static_cast<double>(experts) / (static_cast<double>(op.choices) * static_cast<double>(tokens * tokens));
  const std::int64_t capacity = op.capacity > 0 ? op.capacity : tokens;
  const bool accumulate = op.accumulate;
  Kokkos::parallel_for(
      "mylos::router_statistics::rows"_label, Range(queue(), 0, spans), KOKKOS_LAMBDA(std::int64_t span) {
        double balance = 0.0;
        double z = 0.0;
        for (std::int64_t row = rows * span / spans; row < rows * (span + 1) / spans; ++row) {
          const float* own = scores + row * experts;
          const std::int64_t sequence = row / tokens;
          const std::int32_t* load = loads + sequence * experts;
          const float lse = RowScores(own, experts).lse;
          float sum = 0.0F;
          for (std::int64_t e = 0; e < experts; ++e)
            sum += static_cast<float>(load[e]) * Kokkos::exp(own[e] - lse);
          balance += sum;
          const double clean = RowScores(logits + row * experts, experts).lse;
          z += clean * clean;
        }
        partials(2 * span) = balance;
        partials(2 * span + 1) = z;
      });
  Kokkos::parallel_for(
      "mylos::router_statistics::sums"_label, Range(queue(), 0, 3 + experts),
      KOKKOS_LAMBDA(std::int64_t which) {
        double sum = 0.0;
        for (std::int64_t span = 0; which < 2 && span < spans; ++span) sum += partials(2 * span + which);
        if (which == 0) sum *= share;
        for (std::int64_t i = 0; which == 2 && i < batch * experts; ++i)
          sum += loads[i] > capacity ? static_cast<double>(loads[i] - capacity) : 0.0;
        for (std::int64_t b = 0; which > 2 && b < batch; ++b) sum += loads[b * experts + which - 3];
        sums[which] = static_cast<float>(accumulate ? static_cast<double>(sums[which]) + sum : sum);
      });
}

void gradient_kernel(const RouterGradient& op) {
  const std::int64_t tokens = op.logits.shape[1];
  const std::int64_t experts = op.logits.shape[2];
  const std::int64_t k = op.choices.shape[2];
  const Noise noise(op.noise, op.logits, op.noise_logits);
  const auto* logits = op.logits.as<float>();
  const auto* scores = op.scores ? op.scores.as<float>() : logits;
  const auto* choices = op.choices.as<std::int32_t>();
  const auto* gates = op.gates.as<float>();
  const auto* dgates = op.dgates.as<float>();
  const auto* loads = op.loads.as<std::int32_t>();
  auto* dlogits = op.dlogits.as<float>();
  auto* dnoise = op.dnoise_logits ? op.dnoise_logits.as<float>() : nullptr;
  const float balance =
      op.balance_scale * static_cast<float>(experts) / (static_cast<float>(k) * static_cast<float>(tokens));
  const float z_scale = op.z_scale;
  const StepScalars* scalars = op.scalars;
  const bool is_normalised = op.kind == RouterKind::topk_softmax;
  Kokkos::parallel_for(
      "mylos::router_gradient::rows"_label, Range(queue(), 0, op.logits.shape[0] * tokens),
      KOKKOS_LAMBDA(std::int64_t row) {
        const float* own = scores + row * experts;
        const float* clean = logits + row * experts;
        const std::int32_t* chosen = choices + row * k;
        const float* gate = gates + row * k;
        const float* dgate = dgates + row * k;
        const std::int32_t* load = loads + row / tokens * experts;
        float* out = dlogits + row * experts;
        const float loss_scale = scalars->loss_scale;
        const float lse = RowScores(own, experts).lse;
        // The gradient of the probabilities, and its mean, which the softmax takes off.
        float mean = 0.0F;
        for (std::int64_t e = 0; e < experts; ++e) {
          out[e] = balance * loss_scale * static_cast<float>(load[e]);
          for (std::int64_t j = 0; !is_normalised && j < k; ++j) out[e] += chosen[j] == e ? dgate[j] : 0.0F;
          mean += Kokkos::exp(own[e] - lse) * out[e];
        }
        for (std::int64_t e = 0; e < experts; ++e) out[e] = Kokkos::exp(own[e] - lse) * (out[e] - mean);
        if (is_normalised) {
          float of_gates = 0.0F;
          for (std::int64_t j = 0; j < k; ++j) of_gates += gate[j] * dgate[j];
          for (std::int64_t j = 0; j < k; ++j) out[chosen[j]] += gate[j] * (dgate[j] - of_gates);
        }
        if (dnoise != nullptr) {
          for (std::int64_t e = 0; e < experts; ++e) dnoise[row * experts + e] = out[e] * noise.slope(row, e);
        }
        if (z_scale == 0.0F) return;
        const float clean_lse = RowScores(clean, experts).lse;
        for (std::int64_t e = 0; e < experts; ++e)
          out[e] += 2.0F * z_scale * loss_scale * clean_lse * Kokkos::exp(clean[e] - clean_lse);
      });
}

}  // namespace

void KokkosOperations::run(const RouterChoice& op) {
  require(op.logits.rank == 3 && op.choices.rank == 3 && op.gates.size() == op.choices.size(),
          "logits (B, T, E) and choices (B, T, k)");
  choice_kernel(op);
}

void KokkosOperations::run(const ExpertPlaces& op) {
  require(op.choices.rank == 3 && op.places.size() == op.choices.size(), "choices (B, T, k)");
  places_kernel(op);
}

void KokkosOperations::run(const GatherRows& op) {
  const std::int64_t columns = op.rows.shape[2];
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    for_rows("mylos::gather_rows::rows"_label, op.pairs.size(), columns,
             GatherRow<T>{vector<const T>(op.x).data(), op.pairs.as<std::int32_t>(),
                          op.offsets.as<std::int32_t>(), vector<T>(op.rows).data(), op.choices,
                          op.pairs.shape[1], op.offsets.shape[1] - 1, columns});
  });
}

void KokkosOperations::run(const CombineRows& op) {
  const std::int64_t columns = op.y.shape[2];
  const std::int64_t choices = op.places.shape[2];
  dispatch_float(op.y.dtype, [&]<class T>(T) {
    for_rows("mylos::combine_rows::rows"_label, op.places.size() / choices, columns,
             CombineRow<T>{vector<const T>(op.rows).data(), op.places.as<std::int32_t>(),
                           op.gates ? op.gates.as<float>() : nullptr,
                           op.residual ? vector<const T>(op.residual).data() : nullptr,
                           vector<T>(op.y).data(), choices, columns});
  });
}

void KokkosOperations::run(const CombineRowsBackward& op) {
  const std::int64_t columns = op.dy.shape[2];
  dispatch_float(op.dy.dtype, [&]<class T>(T) {
    for_rows(
        "mylos::combine_rows_backward::pairs"_label, op.places.size(), columns,
        CombineRowBackward<T>{vector<const T>(op.dy).data(), vector<const T>(op.rows).data(),
                              op.places.as<std::int32_t>(), op.gates.as<float>(), vector<T>(op.drows).data(),
                              op.dgates.as<float>(), op.places.shape[2], columns});
  });
}

void KokkosOperations::run(const RouterStatistics& op) {
  statistics_kernel(op, partials_);
}

void KokkosOperations::run(const RouterGradient& op) {
  require(op.scalars != nullptr && op.dgates.size() == op.choices.size(), "a gradient per choice");
  gradient_kernel(op);
}

}  // namespace mylos::compute_kokkos
