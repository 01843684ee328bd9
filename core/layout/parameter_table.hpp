// SPDX-License-Identifier: BSD-3-Clause
// ParameterTable: every weight once. Optimizer, checkpoint, exchange and planner iterate it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_config.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// How a weight begins.
enum class Initialisation : std::uint8_t { normal, zeros, ones };

/// One weight. `shape` is global and unpadded; `padded_rows` is the leading extent in memory.
struct Parameter {
  std::string name;                 ///< Hugging Face's
  std::vector<std::int64_t> shape;  ///< row-major
  std::int64_t padded_rows = 0;
  bool decay = false;  ///< two or more dimensions
  Initialisation initialisation = Initialisation::zeros;
  float stddev = 0.0F;  ///< of Initialisation::normal
  int unit = 0;
  std::int64_t offset = 0;  ///< first element in the unit's flat buffer

  std::int64_t size() const {  ///< elements without padding; they come first in memory
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }
  std::int64_t padded_size() const { return size() / shape[0] * padded_rows; }
};

/// The parameters that are gathered, reduced, stepped and stored together, in one flat buffer, in the order
/// in which backward completes them.
struct Unit {
  std::string name;               ///< "embedding", "block 3", "head"
  std::vector<int> parameters;    ///< indices into the table, in buffer order
  std::int64_t size = 0;          ///< elements of the flat buffer, padding included
  std::vector<Segment> segments;  ///< cover [0, size)
};

/// The parameters and units of a GPT-2.
class ParameterTable {
 public:
  /// Units: 0 the embedding, 1 + l block l, last the head. With `tied` the head owns no matrix.
  explicit ParameterTable(const ModelConfig& model);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  int num_units() const { return static_cast<int>(units_.size()); }
  const Parameter& find(std::string_view name) const;

  /// Weights without padding: N of the literature.
  std::int64_t num_parameters() const;
  /// Elements of all flat buffers.
  std::int64_t padded_size() const;

  /// Starts of parameters in flat buffers are multiples of this many elements (128 bytes of bf16).
  static constexpr std::int64_t alignment = 64;

 private:
  int begin_unit(const std::string& name);
  void add(const std::string& name, std::vector<std::int64_t> shape, Initialisation initialisation,
           float stddev, std::int64_t padded_rows = 0);
  void end_unit();

  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
};

}  // namespace mylos
