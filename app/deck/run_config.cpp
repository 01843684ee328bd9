// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/run_config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

#include "app/deck/machine_file.hpp"
#include "app/deck/stage_plans.hpp"
#include "core/base/error.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/host.hpp"
#include "core/base/join.hpp"
#include "core/base/kinds.hpp"
#include "core/base/number_text.hpp"
#include "core/base/what_is_at.hpp"
#include "io/file_util.hpp"
#include "io/tokens/tokenizer.hpp"
#include "parallel/collectives/algorithm_choice.hpp"
#include "parallel/layout/axis_kinds.hpp"
#include "parallel/plan/choose_cuts.hpp"
#include "parallel/schedule/messages.hpp"
#include "parallel/schedule/problems.hpp"
#include "parallel/schedule/schedule_file.hpp"

namespace mylos {
namespace {

constexpr std::string_view profile_prefix = "profile:";

constexpr const char* shape_keys[] = {"model.layers", "model.heads", "model.width", "model.context",
                                      "model.vocab"};

struct Preset {
  std::string_view name;
  std::int64_t shape[std::size(shape_keys)];
};

// Radford et al., 2019, table 2; the heads are those of the published weights.
constexpr Preset presets[] = {
    {"gpt2-124m", {12, 12, 768, 1024, 50257}},
    {"gpt2-355m", {24, 16, 1024, 1024, 50257}},
    {"gpt2-774m", {36, 20, 1280, 1024, 50257}},
    {"gpt2-1558m", {48, 25, 1600, 1024, 50257}},
};

/// Returns the value that a choice stands for.
template <class T>
T parse_choice(std::string_view word, std::initializer_list<std::pair<std::string_view, T>> meanings) {
  for (const auto& [name, meaning] : meanings) {
    if (name == word) return meaning;
  }
  fail(ExitCode::internal, "deck choice {} has no meaning", word);
}

DType dtype_named(std::string_view name) {
  return parse_choice<DType>(name, {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}});
}

/// Returns the divisors of `number` that are at least `least`.
std::vector<std::int64_t> divisors_of(std::int64_t number, std::int64_t least = 1) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t i = least; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

/// Lists, in ascending order, up to eight divisors of `number`: those nearest to `wanted` that are at least
/// `least`.
std::string divisors_near(std::int64_t number, std::int64_t wanted, std::int64_t least = 1) {
  std::vector<std::int64_t> divisors = divisors_of(number, least);
  const auto nearer = [&](std::int64_t a, std::int64_t b) {
    return std::abs(a - wanted) < std::abs(b - wanted);
  };
  std::stable_sort(divisors.begin(), divisors.end(), nearer);
  divisors.resize(std::min<std::size_t>(divisors.size(), 8));
  std::sort(divisors.begin(), divisors.end());
  return one_of(divisors);
}

/// Lists the nearest positive multiples of `unit` below and above `wanted`.
std::string multiples_near(std::int64_t unit, std::int64_t wanted) {
  const std::int64_t below = wanted / unit * unit;
  return below == 0 ? std::to_string(unit) : one_of(std::array{below, below + unit});
}

/// Returns the numbers in a text such as "8,4". Throws ExitCode::usage for any other text.
std::vector<std::int64_t> parse_blocks(std::string_view text) {
  std::vector<std::int64_t> numbers;
  while (true) {
    const std::size_t end = std::min(text.find(','), text.size());
    numbers.push_back(parse_integer(text.substr(0, end)).value_or(-1));
    if (numbers.back() < 0 || numbers.back() > 1024) fail(ExitCode::usage, "a number of blocks");
    if (end == text.size()) return numbers;
    text.remove_prefix(end + 1);
  }
}

/// ModelCuts::places of chunks with so many blocks each.
std::vector<int> places_of(const std::vector<std::int64_t>& blocks) {
  std::vector<int> places;
  int first = 1;  // block 0 is the embedding
  for (const std::int64_t own : blocks) places.push_back(first += static_cast<int>(own));
  places.pop_back();
  return places;
}

/// Whether a chunk that is neither the first nor the last has no blocks.
bool has_empty_chunk(const std::vector<std::int64_t>& blocks) {
  return blocks.size() > 2 && std::find(blocks.begin() + 1, blocks.end() - 1, 0) != blocks.end() - 1;
}

/// Divides `layers` blocks among so many chunks, at most `layers` + 2, as evenly as possible: only the last
/// and the first may have none.
std::vector<std::int64_t> even_blocks(std::int64_t layers, std::int64_t chunks) {
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(chunks));
  if (chunks > layers) {
    std::fill_n(blocks.begin() + (chunks == layers + 2 ? 1 : 0), layers, 1);
    return blocks;
  }
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
    blocks[static_cast<std::size_t>(chunk)] = layers * (chunk + 1) / chunks - layers * chunk / chunks;
  return blocks;
}

/// Returns [train] end_time in Unix seconds; empty if it is not known. Throws ExitCode::usage, without a
/// subject, for a text that is none of the allowed ones.
std::optional<std::int64_t> parse_end_time(const std::string& text) {
  if (text == "none") return std::nullopt;
  if (text == "auto") {
    const auto end = number_in_environment("SLURM_JOB_END_TIME");
    return end && *end > 0 ? end : std::nullopt;
  }
  constexpr const char* allowed = "must be auto, none or a time in Unix seconds, which date +%s shows";
  std::optional<std::int64_t> time;
  try {
    time = parse_integer(text);
  } catch (const Error&) {
    fail(ExitCode::usage, "{}", allowed);
  }
  if (!time || *time < 1) fail(ExitCode::usage, "{}", allowed);
  return time;
}

/// "[model] heads" of "model.heads".
std::string label_of(std::string_view key) {
  const std::size_t dot = key.find('.');
  return fmt::format("[{}] {}", key.substr(0, dot), key.substr(dot + 1));
}

/// The product of the extents of the axes that multiply the number of ranks, without some. An extent that has
/// no value, because of a problem that was reported, counts as 1.
std::int64_t ranks_of_axes(const ParamValues& values, AxisSet left_out) {
  std::int64_t ranks = 1;
  for (const AxisKind* kind : rank_factors(left_out)) {
    const std::string key = key_of(kind->key);
    if (values.all().contains(key)) ranks *= values.integer(key);
  }
  return ranks;
}

/// "tensor = 2 and context = 4" of these axes.
std::string extents_text(const ParamValues& values, AxisSet left_out) {
  std::vector<std::string> texts;
  for (const AxisKind* kind : rank_factors(left_out))
    texts.push_back(fmt::format("{} = {}", kind->key.name, values.integer(key_of(kind->key))));
  return join(texts, " and ");
}

/// The rules that a ParamSpec cannot express; most involve several parameters. Each runs after the rules that
/// set the values it uses. A parameter with a problem, reported here or by `resolve_deck`, is not known: no
/// rule relies on it.
class CrossChecks {
 public:
  CrossChecks(const Deck& deck, const JobSize& job, DeckErrors& errors, ParamValues& values,
              const std::optional<ModelConfig>& initial)
      : deck_(deck), job_(job), errors_(errors), values_(values), initial_(initial), given_(values) {}

  void run() {
    take_preset();
    take_initial_shape();
    take_feed_forward();
    check_heads();
    check_experts();
    check_depths();
    check_vocab();
    check_ranks();
    check_steps();
    check_end_time();
    check_seq_len();
    for (const AxisKind* kind : rank_factors(replica_axes)) check_axis(*kind);
    check_feed_forward();
    check_replicas();
    if (!has_replicas_) {
      for (const AxisKind* kind : rank_factors(all_axes.without({Axis::pipeline}))) check_axis(*kind);
    }
    check_layout();
    check_shard();
    check_batch();
    check_sizes();
    check_schedule();
    check_expert_layout();
    check_stages();
    check_splits();
    choose_grad_dtype();
    choose_loss_scale();
    check_asynchronous();
    check_master();
    check_learning_rate();
    check_data();
    check_comm();
  }

 private:
  bool known(std::initializer_list<std::string_view> keys) const {
    return std::all_of(keys.begin(), keys.end(), [&](std::string_view key) {
      return values_.all().contains(key) && !failed_.contains(key);
    });
  }

  std::int64_t integer(std::string_view key) const { return values_.integer(key); }
  /// The value of the deck, before rules set what it leaves open.
  std::int64_t given(std::string_view key) const { return given_.integer(key); }

