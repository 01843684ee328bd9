// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/model_config.hpp"

#include <fmt/core.h>

#include "core/base/error.hpp"

namespace mylos {

RouterKind router_named(std::string_view name) {
  for (const RouterKind kind : {RouterKind::topk_softmax, RouterKind::softmax_topk}) {
    if (name_of(kind) == name) return kind;
  }
  fail(ExitCode::bad_data, "there is no router {}", name);
}

RouterNoise::Kind router_noise_named(std::string_view name) {
  for (const auto kind : {RouterNoise::Kind::none, RouterNoise::Kind::normal, RouterNoise::Kind::learned}) {
    if (name_of(kind) == name) return kind;
  }
  fail(ExitCode::bad_data, "there is no router noise {}", name);
}

std::string experts_text(const ExpertConfig& experts) {
  if (experts.count == 0) return "";
  std::string text =
      fmt::format("{} experts of width {}, {} per token", experts.count, experts.width, experts.per_token);
  if (experts.every > 1) text += fmt::format(", in every {} blocks", experts.every);
  if (experts.has_shared) text += ", and a shared one";
  text += fmt::format(", router {}", name_of(experts.router));
  if (experts.noise != RouterNoise::Kind::none) text += fmt::format(" with {} noise", name_of(experts.noise));
  return text;
}

std::string depths_text(const DepthConfig& depths) {
  if (depths.capacity == 0.0) return "";
  return fmt::format("{} of the tokens in {}", depths.capacity,
                     depths.every == 1 ? "all blocks" : fmt::format("every {} blocks", depths.every));
}

std::string width_text(const ModelConfig& model) {
  std::string text = fmt::format("width {}", model.width);
  if (model.inner_width() != 4 * model.width) text += fmt::format(", feed-forward {}", model.inner_width());
  return text;
}

}  // namespace mylos
