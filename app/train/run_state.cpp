// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/run_state.hpp"

#include <cstdlib>

#include "app/deck/unchecked_deck.hpp"
#include "core/base/error.hpp"
#include "io/deck/deck.hpp"
#include "io/json.hpp"
#include "io/models/model_shape.hpp"

namespace mylos {

namespace {

std::string shape_text(const ModelConfig& model) {
  std::string text =
      fmt::format("layers {}, heads {}, {}, context {}, vocab {}, {}", model.layers, model.heads,
                  width_text(model), model.context, model.vocab, model.tied ? "tied" : "untied");
  if (const std::string experts = experts_text(model.experts); !experts.empty()) text += ", " + experts;
  if (const std::string depths = depths_text(model.depths); !depths.empty()) text += ", depths " + depths;
  return text;
}

Json experts_json(const ExpertConfig& experts) {
  if (experts.count == 0) return {};
  return Json::object({{"count", experts.count},
                       {"per_token", experts.per_token},
                       {"width", experts.width},
                       {"every", experts.every},
                       {"shared", experts.has_shared},
                       {"router", std::string(name_of(experts.router))},
                       {"noise", std::string(name_of(experts.noise))}});
}

/// Models without experts, and checkpoints from before there were any, have none.
ExpertConfig parse_experts(const Json& model) {
  if (!model.has("experts") || !model.at("experts").is_object()) return {};
  const Json json = model.at("experts");
  const ExpertConfig experts = {.count = json.integer("count"),
                                .per_token = json.integer("per_token"),
                                .width = json.integer("width"),
                                .every = json.integer("every"),
                                .has_shared = json.boolean("shared"),
                                .router = router_named(json.text("router")),
                                .noise = router_noise_named(json.text("noise"))};
  const auto is_within = [](std::int64_t value, std::int64_t most) { return value >= 1 && value <= most; };
  if (!is_within(experts.count, 1024) || !is_within(experts.per_token, experts.count) ||
      !is_within(experts.width, max_feed_forward) || !is_within(experts.every, 1024))
    fail(ExitCode::bad_data, "a model cannot have {}", experts_text(experts));
  return experts;
}

Json depths_json(const DepthConfig& depths) {
  if (depths.capacity == 0.0) return {};
  return Json::object({{"capacity", depths.capacity}, {"every", depths.every}});
}

/// The same as for experts.
DepthConfig parse_depths(const Json& model) {
  if (!model.has("depths") || !model.at("depths").is_object()) return {};
  const Json json = model.at("depths");
  const DepthConfig depths = {.capacity = json.real("capacity"), .every = json.integer("every")};
  if (!(depths.capacity > 0.0 && depths.capacity <= 1.0) || depths.every < 1 || depths.every > 1024)
    fail(ExitCode::bad_data, "a model cannot have {}", depths_text(depths));
  return depths;
}

/// Checkpoints from before it could be chosen have none: four times the width.
std::int64_t parse_feed_forward(const Json& model) {
  if (!model.has("feed_forward")) return 0;
  const std::int64_t inner = model.integer("feed_forward");
  if (inner < 1 || inner > max_feed_forward)
    fail(ExitCode::bad_data, "a model cannot have a feed-forward layer of width {}", inner);
  return inner;
}

ModelConfig parse_model(const Json& json) {
  ModelConfig model;
  model.layers = json.integer("layers");
  model.heads = json.integer("heads");
  model.width = json.integer("width");
  model.feed_forward = parse_feed_forward(json);
  model.context = json.integer("context");
  model.vocab = json.integer("vocab");
  model.tied = json.boolean("tied");
  model.experts = parse_experts(json);
  model.depths = parse_depths(json);
  return model;
}

TokenizerIdentity parse_tokenizer(const Json& json) {
  return {.name = json.text("name"), .ranks = json.text("ranks")};
}

Json initial_json(const std::optional<InitialWeights>& initial) {
  if (!initial) return {};
  return Json::object({{"path", initial->path}, {"kind", initial->kind}, {"digest", initial->digest}});
}

std::optional<InitialWeights> parse_initial(const Json& json) {
  if (!json.has("initial") || !json.at("initial").is_object()) return std::nullopt;
  const Json initial = json.at("initial");
  return InitialWeights{
      .path = initial.text("path"), .kind = initial.text("kind"), .digest = initial.text("digest")};
}

VersionState parse_versions(const Json& json) {
  if (!json.has("versions")) return {};
  const Json versions = json.at("versions");
  return {.rules = versions.text("rules"), .oldest = versions.integer("oldest")};
}

GuardState parse_guard(const Json& json) {
  return {.mean = json.real("mean"),
          .variance = json.real("variance"),
          .seen = json.integer("seen"),
          .skipped = json.integer("skipped"),
          .skipped_in_row = json.integer("skipped_in_row"),
          // Checkpoints written before loss scaling existed have no scale.
          .loss_scale = json.has("loss_scale") ? static_cast<float>(json.real("loss_scale")) : 1.0F,
          .scaled_in_row =
              json.has("scaled_in_row") ? static_cast<std::int32_t>(json.integer("scaled_in_row")) : 0};
}

/// Checkpoints written before the totals were saved had the same seq_len for the whole run, as far as is
/// known.
ReadTotals parse_read(const Json& json) {
  ReadTotals read;
  if (!json.has("read")) {
    read.tokens = json.integer("sample") * UncheckedDeck(json.text("deck")).integer("train.seq_len");
    return read;
  }
  const Json saved = json.at("read");
  read.tokens = saved.integer("tokens");
  for (const Json& source : saved.elements("sources"))
    read.sources.push_back({.content = source.text("content"), .epochs = source.real("epochs")});
  return read;
}

}  // namespace

bool may_be_same(const TokenizerIdentity& a, const TokenizerIdentity& b) {
  if (a.name.empty() || b.name.empty()) return true;
  return a.name == b.name && (a.ranks == b.ranks || a.ranks.empty() || b.ranks.empty());
}

std::string rules_text(const StepConfig& config) {
  std::string text;
  for (const VersionRule& rule : config.rules_of_units()) {
    if (text.empty()) text = fmt::format("{} micro-batches per step, delays", rule.micro_batches);
    text += fmt::format(" {}", rule.delay);
  }
  return text;
}

std::string state_text(const RunState& state) {
  const Json model = Json::object({{"layers", state.model.layers},
                                   {"heads", state.model.heads},
                                   {"width", state.model.width},
                                   {"feed_forward", state.model.inner_width()},
                                   {"context", state.model.context},
                                   {"vocab", state.model.vocab},
                                   {"tied", state.model.tied},
                                   {"experts", experts_json(state.model.experts)},
                                   {"depths", depths_json(state.model.depths)}});
  const Json guard = Json::object({{"mean", state.guard.mean},
                                   {"variance", state.guard.variance},
                                   {"seen", state.guard.seen},
                                   {"skipped", state.guard.skipped},
                                   {"skipped_in_row", state.guard.skipped_in_row},
                                   {"loss_scale", state.guard.loss_scale},
                                   {"scaled_in_row", state.guard.scaled_in_row}});
  const Json layout = Json::object({{"ranks", state.ranks},
                                    {"ranks_per_node", state.ranks_per_node},
                                    {"micro_batch", state.micro_batch},
                                    {"compute", state.compute}});
  const Json tokenizer = Json::object({{"name", state.tokenizer.name}, {"ranks", state.tokenizer.ranks}});
  std::vector<Json> sources;
  for (const ReadTotals::Source& source : state.read.sources)
    sources.push_back(Json::object({{"content", source.content}, {"epochs", source.epochs}}));
  const Json read = Json::object({{"tokens", state.read.tokens}, {"sources", Json::array(sources)}});
  return Json::object({{"format", 1},
                       {"step", state.step},
                       {"sample", state.sample},
                       {"read", read},
                       {"seed", state.seed},
                       {"model", model},
                       {"guard", guard},
                       {"layout", layout},
                       {"deck", state.deck},
                       {"train_data", state.train_data},
                       {"tokenizer", tokenizer},
                       {"folder", state.folder},
                       {"initial", initial_json(state.initial)},
                       {"versions",
                        Json::object({{"rules", state.versions.rules}, {"oldest", state.versions.oldest}})},
                       {"evaluation_due", state.evaluation_due},
                       {"mylos", state.code}})
             .dump(2) +
         "\n";
}

RunState parse_state(const std::string& text, const std::string& place, std::int64_t step) {
  return at_place(place, [&]() -> RunState {
    const Json json = Json::parse(text);
    if (json.integer("step") != step)
      fail(ExitCode::bad_data, "of step {}, not {}", json.integer("step"), step);
    const Json layout = json.at("layout");
    return {.step = json.integer("step"),
            .sample = json.integer("sample"),
            .read = parse_read(json),
            .seed = static_cast<std::uint64_t>(json.integer("seed")),
            .model = parse_model(json.at("model")),
            .guard = parse_guard(json.at("guard")),
            .ranks = layout.integer("ranks"),
            .micro_batch = layout.integer("micro_batch"),
            .compute = layout.text("compute"),
            .deck = json.text("deck"),
            .code = json.has("git") ? fmt::format("{} ({})", json.text("mylos"), json.text("git"))
                                    : json.text("mylos"),
            .ranks_per_node = layout.has("ranks_per_node") ? layout.integer("ranks_per_node") : 0,
            .train_data = json.has("train_data") ? json.text("train_data") : "",
            .tokenizer = json.has("tokenizer") ? parse_tokenizer(json.at("tokenizer")) : TokenizerIdentity(),
            .folder = json.has("folder") ? json.text("folder") : "",
            .initial = parse_initial(json),
            .versions = parse_versions(json),
            .evaluation_due = json.has("evaluation_due") && json.boolean("evaluation_due")};
  });
}

void check_continues(const RunState& state, const RunConfig& config) {
  const std::string held = shape_text(state.model);
  const std::string wanted = shape_text(config.model);
  if (held != wanted) {
    fail(ExitCode::bad_data, "the checkpoint of step {} holds another model: {}; the deck asks for {}",
         state.step, held, wanted);
  }
  const LimitsConfig& limits = config.limits;
  const std::int64_t last = limits.last_step();
  if (state.step > last) {
    fail(ExitCode::usage,
         "the checkpoint of step {} is beyond [train] {} = {}: nothing is left to train; give more steps, or "
         "restart from an earlier checkpoint with --restart=step_N",
         state.step, last == limits.steps ? "steps" : "stop_step", last);
  }
}

}  // namespace mylos