  using Changes = std::vector<std::pair<std::string_view, ParamValue>>;
  using Keys = std::set<std::string, std::less<>>;
  struct Failures {
    std::size_t problems = 0;
    Keys keys;
  };
  /// What would be wrong if some keys had other values.
  Failures failures(const Changes& changes) const {
    ParamValues values = given_;
    for (const auto& [key, value] : changes) values.set(std::string(key), value);
    DeckErrors errors;
    CrossChecks trial(deck_, job_, errors, values, initial_);
    trial.is_trial_ = true;
    trial.run();
    return {errors.messages().size(), trial.failed_};
  }
  /// Whether other values of some keys would solve a problem and lead to no other.
  bool works(const Changes& changes) const {
    if (is_trial_) return true;
    const auto [problems, keys] = failures({});
    const Failures left = failures(changes);
    return left.problems < problems &&
           std::includes(keys.begin(), keys.end(), left.keys.begin(), left.keys.end());
  }
  /// Returns, in ascending order, up to eight of the `candidates` for a key that work: the nearest to
  /// `wanted`.
  std::vector<std::int64_t> working(std::string_view key, std::vector<std::int64_t> candidates,
                                    std::int64_t wanted) const {
    const auto nearer = [&](std::int64_t a, std::int64_t b) {
      return std::abs(a - wanted) < std::abs(b - wanted);
    };
    std::stable_sort(candidates.begin(), candidates.end(), nearer);
    std::vector<std::int64_t> found;
    for (const std::int64_t candidate : candidates) {
      if (candidate != wanted && found.size() < 8 && works({{key, candidate}})) found.push_back(candidate);
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  /// Lists the divisors of `number` nearest to `wanted`: those that work, or else, saying so, others.
  std::string working_divisors(std::string_view key, std::int64_t number, std::int64_t wanted) const {
    const std::vector<std::int64_t> found = working(key, divisors_of(number), wanted);
    return found.empty() ? divisors_near(number, wanted) + " with other changes" : one_of(found);
  }

  /// Reports a problem with `keys` at the first of them that the deck sets. From then on, the first of `keys`
  /// is not known.
  template <class... Args>
  void report(const std::vector<std::string_view>& keys, fmt::format_string<Args...> format, Args&&... args) {
    const auto is_set = [&](std::string_view key) { return deck_.find(key) != nullptr; };
    const auto key = std::ranges::find_if(keys, is_set);
    errors_.add(deck_.place_of(key == keys.end() ? keys.front() : *key),
                fmt::format(format, std::forward<Args>(args)...));
    failed_.emplace(keys.front());
  }

  void take_preset() {
    const Preset* preset = nullptr;
    if (known({"model.preset"})) {
      const auto same = [&](const Preset& other) { return other.name == values_.text("model.preset"); };
      const auto* const found = std::find_if(std::begin(presets), std::end(presets), same);
      preset = found == std::end(presets) ? nullptr : found;
    }
    std::vector<std::string_view> open;
    for (std::size_t i = 0; i < std::size(shape_keys); ++i) {
      if (!known({shape_keys[i]}) || integer(shape_keys[i]) > 0) continue;
      if (preset != nullptr) {
        values_.set(shape_keys[i], preset->shape[i]);
      } else if (initial_) {
        values_.set(shape_keys[i], shape_of(*initial_)[i]);
      } else {
        failed_.emplace(shape_keys[i]);
        open.push_back(std::string_view(shape_keys[i]).substr(std::string_view("model.").size()));
      }
    }
    if (!open.empty() && known({"model.preset"})) {
      report({"model.preset"}, "[model] {} must be set if preset = none", join(open, ", "));
    }
  }

  static std::array<std::int64_t, std::size(shape_keys)> shape_of(const ModelConfig& model) {
    return {model.layers, model.heads, model.width, model.context, model.vocab};
  }

  void take_initial_shape() {
    if (!initial_) return;
    const auto differs = [&](std::string_view key, const auto& wanted, const auto& found) {
      const std::string_view name = key.substr(std::string_view("model.").size());
      report({key, "model.preset", "model.init"}, "[model] {} = {}, but {} = {} in {}", name, wanted, name,
             found, values_.text("model.init"));
    };
    for (std::size_t i = 0; i < std::size(shape_keys); ++i) {
      const std::string_view key = shape_keys[i];
      if (!known({key})) continue;
      const std::int64_t found = shape_of(*initial_)[i];
      const bool is_smaller_context = key == "model.context" && integer(key) < found;
      if (integer(key) != found && !is_smaller_context) differs(key, integer(key), found);
    }
    if (known({"model.feed_forward"})) {
      const std::int64_t found = initial_->inner_width();
      if (integer("model.feed_forward") == 0) values_.set("model.feed_forward", found);
      if (integer("model.feed_forward") != found)
        differs("model.feed_forward", integer("model.feed_forward"), found);
    }
    take_initial("model.tied", initial_->tied, differs);
    take_initial("model.depth_capacity", initial_->depths.capacity, differs);
    if (initial_->depths.capacity > 0.0) take_initial("model.depth_every", initial_->depths.every, differs);
    const ExpertConfig& experts = initial_->experts;
    take_initial("model.experts", experts.count, differs);
    if (experts.count == 0) return;
    take_initial("model.experts_per_token", experts.per_token, differs);
    take_initial("model.expert_width", experts.width, differs);
    take_initial("model.expert_every", experts.every, differs);
    take_initial("model.shared_expert", experts.has_shared, differs);
    take_initial("model.router", std::string(name_of(experts.router)), differs);
    take_initial("model.router_noise", std::string(name_of(experts.noise)), differs);
  }
  /// Takes a key of the initial model, which the deck may repeat.
  template <class T>
  void take_initial(std::string_view key, const T& found, const auto& differs) {
    if (!known({key})) return;
    if (deck_.find(key) == nullptr) values_.set(std::string(key), found);
    const T& wanted = std::get<T>(values_.all().at(std::string(key)));
    if (wanted != found) differs(key, wanted, found);
  }

  void take_feed_forward() {
    if (!known({"model.feed_forward"}) || integer("model.feed_forward") > 0) return;
    if (known({"model.width"})) {
      values_.set("model.feed_forward", 4 * integer("model.width"));
    } else {
      failed_.emplace("model.feed_forward");
    }
  }

  void check_heads() {
    if (!known({"model.heads", "model.width"})) return;
    const std::int64_t heads = integer("model.heads");
    const std::int64_t width = integer("model.width");
    if (width % heads == 0) return;
    report({"model.heads", "model.width"}, "[model] heads = {} must divide width = {}; use {}", heads, width,
           divisors_near(width, heads));
  }

  void check_experts() {
    if (!known({"model.experts"})) return;
    const std::int64_t experts = integer("model.experts");
    if (experts == 0) {
      check_unused("experts",
                   {"model.experts_per_token", "model.expert_width", "model.expert_every",
                    "model.shared_expert", "model.router", "model.router_noise", "train.expert_capacity",
                    "train.expert_order", "train.balance_loss", "train.router_z_loss"});
      return;
    }
    if (known({"model.expert_width", "model.feed_forward"}) && integer("model.expert_width") == 0)
      values_.set("model.expert_width", integer("model.feed_forward"));
    if (known({"model.expert_every", "model.layers"}) &&
        integer("model.expert_every") > integer("model.layers")) {
      report({"model.expert_every", "model.layers"},
             "[model] expert_every = {} must be at most layers = {}: otherwise no block has experts",
             integer("model.expert_every"), integer("model.layers"));
    }
    if (!known({"model.experts_per_token", "model.router"})) return;
    const std::int64_t chosen = integer("model.experts_per_token");
    if (chosen > experts) {
      report({"model.experts_per_token", "model.experts"},
             "[model] experts_per_token = {} must be at most experts = {}", chosen, experts);
    } else if (values_.text("model.router") == "auto") {
      values_.set("model.router", std::string(chosen == 1 ? "softmax_topk" : "topk_softmax"));
    } else if (chosen == 1 && values_.text("model.router") == "topk_softmax") {
      report({"model.router", "model.experts_per_token"},
             "[model] router = topk_softmax with experts_per_token = 1 gives every expert the weight 1, so "
             "that the router learns nothing; use router = softmax_topk");
    }
  }

  void check_depths() {
    if (!known({"model.depth_capacity"})) return;
    if (values_.real("model.depth_capacity") == 0.0) {
      check_unused("depth_capacity", {"model.depth_every"});
      return;
    }
    if (known({"model.depth_every", "model.layers"}) &&
        integer("model.depth_every") > integer("model.layers")) {
      report({"model.depth_every", "model.layers"},
             "[model] depth_every = {} must be at most layers = {}: otherwise no block is routed",
             integer("model.depth_every"), integer("model.layers"));
    }
    if (known({"model.width"}) && integer("model.width") < 8) {
      report({"model.depth_capacity", "model.width"},
             "[model] depth_capacity needs a width of at least 8: the predictor of a routed block has an "
             "eighth of it");
    }
    if (known({"parallel.sequence"}) && values_.boolean("parallel.sequence")) {
      report({"model.depth_capacity", "parallel.sequence"},
             "[model] depth_capacity cannot be used with [parallel] sequence = true: the tokens of a routed "
             "block do not lie evenly on the ranks; use sequence = false");
    }
  }
  /// Reports those of the keys that differ from their defaults although [model] `needed` is 0. A resolved
  /// deck has all keys.
  void check_unused(std::string_view needed, std::initializer_list<std::string_view> keys) {
    DeckErrors ignored;
    const ParamValues defaults = resolve_deck(Deck(), deck_params(), {}, ignored);
    for (const std::string_view key : keys) {
      if (known({key}) && given_.all().find(key)->second != defaults.all().find(key)->second)
        report({key}, "{} needs [model] {}", key.substr(key.find('.') + 1), needed);
    }
  }

  void check_vocab() {
    if (!known({"model.vocab"})) return;
    const std::int64_t vocab = integer("model.vocab");
    if (vocab < 2) {
      report({"model.vocab"}, "[model] vocab = {} is out of range; use 2 to 1048576", vocab);
      return;
    }
    const std::string tokenizer = known({"data.tokenizer"}) ? values_.text("data.tokenizer") : "none";
    if (tokenizer == "none") return;
    const std::int64_t needed = tokenizer_kind(tokenizer).vocab_size;
    if (vocab >= needed) return;
    report({"model.vocab", "data.tokenizer"},
           "[model] vocab = {} must be at least {} with [data] tokenizer = {}", vocab, needed, tokenizer);
  }

  void check_ranks() {
    if (!known({"data.tokenizer", "data.ranks"}) || values_.text("data.ranks").empty()) return;
    const std::string tokenizer = values_.text("data.tokenizer");
    if (tokenizer != "none" && tokenizer_kind(tokenizer).has_ranks) return;
    report({"data.ranks"}, "[data] ranks needs a tokenizer that has ranks, not tokenizer = {}", tokenizer);
  }

  /// Checks that `key`, a step or a number of steps, does not exceed train.steps.
  void check_within_steps(std::string_view key, std::string_view label) {
    if (!known({key, "train.steps"}) || integer(key) <= integer("train.steps")) return;
    report({key, "train.steps"}, "{} = {} must be at most [train] steps = {}", label, integer(key),
           integer("train.steps"));
  }

  void check_steps() {
    check_within_steps("train.stop_step", "[train] stop_step");
    check_within_steps("optim.warmup", "[optim] warmup");
    check_within_steps("profile.step", "[profile] step");
  }

  void check_end_time() {
    if (!known({"train.end_time"})) return;
    try {
      parse_end_time(values_.text("train.end_time"));
    } catch (const Error& error) {
      report({"train.end_time"}, "[train] end_time = {} {}", values_.text("train.end_time"), error.what());
    }
  }

  void check_seq_len() {
    if (!known({"train.seq_len", "model.context"})) return;
    const std::int64_t context = integer("model.context");
    if (integer("train.seq_len") == 0) values_.set("train.seq_len", context);
    if (integer("train.seq_len") <= context) return;
    report({"train.seq_len", "model.context"}, "[train] seq_len = {} must be at most [model] context = {}",
           integer("train.seq_len"), context);
  }

  /// Whether the extents of the axes are known that multiply the number of ranks, without some.
  bool knows_axes(AxisSet left_out) const {
    return std::ranges::all_of(rank_factors(left_out),
                               [&](const AxisKind* kind) { return known({key_of(kind->key)}); });
  }

  /// An extent must divide what the axis divides, and the ranks that the axes before it leave.
  void check_axis(const AxisKind& kind) {
    const std::string key = key_of(kind.key);
    if (!known({key})) return;
    const std::int64_t extent = integer(key);
    if (kind.divided != nullptr && known({kind.divided}) && integer(kind.divided) % extent != 0) {
      const std::int64_t whole = integer(kind.divided);
      report({key, kind.divided}, "[parallel] {} = {} must divide {} = {}; use {}", kind.key.name, extent,
             label_of(kind.divided), whole, working_divisors(key, whole, extent));
      return;
    }
    std::int64_t rest = job_.ranks;
    std::vector<std::string> keys = {key};
    std::vector<std::string> divisors;
    for (const AxisKind* other : rank_factors({Axis::replicate})) {
      if (other == &kind) break;
      keys.push_back(key_of(other->key));
      if (!known({keys.back()})) return;
      rest /= integer(keys.back());
      if (integer(keys.back()) > 1)
        divisors.push_back(fmt::format("{} = {}", other->key.name, integer(keys.back())));
    }
    if (rest % extent == 0) return;
    report({keys.begin(), keys.end()}, "[parallel] {} = {} must divide this run's {} ranks{}; use {}",
           kind.key.name, extent, job_.ranks,
           divisors.empty() ? "" : " divided by " + join(divisors, " and "),
           working_divisors(key, rest, extent));
  }

  void check_feed_forward() {
    if (!known({"model.feed_forward", "parallel.tensor"})) return;
    const bool is_used = !known({"model.experts", "model.expert_every"}) || integer("model.experts") == 0 ||
                         integer("model.expert_every") > 1;
    const std::int64_t inner = integer("model.feed_forward");
    const std::int64_t tensor = integer("parallel.tensor");
    if (!is_used || inner % tensor == 0) return;
    report({"model.feed_forward", "parallel.tensor"},
           "[model] feed_forward = {} must be a multiple of [parallel] tensor = {}; use {}", inner, tensor,
           multiples_near(tensor, inner));
  }

  /// The numbers of parallel.replicas; empty if there are none, or if they are no numbers from 1 on.
  std::vector<int> replicas() const {
    std::vector<int> numbers;
    const std::string& text = values_.text("parallel.replicas");
    if (text.empty()) return numbers;
    try {
      for (const std::int64_t number : parse_blocks(text)) numbers.push_back(static_cast<int>(number));
    } catch (const Error&) {
      numbers.clear();
    }
    if (std::ranges::any_of(numbers, [](int number) { return number < 1; })) numbers.clear();
    return numbers;
  }

  /// Equal replicas are the data axis.
  void check_replicas() {
    if (!known({"parallel.replicas", "parallel.schedule"}) || !knows_axes({})) return;
    const std::string& text = values_.text("parallel.replicas");
    if (text.empty()) return;
    const std::string& schedule = values_.text("parallel.schedule");
    const std::int64_t pipeline = integer("parallel.pipeline");
    const std::vector<int> numbers = replicas();
    if (schedule == "auto" || !find_kind(schedules(), schedule).is_asynchronous()) {
      report(
          {"parallel.replicas", "parallel.schedule"},
          "[parallel] replicas = {} needs schedule = pipedream or pipedream_2bw, not {}; use data for equal "
          "numbers of ranks per stage",
          text, schedule);
      return;
    }
    if (numbers.empty() || std::ssize(numbers) != pipeline) {
      report({"parallel.replicas", "parallel.pipeline"},
             "[parallel] replicas = {} must be a number from 1 on for each of the pipeline = {} stages, such "
             "as {}",
             text, pipeline, join(std::vector<int>(static_cast<std::size_t>(pipeline), 1), ","));
      return;
    }
    if (integer("parallel.data") > 1) {
      report(
          {"parallel.replicas", "parallel.data"},
          "[parallel] replicas = {} says how many ranks each stage has, and so would data = {}; use data = 0",
          text, integer("parallel.data"));
      return;
    }
    const std::int64_t ranks = ranks_of_axes(values_, replica_axes) *
                               std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
    if (ranks != job_.ranks) {
      report({"parallel.replicas"}, "[parallel] replicas = {} with {} needs {} rank{}, but this run has {}",
             text, extents_text(values_, replica_axes), ranks, ranks == 1 ? "" : "s", job_.ranks);
      return;
    }
    if (std::ranges::adjacent_find(numbers, std::ranges::not_equal_to()) == numbers.end()) {
      values_.set("parallel.data", std::int64_t{numbers.front()});
      values_.set("parallel.replicas", "");
      return;
    }
    values_.set("parallel.data", std::int64_t{1});
    has_replicas_ = true;
  }

  void check_layout() {
    if (!knows_axes({Axis::replicate})) failed_.emplace("parallel.data");
    if (!known({"parallel.data"}) || has_replicas_) return;
    const std::int64_t data = integer("parallel.data");
    const std::int64_t others = ranks_of_axes(values_, {Axis::replicate});
    const std::int64_t all = job_.ranks / others;
    if (data == 0) values_.set("parallel.data", all);
    if (data == 0 || data == all) return;
    report({"parallel.data"},
           "[parallel] data = {} needs {} rank{}, but this run has {}; use data = {}, or 0 for all ranks",
           data, data * others, data * others == 1 ? "" : "s", job_.ranks, all);
  }

  /// "pipeline = 2 or 4" with what works instead of the number of stages; "" if nothing does.
  std::string other_stages() const {
    const std::int64_t rest = job_.ranks / ranks_of_axes(values_, replica_axes);
    const std::vector<std::int64_t> found =
        working("parallel.pipeline", divisors_of(rest), integer("parallel.pipeline"));
    return found.empty() ? "" : "pipeline = " + one_of(found);
  }
  /// "use a, or b" of the texts that are not empty; "" if all are.
  static std::string advice(std::vector<std::string> texts) {
    std::erase(texts, "");
    return texts.empty() ? "" : "; use " + join(texts, ", or ");
  }

  void check_schedule() {
    if (!known({"parallel.schedule"})) return;
    const bool knows_stages = known({"parallel.pipeline"});
    if (values_.text("parallel.schedule") == "auto") {
      const bool is_one_stage = knows_stages && integer("parallel.pipeline") == 1;
      values_.set("parallel.schedule", is_one_stage ? "accumulate" : "1f1b");
    }
    const ScheduleKind& kind = find_kind(schedules(), values_.text("parallel.schedule"));
    check_own_chunks(kind);
    if (!knows_stages) return;
    check_exchange_of_stages();
    if (std::string_view(kind.name) == "interleaved") {
      check_interleaved_chunks();
      check_interleaved_batch();
    }
    check_schedule_file(kind);
  }

  /// What stages that do not wait for each other cannot do, because it is decided from the gradient of the
  /// whole model, or because they keep several versions of the weights.
  void check_asynchronous() {
    if (!known({"parallel.schedule", "parallel.pipeline", "parallel.emulated_stages"})) return;
    const std::string& schedule = values_.text("parallel.schedule");
    const bool is_asynchronous = find_kind(schedules(), schedule).is_asynchronous();
    const std::int64_t emulated = integer("parallel.emulated_stages");
    if (emulated > 1 && !(is_asynchronous && integer("parallel.pipeline") == 1)) {
      report({"parallel.emulated_stages", "parallel.schedule", "parallel.pipeline"},
             "[parallel] emulated_stages = {} needs schedule = pipedream or pipedream_2bw with pipeline = 1, "
             "not schedule = {} with pipeline = {}; use emulated_stages = 1",
             emulated, schedule, integer("parallel.pipeline"));
    }
    if (known({"parallel.vertical_sync"}) && values_.boolean("parallel.vertical_sync") &&
        schedule != "pipedream") {
      report({"parallel.vertical_sync", "parallel.schedule"},
             "[parallel] vertical_sync = true is used with schedule = pipedream only, not {}; use "
             "vertical_sync = false",
             schedule);
    }
    if (is_asynchronous && std::max(emulated, integer("parallel.pipeline")) == 1) {
      report({"parallel.schedule", "parallel.pipeline"},
             "[parallel] schedule = {} needs several stages, not pipeline = 1; use pipeline = 2 or more, "
             "emulated_stages = 2 or more, or schedule = auto",
             schedule);
    }
    if (!known({"optim.clip_scope"})) return;
    const bool clips_stages = values_.text("optim.clip_scope") == "stage";
    if (clips_stages && !is_asynchronous) {
      report({"optim.clip_scope", "parallel.schedule"},
             "[optim] clip_scope = stage is used with schedule = pipedream and pipedream_2bw, not {}; use "
             "clip_scope = model",
             schedule);
    }
    const std::int64_t stages = std::max(emulated, integer("parallel.pipeline"));
    if (is_asynchronous && stages > 1) check_stages_alone(schedule, stages, clips_stages);
  }

  /// "micro_batch = 2" that gives `least` micro-batches per step or more; "" if none does.
  std::string smaller_micro_batch(std::int64_t least) const {
    const std::int64_t share = integer("train.global_batch") / integer("parallel.data");
    const std::int64_t most = integer("train.global_batch") / least;
    for (std::int64_t micro = std::min(most, share); micro >= 1; --micro) {
      if (share % micro == 0 && works({{"train.micro_batch", micro}}))
        return fmt::format("micro_batch = {}", micro);
    }
    return "";
  }

  void check_stages_alone(const std::string& schedule, std::int64_t stages, bool clips_stages) {
    if (known({"optim.clip_norm"}) && values_.real("optim.clip_norm") > 0.0 && !clips_stages) {
      report({"optim.clip_norm", "parallel.schedule"},
             "[optim] clip_norm = {} clips by the norm of the whole model, which no stage of schedule = {} "
             "knows in time; use clip_scope = stage, or clip_norm = 0",
             values_.real("optim.clip_norm"), schedule);
    }
    if (known({"model.tied"}) && values_.boolean("model.tied")) {
      report({"model.tied", "parallel.schedule"},
             "[model] tied = true cannot be used with schedule = {}: the two stages with the matrix update "
             "it at different times; use tied = false",
             schedule);
    }
    if (known({"train.dtype", "train.loss_scale_window"}) && values_.text("train.dtype") == "fp16" &&
        integer("train.loss_scale_window") > 0) {
      report(
          {"train.loss_scale_window", "parallel.schedule"},
          "[train] loss_scale_window = {} changes the loss scale by the gradient of the whole model, which "
          "no stage of schedule = {} knows in time; use loss_scale_window = 0",
          integer("train.loss_scale_window"), schedule);
    }
    if (known({"guard.spike_factor"}) && values_.real("guard.spike_factor") > 0.0) {
      report({"guard.spike_factor", "parallel.schedule"},
             "[guard] spike_factor = {} judges the gradient of the whole model, which no stage of schedule = "
             "{} knows in time; use spike_factor = 0",
             values_.real("guard.spike_factor"), schedule);
    }
    if (known({"parallel.chunks"}) && integer("parallel.chunks") > 1) {
      report(
          {"parallel.chunks", "parallel.schedule"},
          "[parallel] chunks = {} cannot be used with schedule = {}, whose stages have 1 chunk; use chunks "
          "= 1",
          integer("parallel.chunks"), schedule);
    }
    if (!known({"parallel.data", "parallel.exchange"})) return;
    const std::string& exchange = values_.text("parallel.exchange");
    const std::int64_t data = integer("parallel.data");
    if (exchange != "ddp" && (data > 1 || has_replicas_)) {
      report({"parallel.exchange", "parallel.schedule"},
             "[parallel] exchange = {} cannot be used with schedule = {}: every version of the weights would "
             "have to be gathered; use exchange = ddp",
             exchange, schedule);
    }
    if (!known({"train.global_batch", "train.micro_batch"})) return;
    const std::int64_t step = micro_batches() * data;
    std::vector<int> all = has_replicas_
                               ? replicas()
                               : std::vector<int>(static_cast<std::size_t>(stages), static_cast<int>(data));
    for (const int own : all) {
      if (step % own == 0) continue;
      report({"train.global_batch", "parallel.replicas"},
             "[train] global_batch = {} gives {} micro-batch{} of {} per step, which {} replicas of a stage "
             "do not "
             "divide; use global_batch = {}",
             integer("train.global_batch"), step, step == 1 ? "" : "es", integer("train.micro_batch"), own,
             multiples_near(std::accumulate(all.begin(), all.end(), std::int64_t{1},
                                            [](std::int64_t a, int b) { return std::lcm(a, b); }) *
                                integer("train.micro_batch"),
                            integer("train.global_batch")));
      return;
    }
    if (schedule != "pipedream_2bw") return;
    const ScheduleScope scope{
        .micro_batches = static_cast<int>(step), .stages = static_cast<int>(stages), .replicas = all};
    std::int64_t delay = 0;
    for (const VersionRule& rule : find_kind(schedules(), "pipedream").rules(scope))
      delay = std::max<std::int64_t>(delay, rule.delay);
    if (step >= delay) return;
    report(
        {"train.global_batch", "parallel.schedule"},
        "[train] global_batch = {} gives {} micro-batch{} of {} per step, but with schedule = "
        "pipedream_2bw and {} stages {} are in flight before the last stage{}",
        integer("train.global_batch"), step, step == 1 ? "" : "es", integer("train.micro_batch"), stages,
        delay,
        advice({smaller_micro_batch(delay), batches_for(std::max<std::int64_t>(1, (delay + data - 1) / data)),
                "schedule = pipedream"}));
  }

  void check_exchange_of_stages() {
    if (!known({"parallel.exchange"}) || integer("parallel.pipeline") == 1) return;
    const std::string& exchange = values_.text("parallel.exchange");
    if (exchange != "zero2" && exchange != "zero3") return;
    std::vector<std::string> others;
    for (const char* other : {"zero1", "ddp"}) {
      if (works({{"parallel.exchange", other}})) others.push_back(fmt::format("exchange = {}", other));
    }
    report({"parallel.exchange", "parallel.pipeline"},
           "[parallel] exchange = {} cannot be used with pipeline = {}: it would {} in every micro-batch{}",
           exchange, integer("parallel.pipeline"),
           exchange == "zero2" ? "reduce gradients" : "gather weights and reduce gradients", advice(others));
  }

  std::string if_works(const Changes& changes, const char* text) const {
    return works(changes) ? text : std::string();
  }

  void check_own_chunks(const ScheduleKind& kind) {
    if (kind.chunks == 0 || !known({"parallel.chunks"}) || integer("parallel.chunks") == 1) return;
    report({"parallel.chunks", "parallel.schedule"},
           "[parallel] chunks = {} cannot be used with schedule = {}, whose stages have {} chunk{}; use "
           "chunks = "
           "1{}",
           integer("parallel.chunks"), kind.name, kind.chunks, kind.chunks == 1 ? "" : "s",
           if_works({{"parallel.schedule", "interleaved"}}, ", or schedule = interleaved"));
  }

  void check_interleaved_chunks() {
    if (!known({"parallel.chunks"})) return;
    const std::int64_t chunks = integer("parallel.chunks");
    const std::int64_t pipeline = integer("parallel.pipeline");
    if (chunks > 1 && pipeline > 1) return;
    constexpr std::int64_t one = 1;
    constexpr std::int64_t two = 2;
    report({"parallel.schedule", "parallel.chunks"},
           "[parallel] schedule = interleaved needs several stages of several chunks, not pipeline = {} and "
           "chunks = {}{}",
           pipeline, chunks,
           advice({if_works({{"parallel.chunks", two}}, "chunks = 2"), other_stages(),
                   if_works({{"parallel.schedule", "auto"}, {"parallel.chunks", one}},
                            chunks == 1 ? "schedule = auto" : "schedule = auto with chunks = 1")}));
  }

  /// Micro-batches per step.
  std::int64_t micro_batches() const {
    return integer("train.global_batch") / (integer("train.micro_batch") * integer("parallel.data"));
  }

  /// What to write for a step of a multiple of `unit` micro-batches: "global_batch = 8 or 16".
  std::string batches_for(std::int64_t unit) const {
    const std::int64_t global = integer("train.global_batch");
    const std::int64_t data = integer("parallel.data");
    std::vector<std::int64_t> sizes;
    for (const std::int64_t size : divisors_of(global / data)) {
      if (global / data / size % unit == 0) sizes.push_back(size);
    }
    sizes = working("train.micro_batch", sizes, integer("train.micro_batch"));
    std::vector<std::int64_t> batches;
    // If the deck leaves the micro-batch open, there is one of any size.
    if (const std::int64_t micro = given("train.micro_batch"); micro > 0) {
      const std::int64_t step = unit * micro * data;
      for (const std::int64_t batch : {global / step * step, (global / step + 1) * step}) {
        if (batch > 0) batches.push_back(batch);
      }
      batches = working("train.global_batch", batches, global);
    }
    std::vector<std::string> texts;
    if (!batches.empty()) texts.push_back("global_batch = " + one_of(batches));
    if (!sizes.empty()) texts.push_back("micro_batch = " + one_of(sizes));
    return join(texts, ", or ");
  }

  void check_interleaved_batch() {
    if (!known({"train.global_batch", "train.micro_batch", "parallel.data"})) return;
    const std::int64_t pipeline = integer("parallel.pipeline");
    if (micro_batches() % pipeline == 0) return;
    std::string batches = batches_for(pipeline);
    const std::int64_t smallest = pipeline * integer("parallel.data");
    if (batches.empty() && works({{"train.global_batch", smallest}, {"train.micro_batch", std::int64_t{1}}}))
      batches = fmt::format("global_batch = {} with micro_batch = 1", smallest);
    report(
        {"train.global_batch", "parallel.pipeline"},
        "[train] global_batch = {} gives {} micro-batch{} of {} per step, but schedule = interleaved needs a "
        "multiple of [parallel] pipeline = {}{}",
        integer("train.global_batch"), micro_batches(), micro_batches() == 1 ? "" : "es",
        integer("train.micro_batch"), pipeline, advice({batches}));
  }

  void check_schedule_file(const ScheduleKind& kind) {
    if (!known({"parallel.schedule_file"})) return;
    const std::string& file = values_.text("parallel.schedule_file");
    const bool is_used = std::string_view(kind.name) == "file";
    if (is_used == file.empty()) {
      report({"parallel.schedule_file", "parallel.schedule"}, "[parallel] {}",
             is_used
                 ? "schedule = file needs a schedule_file; name one, or use schedule = auto"
                 : fmt::format("schedule_file = {} is used with schedule = file only; use schedule = file, "
                               "or leave schedule_file out",
                               file));
    }
    if (!is_used || file.empty()) return;
    try {
      const std::string text = read_text_file(expand_path(file));
      const std::vector<Schedule> stages = parse_schedule(text);
      if (!known({"parallel.chunks"})) return;
      if (!has_extents_of(stages)) return;
      const std::vector<Schedule> made = kind.make({.micro_batches = stages.front().micro_batches,
                                                    .stages = static_cast<int>(integer("parallel.pipeline")),
                                                    .chunks = static_cast<int>(integer("parallel.chunks")),
                                                    .file = text,
                                                    .values = &values_});
      const bool is_tied = known({"model.tied"}) && values_.boolean("model.tied");
      const std::vector<std::string> problems = find_problems(with_messages(made), is_tied);
      if (!problems.empty()) fail(ExitCode::usage, "{}", join(problems, "; "));
    } catch (const Error& error) {
      report({"parallel.schedule_file"}, "[parallel] schedule_file = {}: {}", file, error.what());
    }
  }

  /// Whether a schedule file is for the numbers of stages, chunks and micro-batches of the deck; reports a
  /// problem if it is not. Rows with different numbers of chunks are another problem.
  bool has_extents_of(const std::vector<Schedule>& stages) {
    const std::int64_t pipeline = std::ssize(stages);
    const std::int64_t chunks = stages.front().chunks / pipeline;
    const std::int64_t m = stages.front().micro_batches;
    const bool knows_batch = known({"train.global_batch", "train.micro_batch", "parallel.data"});
    const bool is_same_shape =
        pipeline == integer("parallel.pipeline") && chunks == integer("parallel.chunks");
    const bool is_even = std::all_of(stages.begin(), stages.end(), [&](const Schedule& stage) {
      return std::ssize(stage.held_chunks()) == chunks;
    });
    if (!is_even || (is_same_shape && (!knows_batch || m == micro_batches()))) return true;
    Changes changes;
    std::vector<std::string> texts;
    const auto change = [&](std::string_view key, std::int64_t value) {
      changes.emplace_back(key, value);
      texts.push_back(fmt::format("{} = {}", key.substr(key.find('.') + 1), value));
    };
    if (pipeline != integer("parallel.pipeline")) change("parallel.pipeline", pipeline);
    if (chunks != integer("parallel.chunks")) change("parallel.chunks", chunks);
    const std::int64_t ranks = ranks_of_axes(values_, replica_axes) * pipeline;
    const std::int64_t data = job_.ranks / ranks;
    if (knows_batch && data > 0) {
      const std::int64_t global = integer("train.global_batch");
      const std::int64_t micro = given("train.micro_batch");
      const bool divides = global % (data * m) == 0;
      if (micro > 0 && global != micro * data * m) change("train.global_batch", micro * data * m);
      if (micro == 0 && !divides) change("train.global_batch", data * m);
      if (micro == 0 && m > 1) change("train.micro_batch", divides ? global / (data * m) : 1);
    }
    std::string advised = works(changes) ? advice({join(texts, ", ")}) : "";
    if (job_.ranks % ranks != 0)
      advised = fmt::format("; use pipeline = {} with a multiple of {} ranks", pipeline, ranks);
    const auto counts = [&](std::int64_t p, std::int64_t v, std::int64_t batches) {
      return fmt::format("{} x {} chunks{}", p, v,
                         knows_batch ? fmt::format(" and {} micro-batches", batches) : "");
    };
    report(
        {"parallel.schedule_file"},
        "[parallel] schedule_file = {} is for pipeline x chunks = {}, but the deck has {}{}",
        values_.text("parallel.schedule_file"), counts(pipeline, chunks, m),
        counts(integer("parallel.pipeline"), integer("parallel.chunks"), knows_batch ? micro_batches() : 0),
        advised);
    return false;
  }

  /// The chunks of the model that a stage has.
  std::int64_t chunks_per_stage() const {
    const ScheduleKind& kind = find_kind(schedules(), values_.text("parallel.schedule"));
    if (kind.is_asynchronous() && integer("parallel.pipeline") == 1 && known({"parallel.emulated_stages"}))
      return integer("parallel.emulated_stages");
    const int own = kind.chunks;
    return own > 0 ? own : integer("parallel.chunks");
  }

  /// Whether the model has enough blocks for the chunks; reports a problem if it has not.
  bool can_fill_chunks() {
    const std::int64_t pipeline = integer("parallel.pipeline");
    const std::int64_t layers = integer("model.layers");
    const std::int64_t most = layers + 2;
    if (pipeline * chunks_per_stage() <= most) return true;
    std::vector<std::int64_t> fewer;
    if (find_kind(schedules(), values_.text("parallel.schedule")).chunks == 0 && pipeline <= most)
      fewer = working("parallel.chunks", {most / pipeline}, integer("parallel.chunks"));
    std::string advised = advice({fewer.empty() ? "" : "chunks = " + one_of(fewer), other_stages()});
    if (advised.empty())
      advised = fmt::format("; use [model] layers = {} or more", pipeline * chunks_per_stage() - 2);
    report({"parallel.pipeline", "parallel.chunks"},
           "[parallel] pipeline = {} makes {} chunks, but [model] layers = {} fills at most {}, the "
           "embedding and "
           "the head alone included{}",
           pipeline, pipeline * chunks_per_stage(), layers, most, advised);
    return false;
  }

  void check_stages() {
    if (!known({"parallel.stages", "parallel.schedule", "parallel.pipeline", "model.layers"})) return;
    const bool has_own_chunks = find_kind(schedules(), values_.text("parallel.schedule")).chunks > 0;
    if (!has_own_chunks && !known({"parallel.chunks"})) return;
    if (!can_fill_chunks()) return;
    const std::int64_t layers = integer("model.layers");
    const std::int64_t chunks = integer("parallel.pipeline") * chunks_per_stage();
    const std::string& stages = values_.text("parallel.stages");
    const std::string legal = join(even_blocks(layers, chunks), ",");
    if (stages == "auto" || (stages.starts_with(profile_prefix) && stages != profile_prefix)) return;
    std::vector<std::int64_t> counts;
    try {
      counts = parse_blocks(stages);
    } catch (const Error&) {
      report({"parallel.stages"},
             "[parallel] stages = {} must be auto, profile:PATH or the blocks of each chunk, such as {}",
             stages, legal);
      return;
    }
    const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    std::string problem;
    if (std::ssize(counts) != chunks) {
      problem = fmt::format("has {} number{}, but there are {} chunk{}: pipeline = {} with {} each",
                            counts.size(), counts.size() == 1 ? "" : "s", chunks, chunks == 1 ? "" : "s",
                            integer("parallel.pipeline"), chunks_per_stage());
    } else if (sum != layers) {
      problem = fmt::format("has {} blocks, but [model] layers = {}", sum, layers);
    } else if (has_empty_chunk(counts)) {
      problem = "leaves a chunk without blocks that is neither the first nor the last";
    } else {
      return;
    }
    report({"parallel.stages", "parallel.pipeline"}, "[parallel] stages = {} {}; use auto, or such as {}",
           stages, problem, legal);
  }

  /// Returns the extent of the shard axis that parallel.shard requests: 0 for the whole data axis, -1 after
  /// reporting a problem.
  std::int64_t wanted_shard() {
    const std::string wanted = values_.text("parallel.shard");
    if (wanted == "node") {
      const bool is_pretended = known({"comm.ranks_per_node"}) && integer("comm.ranks_per_node") > 0;
      const std::int64_t ranks = is_pretended ? integer("comm.ranks_per_node") : job_.ranks_per_node;
      const std::int64_t samples = std::min(ranks, job_.ranks) / ranks_of_axes(values_, replica_axes);
      // A node may have ranks of several stages, or a stage ranks on several nodes.
      if (samples > 0) return std::gcd(samples, integer("parallel.data"));
      report({"parallel.shard"},
             "[parallel] shard = node needs the same number of ranks on every node, numbered node by node; "
             "launch them that way, or give a number");
      return -1;
    }
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), number);
    if (error == std::errc() && end == wanted.data() + wanted.size() && number >= 0) return number;
    report({"parallel.shard"}, "[parallel] shard = {} must be a number of ranks, node, or 0 for all", wanted);
    return -1;
  }

