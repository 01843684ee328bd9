// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/model_shape.hpp"

#include "core/base/error.hpp"

namespace mylos {

void check_model_shape(const ModelConfig& model, const ShapeNames& names) {
  const auto check = [](std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most)
      fail(ExitCode::bad_data, "{} = {} is out of range; mylos takes {} to {}", name, value, least, most);
  };
  check(names.layers, model.layers, 1, max_layers);
  check(names.heads, model.heads, 1, max_heads);
  check(names.width, model.width, 1, max_width);
  check(names.context, model.context, 1, max_context);
  check(names.vocab, model.vocab, 2, max_vocab);
  if (model.width % model.heads != 0) {
    fail(ExitCode::bad_data, "{} = {} does not divide {} = {}", names.heads, model.heads, names.width,
         model.width);
  }
}

}  // namespace mylos
