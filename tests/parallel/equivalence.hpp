// SPDX-License-Identifier: BSD-3-Clause
// Runs of a small model, and their comparison with one rank that computes the same global batch alone.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "core/ops/compute_backend.hpp"
#include "parallel/health/traffic.hpp"
#include "tests/parallel/mini_trainer.hpp"

namespace mylos {

constexpr std::int64_t global_batch = 12;

/// Two layers. Width, context and vocabulary are not multiples of one another.
ModelConfig small_model();

/// The results of a run.
struct Outcome {
  std::vector<StepScalars> steps;
  std::vector<std::vector<float>> gradients;  // of the last step, by parameter
  std::vector<std::vector<float>> weights;
  std::vector<float> whole_gradient;
};

/// Trains on all ranks of `world`. Collective.
Outcome train(ComputeBackend& backend, Communicator& world, const RunConfig& config, std::int64_t steps);
/// Trains on the single rank of `self`, with ddp and the global batch as one micro-batch.
Outcome train_alone(ComputeBackend& backend, Communicator& self, RunConfig config, std::int64_t steps);

/// The configuration with a larger epsilon of Adam, for runs that differ in rounding only. Adam divides by
/// the size of a gradient: where a gradient is almost zero, rounding noise alone moves a weight by up to the
/// whole learning rate, and this difference grows from step to step as the seed has it. Such elements hardly
/// move if epsilon is much larger than the noise.
RunConfig without_amplified_noise(RunConfig config);

/// Expects losses, norms and the whole gradient within a relative error of 1e-5, each gradient and weight
/// within 2e-5, for runs by `train`. Over eight seeds the largest were 3e-7, 3e-7, 3e-6, 5e-6 and 6e-6, all
/// of the last three from sums over a vocabulary of 50257; without those 6e-7, 1e-6 and 1e-6.
void expect_equal_to_rounding(const RunConfig& config, const Outcome& outcome, const Outcome& oracle);
void expect_bitwise_equal(const Outcome& outcome, const Outcome& oracle);

/// What a run communicates.
struct Sent {
  std::vector<TrafficRow> calls;  // of collectives
  std::int64_t wire_bytes = 0;    // of the messages that this rank sends for them
};

/// Trains on all ranks; every collective sends its messages around a ring. Gathers of the initial weights
/// count too.
Sent sent_by_rings(ComputeBackend& backend, const RunConfig& config, std::int64_t steps);

/// The elements that rank `rank` of `ranks` sends when a ring sums `count` elements: every part except its
/// own, then every summed part except its neighbour's. With equal parts 2 count (ranks - 1) / ranks.
std::int64_t sent_by_ring_all_reduce(std::int64_t count, std::int64_t ranks, std::int64_t rank);
/// The same for a ring that only sums or only gathers, with equal parts: count (ranks - 1) / ranks.
std::int64_t sent_by_half_a_ring(std::int64_t count, std::int64_t ranks);

/// The shape and the options of a run, by name.
struct Variant {
  const char* name;
  std::int64_t layers, heads, width, vocab, seq_len;
  bool tied;
  float dropout;
  std::int64_t feed_forward = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

constexpr Variant variants[] = {
    {"untied", 2, 3, 48, 211, 37, false, 0.0F},   {"dropout", 2, 3, 48, 211, 37, true, 0.2F},
    {"one_head", 2, 1, 24, 211, 37, true, 0.0F},  {"one_layer", 1, 5, 40, 128, 16, true, 0.0F},
    {"one_token", 2, 3, 48, 211, 1, true, 0.0F},  {"one_channel_a_head", 1, 7, 7, 5, 9, false, 0.1F},
    {"narrow", 2, 3, 48, 211, 37, true, 0.0F, 77}};

RunConfig config_of(const Variant& variant, std::int64_t ranks, std::int64_t accumulation = 1);

}  // namespace mylos