  void check_shard() {
    if (!known({"parallel.data", "parallel.tensor", "parallel.exchange", "parallel.shard"})) return;
    const std::int64_t data = integer("parallel.data");
    const std::int64_t shard = wanted_shard();
    const std::int64_t least = std::min<std::int64_t>(data, 2);
    const ExchangeKind& exchange = find_kind(exchanges(), values_.text("parallel.exchange"));
    if (shard < 0) return;
    if (!exchange.shards && shard > 1) {
      report({"parallel.shard", "parallel.exchange"},
             "[parallel] shard = {} needs an exchange that shards, not {}; use zero1, zero2 or zero3",
             values_.text("parallel.shard"), exchange.name);
    } else if (exchange.shards && shard > 0 && (data % shard != 0 || shard < least)) {
      report(
          {"parallel.shard"},
          "[parallel] shard = {} does not divide data = {} into groups of two or more; use {}, or 0 for all",
          shard, data, divisors_near(data, shard, least));
    } else if (exchange.shards) {
      values_.set("parallel.shard", fmt::format("{}", shard == 0 ? data : shard));
    }
    if (known({"backend.autotune", "parallel.tensor", "parallel.vocab"}) &&
        values_.boolean("backend.autotune") && values_.integer("parallel.tensor") > 1 &&
        !values_.boolean("parallel.vocab")) {
      report({"backend.autotune", "parallel.vocab"},
             "[backend] autotune = true cannot be used with [parallel] tensor = {} unless vocab = true: "
             "every rank "
             "computes the head by itself, and their copies of its weights would differ",
             values_.integer("parallel.tensor"));
    }
  }

