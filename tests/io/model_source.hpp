// SPDX-License-Identifier: BSD-3-Clause
// For tests of writers of models: weights in memory as a source.
#pragma once

#include <algorithm>
#include <cstdint>

#include "io/models/model_writer.hpp"
#include "tests/io/model_test_util.hpp"

namespace mylos::test {

/// The weights, which must outlive the source. `largest`, if given, becomes the most elements that a call
/// asks for.
inline ModelSource source_of(const ModelConfig& model, const Weights& weights,
                             std::int64_t* largest = nullptr) {
  return {model, [&weights, largest](const TensorInfo& tensor, const std::vector<TensorPart>& parts) {
            check_parts(tensor, parts);
            const std::vector<float>& values = weights.at(tensor.name);
            for (const TensorPart& part : parts) {
              if (largest != nullptr) *largest = std::max(*largest, part.box.size());
              const bool is_matrix = tensor.shape.size() == 2;
              const std::int64_t rows = is_matrix ? part.box.count[0] : 1;
              const std::int64_t first_row = is_matrix ? part.box.start[0] : 0;
              for (std::int64_t r = 0; r < rows; ++r) {
                std::copy_n(values.data() + (first_row + r) * tensor.shape.back() + part.box.start.back(),
                            part.box.count.back(), part.data + r * (is_matrix ? part.stride[0] : 0));
              }
            }
          }};
}

}  // namespace mylos::test
