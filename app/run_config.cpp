// SPDX-License-Identifier: BSD-3-Clause
#include "app/run_config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <numeric>
#include <set>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

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

namespace mylos {
namespace {

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

/// Lists, in ascending order, up to eight divisors of `number`: those nearest to `wanted` that are at least
/// `least`.
std::string divisors_near(std::int64_t number, std::int64_t wanted, std::int64_t least = 1) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t i = least; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
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

/// The rules that a ParamSpec cannot express; most involve several parameters. Each runs after the rules that
/// set the values it uses. A parameter with a problem, reported here or by `resolve_deck`, is not known: no
/// rule relies on it.
class CrossChecks {
 public:
  CrossChecks(const Deck& deck, const JobSize& job, DeckErrors& errors, ParamValues& values,
              const std::optional<ModelConfig>& initial)
      : deck_(deck), job_(job), errors_(errors), values_(values), initial_(initial) {}

  void run() {
    take_preset();
    take_initial_shape();
    check_heads();
    check_vocab();
    check_ranks();
    check_steps();
    check_end_time();
    check_seq_len();
    check_tensor();
    check_layout();
    check_shard();
    check_batch();
    check_splits();
    choose_grad_dtype();
    choose_loss_scale();
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

  /// Reports a problem with `keys` at the first of them that the deck sets. From then on, the first of `keys`
  /// is not known.
  template <class... Args>
  void report(std::initializer_list<std::string_view> keys, fmt::format_string<Args...> format,
              Args&&... args) {
    const auto is_set = [&](std::string_view key) { return deck_.find(key) != nullptr; };
    const auto* const key = std::find_if(keys.begin(), keys.end(), is_set);
    errors_.add(deck_.place_of(key == keys.end() ? *keys.begin() : *key),
                fmt::format(format, std::forward<Args>(args)...));
    failed_.insert(*keys.begin());
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
        failed_.insert(shape_keys[i]);
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
    if (!known({"model.tied"})) return;
    if (deck_.find("model.tied") == nullptr) values_.set("model.tied", initial_->tied);
    if (values_.boolean("model.tied") != initial_->tied)
      differs("model.tied", values_.boolean("model.tied"), initial_->tied);
  }

  void check_heads() {
    if (!known({"model.heads", "model.width"})) return;
    const std::int64_t heads = integer("model.heads");
    const std::int64_t width = integer("model.width");
    if (width % heads == 0) return;
    report({"model.heads", "model.width"}, "[model] heads = {} must divide width = {}; use {}", heads, width,
           divisors_near(width, heads));
  }

  void check_vocab() {
    if (!known({"model.vocab"})) return;
    const std::int64_t vocab = integer("model.vocab");
    if (vocab < 2) {
      report({"model.vocab"}, "[model] vocab = {} is out of range; use 2 to 65536", vocab);
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

  void check_tensor() {
    if (!known({"parallel.tensor"})) return;
    const std::int64_t tensor = integer("parallel.tensor");
    if (known({"model.heads"}) && integer("model.heads") % tensor != 0) {
      report({"parallel.tensor", "model.heads"},
             "[parallel] tensor = {} must divide [model] heads = {}; use {}", tensor, integer("model.heads"),
             divisors_near(integer("model.heads"), tensor));
    } else if (job_.ranks % tensor != 0) {
      report({"parallel.tensor"}, "[parallel] tensor = {} must divide this run's {} ranks; use {}", tensor,
             job_.ranks, divisors_near(job_.ranks, tensor));
    }
  }

  void check_layout() {
    if (!known({"parallel.tensor"})) failed_.insert("parallel.data");
    if (!known({"parallel.data"})) return;
    const std::int64_t data = integer("parallel.data");
    const std::int64_t tensor = integer("parallel.tensor");
    const std::int64_t all = job_.ranks / tensor;
    if (data == 0) values_.set("parallel.data", all);
    if (data == 0 || data == all) return;
    report({"parallel.data"},
           "[parallel] data = {} needs {} rank{}, but this run has {}; use data = {}, or 0 for all ranks",
           data, data * tensor, data * tensor == 1 ? "" : "s", job_.ranks, all);
  }

  /// Returns the extent of the shard axis that parallel.shard requests: 0 for the whole data axis, -1 after
  /// reporting a problem.
  std::int64_t wanted_shard() {
    const std::string wanted = values_.text("parallel.shard");
    if (wanted == "node") {
      const bool is_pretended = known({"comm.ranks_per_node"}) && integer("comm.ranks_per_node") > 0;
      const std::int64_t ranks = is_pretended ? integer("comm.ranks_per_node") : job_.ranks_per_node;
      const std::int64_t samples = std::min(ranks, job_.ranks) / integer("parallel.tensor");
      if (samples > 0) return samples;
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
    if (integer("train.micro_batch") == 0) values_.set("train.micro_batch", global / data);
    const std::int64_t micro = integer("train.micro_batch");
    if (global % (micro * data) == 0) return;
    report({"train.global_batch", "train.micro_batch"},
           "[train] global_batch = {} must be a multiple of micro_batch = {} times [parallel] data = {}; use "
           "global_batch = {}, or micro_batch = {}",
           global, micro, data, multiples_near(micro * data, global), divisors_near(global / data, micro));
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
  std::set<std::string_view> failed_;
};

ModelConfig model_config(const ParamValues& values) {
  return {.layers = values.integer("model.layers"),
          .heads = values.integer("model.heads"),
          .width = values.integer("model.width"),
          .context = values.integer("model.context"),
          .vocab = values.integer("model.vocab"),
          .vocab_multiple = values.integer("model.vocab_multiple"),
          .tied = values.boolean("model.tied"),
          .dropout = static_cast<float>(values.real("model.dropout"))};
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
  return {
      .tensor = values.integer("parallel.tensor"),
      .splits = {.vocab = values.boolean("parallel.vocab"), .sequence = values.boolean("parallel.sequence")},
      .data = values.integer("parallel.data"),
      .shard = exchange.shards ? std::stoll(values.text("parallel.shard")) : 1,
      .exchange = &exchange,
      .schedule = &find_kind(schedules(), values.text("parallel.schedule")),
      .values = values};
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

}  // namespace

RunConfig make_run_config(const Deck& deck, std::span<const ParamSpec> specs, const JobSize& job,
                          DeckErrors& errors, ParamValues& values,
                          const std::vector<std::pair<std::string, std::string>>& unavailable,
                          const std::optional<ModelConfig>& initial) {
  values = resolve_deck(deck, specs, unavailable, errors);
  CrossChecks(deck, job, errors, values, initial).run();
  if (!errors.empty()) return {};
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
  config.profile_step = values.integer("profile.step");
  config.peak_tflops = values.real("machine.peak_tflops");
  config.init = expand_path(values.text("model.init"));
  config.run_dir = expand_path(values.text("run.dir"));
  std::error_code unknown;
  config.folder = std::filesystem::current_path(unknown).string();
  config.ranks_per_node = job.ranks_per_node;
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
  if (config.lr.decay == LrDecay::constant && config.lr.min > 0.0)
    idle.push_back(
        fmt::format("[optim] min_lr = {} with schedule = constant: it is not used", config.lr.min));
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