  void check_expert_layout() {
    if (!known({"parallel.expert", "model.experts"})) return;
    const std::int64_t experts = integer("model.experts");
    if (experts > 0 && known({"model.expert_width", "parallel.tensor"}) &&
        integer("model.expert_width") % integer("parallel.tensor") != 0) {
      report({"model.expert_width", "parallel.tensor"},
             "[model] expert_width = {} must be a multiple of [parallel] tensor = {}",
             integer("model.expert_width"), integer("parallel.tensor"));
    }
    const std::int64_t ranks = integer("parallel.expert");
    if (ranks == 1 || !known({"parallel.data"})) return;
    if (has_replicas_) {
      report(
          {"parallel.expert", "parallel.replicas"},
          "[parallel] expert = {} needs as many ranks in each stage, not replicas = {}; use data for equal "
          "ones, or expert = 1",
          ranks, values_.text("parallel.replicas"));
      return;
    }
    const std::int64_t data = integer("parallel.data");
    if (experts == 0) {
      report({"parallel.expert", "model.experts"}, "[parallel] expert = {} needs [model] experts", ranks);
    } else if (experts % ranks != 0 || data % ranks != 0) {
      report({"parallel.expert", "model.experts"},
             "[parallel] expert = {} must divide [model] experts = {} and data = {}; use {}", ranks, experts,
             data, divisors_near(std::gcd(experts, data), ranks));
    } else if (known({"parallel.shard", "parallel.exchange"}) &&
               find_kind(exchanges(), values_.text("parallel.exchange")).shards &&
               std::stoll(values_.text("parallel.shard")) % ranks != 0) {
      report({"parallel.expert", "parallel.shard"},
             "[parallel] shard = {} must be a multiple of expert = {}; use shard = {}, or 0 for all",
             values_.text("parallel.shard"), ranks, ranks);
    }
  }

  void check_batch() {
    if (!known({"train.global_batch", "train.micro_batch", "parallel.data"})) return;
    const std::int64_t global = integer("train.global_batch");
    const std::int64_t data = integer("parallel.data");
    if (global % data != 0) {
      report({"train.global_batch", "parallel.data"},
             "[train] global_batch = {} must be a multiple of [parallel] data = {}; use global_batch = {}, "
             "or data = {}",
             global, data, multiples_near(data, global), divisors_near(global, data));
      return;
    }
    std::int64_t shares = data;
    if (has_replicas_) {
      for (const int own : replicas()) shares = std::lcm(shares, std::int64_t{own});
      if (global % shares != 0) shares = 1;  // reported below
    }
    if (integer("train.micro_batch") == 0) values_.set("train.micro_batch", global / shares);
    const std::int64_t micro = integer("train.micro_batch");
    if (global % (micro * data) == 0) return;
    report({"train.global_batch", "train.micro_batch"},
           "[train] global_batch = {} must be a multiple of micro_batch = {} times [parallel] data = {}; use "
           "global_batch = {}, or micro_batch = {}",
           global, micro, data, multiples_near(micro * data, global), divisors_near(global / data, micro));
  }

  /// Programs give each tensor and each unit's weights 2^48 bytes of addresses (Place).
  void check_sizes() {
    constexpr std::int64_t most = std::int64_t{1} << 46;  // in fp32
    if (!known({"model.width"})) return;
    const std::int64_t width = integer("model.width");
    if (known({"model.experts", "model.expert_width"}) &&
        2 * integer("model.experts") >
            most / width / std::max<std::int64_t>(1, integer("model.expert_width"))) {
      report(
          {"model.experts", "model.expert_width", "model.width"},
          "[model] experts = {} of width = {} and expert_width = {} are too large: a block would have more "
          "than {} weights",
          integer("model.experts"), width, integer("model.expert_width"), most);
    }
    if (!known({"train.micro_batch", "train.seq_len", "model.feed_forward", "model.expert_width"})) return;
    const std::int64_t inner = std::max(integer("model.feed_forward"), integer("model.expert_width"));
    const std::int64_t rows = most / std::max(width, (inner + 3) / 4);
    const std::int64_t seq_len = integer("train.seq_len");
    if (integer("train.micro_batch") * seq_len <= rows) return;
    report({"train.micro_batch", "train.seq_len", "model.width"},
           "[train] micro_batch = {} with seq_len = {} is too large for layers of width {} and {}; use "
           "micro_batch = {} or less",
           integer("train.micro_batch"), seq_len, width, inner, rows / seq_len);
  }

  void check_splits() {
    if (!known({"parallel.sequence", "parallel.tensor", "train.micro_batch", "train.seq_len"})) return;
    if (integer("parallel.tensor") == 1) {
      for (const char* split : {"parallel.vocab", "parallel.sequence"}) {
        if (known({split}) && values_.boolean(split))
          report(
              {split, "parallel.tensor"},
              "[parallel] {} = true needs more than one tensor rank; use tensor = 2 or more, or {} = false",
              std::string_view(split).substr(9), std::string_view(split).substr(9));
      }
      return;
    }
    if (!values_.boolean("parallel.sequence")) return;
    const std::int64_t micro = integer("train.micro_batch");
    const std::int64_t seq_len = integer("train.seq_len");
    const std::int64_t tensor = integer("parallel.tensor");
    if (micro * seq_len % tensor == 0) return;
    report(
        {"parallel.sequence", "parallel.tensor"},
        "[parallel] sequence = true divides the {} rows of a micro-batch, {} x {} tokens, among tensor = {} "
        "ranks; use micro_batch = {}, or sequence = false",
        micro * seq_len, micro, seq_len, tensor, multiples_near(tensor / std::gcd(seq_len, tensor), micro));
  }

  void choose_grad_dtype() {
    if (!known({"train.grad_dtype", "train.dtype"})) return;
    const std::string dtype = values_.text("train.dtype");
    const std::string grad_dtype = values_.text("train.grad_dtype");
    if (grad_dtype != "auto" && grad_dtype != "fp32" && grad_dtype != dtype) {
      report({"train.grad_dtype", "train.dtype"},
             "[train] grad_dtype = {} must be fp32 or that of dtype = {}; use auto or fp32", grad_dtype,
             dtype);
    } else if (grad_dtype == "auto" && known({"train.global_batch", "train.micro_batch", "parallel.data"})) {
      const bool accumulates =
          integer("train.global_batch") > integer("train.micro_batch") * integer("parallel.data");
      values_.set("train.grad_dtype", accumulates ? "fp32" : dtype);
    }
  }

  void choose_loss_scale() {
    if (!known({"train.dtype", "train.loss_scale"})) return;
    if (values_.real("train.loss_scale") > 0.0) return;
    values_.set("train.loss_scale", values_.text("train.dtype") == "fp16" ? 65536.0 : 1.0);
  }

  void check_master() {
    if (!known({"optim.master", "train.dtype"})) return;
    if (values_.text("optim.master") != "none" || values_.text("train.dtype") != "fp32") return;
    report({"optim.master", "train.dtype"},
           "[optim] master = none needs [train] dtype = bf16 or fp16: weights in fp32 are their own master");
  }

  void check_learning_rate() {
    if (known({"optim.min_lr", "optim.lr"}) && values_.real("optim.min_lr") > values_.real("optim.lr")) {
      report({"optim.min_lr", "optim.lr"}, "[optim] min_lr = {} must be at most lr = {}",
             values_.real("optim.min_lr"), values_.real("optim.lr"));
    }
    if (known({"optim.muon_lr", "optim.lr"}) && values_.real("optim.muon_lr") > 0.0 &&
        values_.real("optim.lr") == 0.0)
      report({"optim.muon_lr", "optim.lr"},
             "[optim] muon_lr = {} follows the schedule of lr, which must not be 0",
             values_.real("optim.muon_lr"));
    if (!known({"optim.decay_steps", "optim.schedule"})) return;
    const std::int64_t decay_steps = integer("optim.decay_steps");
    const std::string& schedule = values_.text("optim.schedule");
    if (schedule != "wsd") {
      if (decay_steps == 0) return;
      report({"optim.decay_steps", "optim.schedule"}, "[optim] decay_steps = {} needs schedule = wsd, not {}",
             decay_steps, schedule);
    } else if (known({"optim.warmup", "train.steps"})) {
      const std::int64_t most = integer("train.steps") - integer("optim.warmup");
      if (decay_steps >= 1 && decay_steps <= most) return;
      report({"optim.decay_steps", "optim.schedule"},
             "[optim] decay_steps = {} must be from 1 to {} with schedule = wsd: [train] steps = {} less "
             "warmup = {}",
             decay_steps, most, integer("train.steps"), integer("optim.warmup"));
    }
  }

  void check_comm() {
    if (!known({"comm.algorithm"})) return;
    const std::string& algorithm = values_.text("comm.algorithm");
    try {
      const bool uses_native =
          algorithm != "auto" && AlgorithmChoice::parse(algorithm).uses(Algorithm::native);
      if (uses_native && known({"comm.simulate_gbps"}) && values_.real("comm.simulate_gbps") > 0.0) {
        report({"comm.simulate_gbps", "comm.algorithm"},
               "[comm] simulate_gbps delays messages, but algorithm = native sends no messages to delay; "
               "use auto, naive, tree, ring or halving_doubling");
      }
    } catch (const Error& error) {
      report({"comm.algorithm"}, "{}", error.what());
    }
  }

  void check_sources(std::string_view key, std::string_view label,
                     std::vector<DataSource> (*parse)(std::string_view)) {
    if (!known({key}) || values_.text(key).empty()) return;
    try {
      parse(values_.text(key));
    } catch (const Error& error) {
      report({key}, "{} = {}", label, error.what());
    }
  }

  void check_data() {
    for (const auto& [key, label] :
         {std::pair{"data.train", "[data] train"}, std::pair{"run.dir", "[run] dir"}}) {
      if (known({key}) && values_.text(key).empty()) report({key}, "{} is empty", label);
    }
    for (const auto& [key, label] :
         {std::pair{"run.dir", "[run] dir"}, std::pair{"data.ranks", "[data] ranks"},
          std::pair{"checkpoint.dir", "[checkpoint] dir"}, std::pair{"model.init", "[model] init"},
          std::pair{"eval.choices", "[eval] choices"}}) {
      try {
        if (known({key})) expand_path(values_.text(key));
      } catch (const Error& error) {
        report({key}, "{} = {}", label, error.what());
      }
    }
    check_sources("data.train", "[data] train", parse_sources);
    check_sources("data.valid", "[data] valid", parse_validation_sources);
    if (!known({"data.valid", "eval.every", "eval.choices"})) return;
    const bool evaluates = !values_.text("data.valid").empty() || !values_.text("eval.choices").empty();
    if (integer("eval.every") > 0 && !evaluates) {
      report({"eval.every"}, "[eval] every = {} needs [data] valid or [eval] choices", integer("eval.every"));
    }
  }

  const Deck& deck_;
  JobSize job_;
  DeckErrors& errors_;
  ParamValues& values_;
  const std::optional<ModelConfig>& initial_;
  const ParamValues given_;    // of the deck
  bool is_trial_ = false;      // of other values: what to write instead does not matter
  bool has_replicas_ = false;  // of unequal numbers
  Keys failed_;
};

ExpertConfig expert_config(const ParamValues& values) {
  if (values.integer("model.experts") == 0) return {};
  return {.count = values.integer("model.experts"),
          .per_token = values.integer("model.experts_per_token"),
          .width = values.integer("model.expert_width"),
          .every = values.integer("model.expert_every"),
          .has_shared = values.boolean("model.shared_expert"),
          .router = router_named(values.text("model.router")),
          .noise = router_noise_named(values.text("model.router_noise")),
          .capacity = values.real("train.expert_capacity"),
          .by_choice = values.text("train.expert_order") == "choice",
          .balance_loss = static_cast<float>(values.real("train.balance_loss")),
          .z_loss = static_cast<float>(values.real("train.router_z_loss"))};
}

TrainConfig train_config(const ParamValues& values) {
  const std::int64_t global_batch = values.integer("train.global_batch");
  const std::int64_t micro_batch = values.integer("train.micro_batch");
  return {.global_batch = global_batch,
          .micro_batch = micro_batch,
          .accumulation = global_batch / (micro_batch * values.integer("parallel.data")),
          .seq_len = values.integer("train.seq_len"),
          .dtype = dtype_named(values.text("train.dtype")),
          .grad_dtype = dtype_named(values.text("train.grad_dtype")),
          .loss_scale = static_cast<float>(values.real("train.loss_scale")),
          .recompute = parse_choice<Recompute>(
              values.text("train.recompute"),
              {{"none", Recompute::none}, {"selective", Recompute::selective}, {"block", Recompute::block}}),
          .seed = static_cast<std::uint64_t>(values.integer("train.seed"))};
}

OptimizerConfig optimizer_config(const ParamValues& values) {
  return {.kind = &find_kind(optimizers(), values.text("optim.name")),
          .values = values,
          .weight_decay = static_cast<float>(values.real("optim.weight_decay")),
          .keeps_master = values.text("optim.master") == "fp32",
          .seed = static_cast<std::uint64_t>(values.integer("train.seed"))};
}

LrScheduleConfig lr_config(const ParamValues& values) {
  return {.decay = parse_choice<LrDecay>(values.text("optim.schedule"), {{"constant", LrDecay::constant},
                                                                         {"linear", LrDecay::linear},
                                                                         {"cosine", LrDecay::cosine},
                                                                         {"wsd", LrDecay::wsd}}),
          .peak = values.real("optim.lr"),
          .min = values.real("optim.min_lr"),
          .warmup = values.integer("optim.warmup"),
          .steps = values.integer("train.steps"),
          .decay_steps = values.integer("optim.decay_steps")};
}

ParallelLayout parallel_layout(const ParamValues& values) {
  const ExchangeKind& exchange = find_kind(exchanges(), values.text("parallel.exchange"));
  std::vector<int> cuts;
  const std::string& stages = values.text("parallel.stages");
  if (stages != "auto" && !stages.starts_with(profile_prefix)) cuts = places_of(parse_blocks(stages));
  std::vector<int> replicas;
  if (const std::string& text = values.text("parallel.replicas"); !text.empty()) {
    for (const std::int64_t number : parse_blocks(text)) replicas.push_back(static_cast<int>(number));
  }
  const std::string file = expand_path(values.text("parallel.schedule_file"));
  ParallelLayout layout{
      .splits = {.vocab = values.boolean("parallel.vocab"), .sequence = values.boolean("parallel.sequence")},
      .replicas = replicas,
      .chunks = values.integer("parallel.chunks"),
      .emulated_stages = values.integer("parallel.emulated_stages"),
      .cuts = cuts,
      .in_flight = values.integer("parallel.in_flight"),
      .schedule_file = file.empty() ? "" : read_text_file(file),
      .shard = exchange.shards ? std::stoll(values.text("parallel.shard")) : 1,
      .exchange = &exchange,
      .schedule = &find_kind(schedules(), values.text("parallel.schedule")),
      .values = values};
  for (const AxisKind* kind : axis_kinds()) {
    if (kind->member != nullptr) layout.*kind->member = values.integer(key_of(kind->key));
  }
  return layout;
}

GuardConfig guard_config(const ParamValues& values) {
  const bool is_fp16 = values.text("train.dtype") == "fp16";
  return {.clip_norm = static_cast<float>(values.real("optim.clip_norm")),
          .spike_factor = static_cast<float>(values.real("guard.spike_factor")),
          .spike_window = static_cast<std::int32_t>(values.integer("guard.spike_window")),
          .scale_window = static_cast<std::int32_t>(is_fp16 ? values.integer("train.loss_scale_window") : 0)};
}

GuardSettings guard_settings(const ParamValues& values) {
  return {.policy = parse_choice<GuardPolicy>(values.text("guard.policy"),
                                              {{"skip", GuardPolicy::skip}, {"stop", GuardPolicy::stop}}),
          .max_skips = values.integer("guard.max_skips"),
          .replica_check_every = values.integer("guard.replica_check_every")};
}

std::chrono::milliseconds duration_of(const ParamValues& values, const char* key) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(values.real(key)));
}

CommConfig comm_config(const ParamValues& values) {
  CommConfig comm{.algorithm = values.text("comm.algorithm"),
                  .progress_thread = values.boolean("comm.progress_thread"),
                  .simulated_link = {},
                  .limits = {.silence = duration_of(values, "comm.heartbeat"),
                             .operation_timeout = duration_of(values, "comm.timeout"),
                             .io_timeout = duration_of(values, "io.timeout")}};
  if (const double gbps = values.real("comm.simulate_gbps"); gbps > 0.0)
    comm.simulated_link = LinkModel{1e-6 * values.real("comm.simulate_alpha"), gbps};
  return comm;
}

/// The costs of the model's units: those of the profile or else of the machine file, if there is one. Throws
/// ExitCode::usage for a profile that cannot be used.
std::vector<UnitCost> known_costs(const RunConfig& config) {
  if (config.unit_profile.empty() && config.machine_file != nullptr) {
    MachineTimes times(*config.machine_file);
    return unit_costs(config, times);
  }
  std::vector<UnitCost> units = unit_costs(config);
  if (config.unit_profile.empty()) return units;
  try {
    std::vector<UnitCost> profile = parse_unit_profile(read_text_file(config.unit_profile));
    check_profile(profile, units);
    return profile;
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", config.unit_profile, error.what());
  }
}

/// Cuts the model into chunks, unless the deck says where, and sets what their passes cost. Throws like
/// `known_costs`.
void cut_model(RunConfig& config, const JobSize& job) {
  ParallelLayout& layout = config.parallel;
  ScheduleScope scope = layout.scope(config.train.accumulation);
  layout.placement = layout.stages_of_chunks();
  if (scope.num_chunks() == 1 && config.unit_profile.empty()) return;
  if (layout.emulated_stages > 1) {  // the cut is that of the stages
    scope.stages = scope.chunks;
    scope.chunks = 1;
  }
  if (layout.replicas.empty()) scope.replicas.clear();  // equal replicas divide the work of all stages alike
  std::vector<UnitCost> units = known_costs(config);
  if (config.has_seconds()) config.time_unit = TimeUnit::seconds;
  if (layout.is_asynchronous() && !config.partition) config.partition = partition_problem(config, units, job);
  if (config.model.tied && layout.placement.front() != layout.placement.back())
    units.back().parameters += parameters_of(config.model).find("wte.weight").padded_size();
  if (layout.cuts.empty()) layout.cuts = choose_cuts(units, *layout.schedule, scope);
  layout.times = pass_times(units, config.cuts());
}

/// The file that parallel.stages names, or "".
std::string profile_of(const ParamValues& values) {
  const std::string& stages = values.text("parallel.stages");
  return stages.starts_with(profile_prefix) ? expand_path(stages.substr(profile_prefix.size())) : "";
}

/// The machine of [machine] file, with what the deck says itself; null without one. Throws ExitCode::usage
/// for a file that cannot be used.
std::shared_ptr<const Machine> machine_of(const ParamValues& values) {
  const std::string& file = values.text("machine.file");
  if (file.empty()) return nullptr;
  auto machine = std::make_shared<Machine>(read_machine(file));
  const auto dtype = static_cast<std::size_t>(dtype_named(values.text("train.dtype")));
  const auto take = [&](const char* key, double unit, double& number) {
    if (const double own = values.real(key); own > 0.0) number = unit * own;
  };
  constexpr double bytes_per_gigabit = 1e9 / 8.0;
  take("machine.peak_tflops", 1e12, machine->peak[dtype]);
  take("machine.memory_gb", 1e9, machine->memory);
  take("machine.node_gbps", bytes_per_gigabit, machine->node_bandwidth);
  take("machine.link_gbps", bytes_per_gigabit, machine->network_bandwidth);
  return machine;
}

/// What the values say, without what follows from the costs of the model's units.
RunConfig config_of(const ParamValues& values, const JobSize& job) {
  RunConfig config;
  config.model = model_config(values);
  config.train = train_config(values);
  config.parallel = parallel_layout(values);
  config.optimizer = optimizer_config(values);
  config.lr = lr_config(values);
  config.guard = guard_config(values);
  config.graphs.reset();
  if (values.text("backend.graphs") != "auto") config.graphs = values.text("backend.graphs") == "true";
  config.limits = {.steps = values.integer("train.steps"),
                   .stop_step = values.integer("train.stop_step"),
                   .wall_clock = values.real("train.wall_clock"),
                   .end_time = parse_end_time(values.text("train.end_time")),
                   .end_margin = values.real("train.end_margin")};
  const std::string valid = values.text("data.valid");
  config.data = {.train = parse_sources(values.text("data.train")),
                 .valid = valid.empty() ? std::vector<DataSource>() : parse_validation_sources(valid),
                 .tokenizer = values.text("data.tokenizer"),
                 .ranks = expand_path(values.text("data.ranks"))};
  config.eval = {.every = values.integer("eval.every"),
                 .batches = values.integer("eval.batches"),
                 .choices = expand_path(values.text("eval.choices")),
                 .choices_style = parse_choice<ChoiceStyle>(
                     values.text("eval.choices_style"),
                     {{"llmc", ChoiceStyle::llmc}, {"harness", ChoiceStyle::harness}})};
  if (const std::int64_t limit = values.integer("eval.choices_limit"); limit > 0)
    config.eval.choices_limit = limit;
  config.guard_settings = guard_settings(values);
  config.checkpoint = {
      .every = values.integer("checkpoint.every"),
      .async = values.boolean("checkpoint.async"),
      .directory = expand_path(values.text("checkpoint.dir")),
      .settings = {.retention = {.keep = values.integer("checkpoint.keep"),
                                 .keep_every = values.integer("checkpoint.keep_every"),
                                 .keep_abandoned = values.integer("checkpoint.keep_abandoned")},
                   .alignment = values.integer("checkpoint.alignment")}};
  config.backend = {.compute = values.text("backend.compute"),
                    .comm = values.text("backend.comm"),
                    .threads = values.integer("backend.threads")};
  config.comm = comm_config(values);
  config.has_tensorboard = values.boolean("metrics.tensorboard");
  config.profile_step = values.integer("profile.step");
  config.peak_tflops = values.real("machine.peak_tflops");
  const double simulated = values.real("comm.simulate_gbps");
  const auto rate = [&](const char* key) { return values.real(key) > 0.0 ? values.real(key) : simulated; };
  config.machine = {.memory_gb = values.real("machine.memory_gb"),
                    .node_gbps = rate("machine.node_gbps"),
                    .link_gbps = rate("machine.link_gbps")};
  config.init = expand_path(values.text("model.init"));
  config.run_dir = expand_path(values.text("run.dir"));
  std::error_code unknown;
  config.folder = std::filesystem::current_path(unknown).string();
  config.ranks_per_node = job.ranks_per_node;
  return config;
}

/// Calls `work`, whose errors are those of the profile that parallel.stages names.
void at_stages(const Deck& deck, const ParamValues& values, DeckErrors& errors,
               const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    errors.add(deck.place_of("parallel.stages"),
               fmt::format("[parallel] stages = {}: {}", values.text("parallel.stages"), error.what()));
  }
}

/// Sets what parallel.replicas = auto and parallel.pipeline = 0 leave to the partitioner.
class StageChoice {
 public:
  StageChoice(const Deck& deck, const JobSize& job, DeckErrors& errors, ParamValues& values,
              const std::optional<ModelConfig>& initial)
      : deck_(deck), job_(job), errors_(errors), values_(values), initial_(initial) {}

  /// Whether the deck leaves anything to the partitioner.
  bool is_wanted() const { return has_open_replicas() || has_open_stages(); }

  /// Chooses, or reports why that is not possible. `profile` is the file that parallel.stages names, or "".
  std::optional<PartitionProblem> make(const std::string& profile,
                                       const std::shared_ptr<const Machine>& machine) {
    check_keys();
    if (!errors_.empty()) return std::nullopt;
    for (const auto& [key, measured] :
         {std::pair("machine.node_gbps", job_.node_gbps), std::pair("machine.link_gbps", job_.link_gbps)}) {
      if (measured > 0.0) values_.set(key, measured);
    }
    // Everything but the layout is checked on the ranks of one replica, which emulates two stages.
    ParamValues alone = values_;
    alone.set("parallel.pipeline", std::int64_t{1});
    alone.set("parallel.emulated_stages", std::int64_t{2});
    alone.set("parallel.data", std::int64_t{1});
    alone.set("parallel.replicas", "");
    alone.set("parallel.stages", "auto");
    const std::int64_t ranks = ranks_of_axes(values_, replica_axes);
    CrossChecks(deck_, {.ranks = ranks, .ranks_per_node = ranks}, errors_, alone, initial_).run();
    if (!errors_.empty()) return std::nullopt;
    RunConfig config = config_of(alone, job_);
    config.unit_profile = profile;
    config.machine_file = machine;
    std::vector<UnitCost> units;
    at_stages(deck_, values_, errors_, [&] { units = known_costs(config); });
    if (!errors_.empty()) return std::nullopt;
    const PartitionProblem problem = partition_problem(config, std::move(units), job_);
    choose(problem, config);
    return problem;
  }

 private:
  bool has(const char* key) const { return values_.all().contains(key); }
  std::int64_t integer(std::string_view key) const { return values_.integer(key); }
  bool has_open_replicas() const {
    return has("parallel.replicas") && values_.text("parallel.replicas") == "auto";
  }
  bool has_open_stages() const { return has("parallel.pipeline") && integer("parallel.pipeline") == 0; }

  /// Whether the deck says where to cut.
  bool is_cut() const {
    const std::string& stages = values_.text("parallel.stages");
    return stages != "auto" && !stages.starts_with(profile_prefix);
  }

  template <class... Args>
  void report(std::string_view key, fmt::format_string<Args...> format, Args&&... args) {
    errors_.add(deck_.place_of(key), fmt::format(format, std::forward<Args>(args)...));
  }

  void check_keys() {
    if (!errors_.empty()) return;
    if (!has_open_replicas()) {
      report(
          "parallel.pipeline",
          "[parallel] pipeline = 0 chooses the number of stages together with their replicas; use replicas "
          "= auto, or pipeline = 1 or more");
      return;
    }
    const std::string& schedule = values_.text("parallel.schedule");
    if (schedule == "auto" || !find_kind(schedules(), schedule).is_asynchronous()) {
      report("parallel.replicas",
             "[parallel] replicas = auto needs schedule = pipedream or pipedream_2bw, not {}; use data for "
             "equal numbers of ranks per stage",
             schedule);
    }
    if (integer("parallel.data") > 1) {
      report("parallel.data",
             "[parallel] replicas = auto chooses how many ranks each stage has, and so would data = {}; use "
             "data = 0",
             integer("parallel.data"));
    }
    if (integer("parallel.emulated_stages") > 1) {
      report("parallel.emulated_stages",
             "[parallel] emulated_stages = {} cannot be used with replicas = auto: ranks that emulate stages "
             "have no replicas; use emulated_stages = 1",
             integer("parallel.emulated_stages"));
    }
    if (integer("train.micro_batch") == 0) {
      report("parallel.replicas",
             "[parallel] replicas = auto needs [train] micro_batch, from which the costs of stages follow");
    }
    std::int64_t rest = job_.ranks;
    for (const AxisKind* kind : rank_factors(replica_axes)) {
      const std::string key = key_of(kind->key);
      const std::int64_t extent = integer(key);
      if (rest % extent != 0) {
        report(key, "[parallel] {} = {} must divide this run's {} ranks; use {}", kind->key.name, extent,
               job_.ranks, divisors_near(rest, extent));
        return;
      }
      rest /= extent;
    }
  }

  /// The units, or if the deck says where to cut, its stages as units; nothing after reporting a problem.
  std::optional<PartitionProblem> problem_of_deck(const PartitionProblem& problem, std::int64_t layers) {
    if (!is_cut()) return problem;
    const std::string& stages = values_.text("parallel.stages");
    std::vector<std::int64_t> blocks;
    try {
      blocks = parse_blocks(stages);
    } catch (const Error&) {
    }
    const bool is_wrong_number = !has_open_stages() && std::ssize(blocks) != integer("parallel.pipeline");
    if (blocks.size() < 2 || has_empty_chunk(blocks) || is_wrong_number ||
        std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}) != layers) {
      report("parallel.stages",
             "[parallel] stages = {} must be auto, profile:PATH or the blocks of each stage, {} in all, such "
             "as {}",
             stages, layers,
             join(even_blocks(layers, has_open_stages() ? 2 : integer("parallel.pipeline")), ","));
      return std::nullopt;
    }
    PartitionProblem merged = problem;
    merged.units =
        chunk_costs(problem.units, {.chunks = static_cast<int>(blocks.size()), .places = places_of(blocks)});
    return merged;
  }

  void choose(const PartitionProblem& problem, const RunConfig& config) {
    const std::int64_t layers = config.model.layers;
    const std::optional<PartitionProblem> own = problem_of_deck(problem, layers);
    if (!own) return;
    const auto units = static_cast<int>(own->units.size());
    const int wanted = is_cut() ? units : static_cast<int>(integer("parallel.pipeline"));
    if (wanted > std::min(own->replicas, units)) {
      report("parallel.pipeline",
             "[parallel] pipeline = {} needs a rank and a unit of the model for each stage, but there are {} "
             "groups of {} ranks and {} units; use pipeline = {}, or 0",
             wanted, own->replicas, extents_text(values_, replica_axes), units,
             std::min(own->replicas, units));
      return;
    }
    const std::vector<std::optional<Partition>> plans = best_partitions(*own, wanted == 0 ? units : wanted);
    const Partition* best = nullptr;
    for (const std::optional<Partition>& plan : plans) {
      if (!plan || (wanted > 0 && plan->stages() != wanted)) continue;
      if (best == nullptr || plan->time < best->time * (1.0 - same_time)) best = &*plan;
    }
    if (best == nullptr) {
      report_none(*own, wanted);
      return;
    }
    take(*best, layers);
  }

  void report_none(PartitionProblem problem, int wanted) {
    const double limit = problem.memory_bytes;
    problem.memory_bytes = 0.0;
    const auto plans = best_partitions(problem, wanted == 0 ? problem.replicas : wanted);
    double least = std::numeric_limits<double>::infinity();
    for (const std::optional<Partition>& plan : plans) {
      if (plan && (wanted == 0 || plan->stages() == wanted)) least = std::min(least, plan->memory);
    }
    if (std::isfinite(least)) {
      report("parallel.replicas",
             "[parallel] replicas = auto finds no division within [machine] memory_gb = {:.6g}; without the "
             "limit, the fastest ones need {:.4g} or more",
             1e-9 * limit, 1e-9 * least);
      return;
    }
    report(
        "parallel.replicas",
        "[parallel] replicas = auto finds no division{}: {} groups of ranks cannot be divided into numbers "
        "that divide the {} micro-batches of a step{}; use another global_batch or micro_batch",
        wanted == 0 ? std::string() : fmt::format(" into {} stages", wanted), problem.replicas,
        problem.micro_batches,
        problem.versions == VersionsKept::double_buffered
            ? ", with no more micro-batches in flight than a step has"
            : "");
  }

  void take(const Partition& best, std::int64_t layers) {
    values_.set("parallel.pipeline", std::int64_t{best.stages()});
    if (best.stages() > 1) {
      values_.set("parallel.replicas", join(best.replicas, ","));
      if (!is_cut()) values_.set("parallel.stages", blocks_text(best, layers));
      return;
    }
    // Plain data parallelism. The stage is the model.
    values_.set("parallel.replicas", "");
    values_.set("parallel.data", std::int64_t{best.replicas.front()});
    values_.set("parallel.stages", "auto");
    values_.set("parallel.schedule", "accumulate");
    values_.set("parallel.vertical_sync", false);
    values_.set("optim.clip_scope", "model");
  }

  /// Times that differ by less than this part are equal: fewer stages are then better.
  static constexpr double same_time = 1e-9;

  const Deck& deck_;
  const JobSize& job_;
  DeckErrors& errors_;
  ParamValues& values_;
  const std::optional<ModelConfig>& initial_;
};

}  // namespace

ModelConfig model_config(const ParamValues& values) {
  return {.layers = values.integer("model.layers"),
          .heads = values.integer("model.heads"),
          .width = values.integer("model.width"),
          .feed_forward = values.integer("model.feed_forward"),
          .context = values.integer("model.context"),
          .vocab = values.integer("model.vocab"),
          .vocab_multiple = values.integer("model.vocab_multiple"),
          .tied = values.boolean("model.tied"),
          .dropout = static_cast<float>(values.real("model.dropout")),
          .experts = expert_config(values),
          .depths = {.capacity = values.real("model.depth_capacity"),
                     .every = values.integer("model.depth_every")}};
}

RunConfig make_run_config(const Deck& deck, std::span<const ParamSpec> specs, const JobSize& job,
                          DeckErrors& errors, ParamValues& values,
                          const std::vector<std::pair<std::string, std::string>>& unavailable,
                          const std::optional<ModelConfig>& initial) {
  values = resolve_deck(deck, specs, unavailable, errors);
  const std::string profile = values.all().contains("parallel.stages") ? profile_of(values) : "";
  std::shared_ptr<const Machine> machine;
  if (values.all().contains("machine.file") && values.all().contains("train.dtype")) {
    try {
      machine = machine_of(values);
    } catch (const Error& error) {
      for (const std::string_view problem : lines_of(error.what()))
        errors.add(deck.place_of("machine.file"), fmt::format("[machine] file: {}", problem));
    }
  }
  std::optional<PartitionProblem> partition;
  StageChoice choice(deck, job, errors, values, initial);
  if (choice.is_wanted()) {
    partition = choice.make(profile, machine);
    if (!errors.empty()) return {};
  }
  CrossChecks(deck, job, errors, values, initial).run();
  if (!errors.empty()) return {};
  RunConfig config = config_of(values, job);
  config.unit_profile = profile;
  config.machine_file = machine;
  config.partition = partition;
  at_stages(deck, values, errors, [&] { cut_model(config, job); });
  return config;
}

std::vector<std::string> idle_settings(const RunConfig& config) {
  std::vector<std::string> idle;
  const std::int64_t steps = config.limits.steps;
  const auto check = [&](const char* setting, std::int64_t value, const char* instead) {
    if (value > steps)
      idle.push_back(
          fmt::format("{} = {} is more than [train] steps = {}: {}", setting, value, steps, instead));
  };
  check("[checkpoint] every", config.checkpoint.every, "the only checkpoint is that of the end");
  check("[eval] every", config.eval.every, "the only evaluation is that of the end");
  check("[checkpoint] keep_every", config.checkpoint.settings.retention.keep_every, "it keeps no checkpoint");
  check("[guard] replica_check_every", config.guard_settings.replica_check_every,
        "replicas are compared for checkpoints only");
  if (config.guard.spike_factor > 0.0F)
    check("[guard] spike_window", config.guard.spike_window, "no step will count as a spike");
  const std::int64_t stop = config.limits.stop_step;
  if (stop > 0 && config.profile_step > stop)
    idle.push_back(
        fmt::format("[profile] step = {} is after [train] stop_step = {}: it is traced only after a restart",
                    config.profile_step, stop));
  if (config.eval.batches > 0 && config.data.valid.empty())
    idle.push_back(
        fmt::format("[eval] batches = {} without [data] valid: nothing is evaluated", config.eval.batches));
  if (config.eval.choices_limit && config.eval.choices.empty())
    idle.push_back(fmt::format("[eval] choices_limit = {} without choices: nothing is answered",
                               *config.eval.choices_limit));
  if (config.parallel.pipeline > 1 && std::string_view(config.parallel.schedule->name) == "accumulate")
    idle.push_back(fmt::format(
        "[parallel] schedule = accumulate with pipeline = {}: one stage computes at a time, and the "
        "others wait; 1f1b lets them work together",
        config.parallel.pipeline));
  if (config.lr.decay == LrDecay::constant && config.lr.min > 0.0)
    idle.push_back(
        fmt::format("[optim] min_lr = {} with schedule = constant: it is not used", config.lr.min));
  const ParallelLayout& layout = config.parallel;
  if (layout.in_flight > 0 && !layout.schedule->follows_times)
    idle.push_back(fmt::format("[parallel] in_flight = {} with schedule = {}: it is not used",
                               layout.in_flight, layout.schedule->name));
  return idle;
}

void check_token_files(const Deck& deck, const RunConfig& config, DeckErrors& errors) {
  const auto check = [&](const char* name, const DataFile& file) {
    std::error_code status;
    if (std::filesystem::is_regular_file(file.path, status) && std::ifstream(file.path)) return;
    errors.add(deck.place_of(std::string("data.") + name),
               fmt::format("[data] {} = {} is not a file that can be read: there is {}", name,
                           file.path.string(), what_is_at(file.path)));
  };
  const std::pair<const char*, const std::vector<DataSource>&> all[] = {{"train", config.data.train},
                                                                        {"valid", config.data.valid}};
  for (const auto& [name, sources] : all) {
    for (const DataSource& source : sources) {
      try {
        for (const DataFile& file : files_of(source)) check(name, file);
      } catch (const Error& error) {
        if (error.code() != ExitCode::usage) throw;
        errors.add(deck.place_of(std::string("data.") + name),
                   fmt::format("[data] {} = {}", name, error.what()));
      }
    }
  }
}

}  // namespace mylos
