// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/opened_model.hpp"

#include <algorithm>
#include <cstdlib>

#include "app/deck/unchecked_deck.hpp"
#include "app/launch/run_directory.hpp"
#include "app/train/run_state.hpp"
#include "core/base/digest.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "core/model/parameters.hpp"
#include "io/agree.hpp"
#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

enum class Kind : std::uint8_t { checkpoint, run, file };

/// Throws ExitCode::bad_data if `path` is nothing of that, ExitCode::usage if it is to be a run but is not.
Kind kind_of(const fs::path& path, bool is_run) {
  std::error_code unknown;
  const auto exists = [&](const char* name) { return fs::exists(path / name, unknown); };
  const auto check_step = [&](const char* what) {
    if (is_run) fail(ExitCode::usage, "--step is for a run directory, but {} is {}", path.string(), what);
  };
  if (exists("manifest.json")) {
    check_step("a checkpoint");
    return Kind::checkpoint;
  }
  if (exists("checkpoints")) return Kind::run;
  const std::string present = what_is_at(path);
  if (present == "nothing") fail(ExitCode::bad_data, "{} does not exist", path.string());
  if (!is_model_file(path)) {
    fail(ExitCode::bad_data,
         "{} is no model: neither a run directory, a checkpoint, a Hugging Face folder nor an llm.c file; "
         "there "
         "is {}",
         path.string(), present);
  }
  check_step("a model");
  return Kind::file;
}

ModelOrigin origin_of(const CheckpointState& saved, const fs::path& path) {
  const RunState state =
      parse_state(saved.json, fmt::format("state.json of step {}", saved.step), saved.step);
  ModelOrigin origin{.kind = fmt::format("checkpoint of step {}", saved.step),
                     .path = path,
                     .model = state.model,
                     .deck = state.deck,
                     .deck_name = "the checkpoint's deck",
                     .folder = state.folder,
                     .step = saved.step,
                     .micro_batch = state.micro_batch,
                     .initial = state.initial,
                     .tokenizer = state.tokenizer};
  origin.model.dropout = static_cast<float>(UncheckedDeck(origin.deck).real("model.dropout"));
  return origin;
}

/// Whether a path can be expanded here.
bool can_expand(const std::string& path) {
  try {
    expand_path(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Merge ranks of GPT-2's tokenizer: the file that the command line names, otherwise the run's copy,
/// otherwise the deck's file. Throws ExitCode::usage if there is none.
fs::path find_ranks(const CommandLine& line, const ModelOrigin& origin, const std::string& tokenizer) {
  if (line.has("ranks")) return expand_path(line.text("ranks"));
  std::vector<fs::path> files = ranks_of_run(origin.path);
  if (std::string ranks = UncheckedDeck(origin.deck).text("data.ranks");
      !ranks.empty() && can_expand(ranks)) {
    ranks = expand_path(ranks);
    // A relative path of the run's deck begins in the folder where it was started.
    if (!origin.folder.empty()) files.push_back(fs::path(origin.folder) / ranks);
    files.emplace_back(ranks);
  }
  const auto file = std::ranges::find_if(files, [](const fs::path& path) {
    std::error_code unknown;
    return fs::exists(path, unknown);
  });
  if (file != files.end()) return *file;
  std::vector<std::string> names;
  for (const fs::path& path : files) names.push_back(path.string());
  fail(ExitCode::usage, "the ranks of {} were not found; looked for: {}; name them with --ranks=FILE",
       tokenizer, join(names, ", "));
}

/// Sequences whose tokens together keep a processor busy.
std::int64_t usual_micro_batch(std::int64_t context) {
  return std::clamp<std::int64_t>(4096 / context, 1, 64);
}

}  // namespace

std::string deck_of_model(const ModelConfig& model, DType dtype, std::int64_t micro_batch,
                          const std::string& tokenizer, const std::string& ranks) {
  std::string deck = fmt::format(
      "[model]\nlayers = {}\nheads = {}\nwidth = {}\nfeed_forward = {}\ncontext = {}\nvocab = {}\ntied = {}\n"
      "dropout = {}\n",
      model.layers, model.heads, model.width, model.inner_width(), model.context, model.vocab, model.tied,
      model.dropout);
  deck += fmt::format("[train]\nsteps = 1\nglobal_batch = {}\nmicro_batch = {}\ndtype = {}\n", micro_batch,
                      micro_batch, name_of(dtype));
  deck += fmt::format("[data]\ntrain = unused\ntokenizer = {}\n", tokenizer.empty() ? "none" : tokenizer);
  if (!ranks.empty()) deck += fmt::format("ranks = {}\n", ranks);
  return deck + "[run]\ndir = unused\n";
}

OpenedModel::OpenedModel(IoThread& io, const fs::path& path, bool is_run, std::optional<std::int64_t> step,
                         const Warn& warn) {
  Kind kind{};
  run_collectively(io.comm(), [&] { kind = kind_of(path, is_run); });
  std::vector<std::int64_t> first = {static_cast<std::int64_t>(kind)};
  broadcast_from_root(io.comm(), first);
  run_collectively(io.comm(), [&] {
    if (first.front() != static_cast<std::int64_t>(kind))
      fail(ExitCode::usage, "{} is something else than on rank 0: this must be the same on all ranks",
           path.string());
  });
  if (kind == Kind::file) {
    run_collectively(io.comm(), [&] { open_file(path, warn); });
  } else {
    open_checkpoint(io, path, step, kind == Kind::run, warn);
  }
}

void OpenedModel::open_checkpoint(IoThread& io, const fs::path& path, std::optional<std::int64_t> step,
                                  bool is_run, const Warn& warn) {
  if (is_run) {
    const fs::path directory = path / "checkpoints";
    checkpoint_ = open_newest(io, directory, step, warn);
    if (!checkpoint_) fail(ExitCode::bad_data, "{} holds no checkpoint", directory.string());
  } else {
    checkpoint_.emplace(io, path);
  }
  run_collectively(io.comm(), [&] { origin_ = origin_of(checkpoint_->state(), path); });
}

ModelOrigin look_at_model(const fs::path& path) {
  const Kind kind = kind_of(path, false);
  if (kind == Kind::file) {
    const ModelDescription found = open_model_file(path, [](const std::string&) {})->description();
    return {.kind = found.format, .path = path, .model = found.model};
  }
  const auto look_at_checkpoint = [](const fs::path& checkpoint) {
    const std::string text = read_text_file(checkpoint / "state.json");
    const std::int64_t step =
        at_place((checkpoint / "state.json").string(), [&] { return Json::parse(text).integer("step"); });
    return origin_of({.step = step, .json = text}, checkpoint);
  };
  if (kind == Kind::checkpoint) return look_at_checkpoint(path);
  const fs::path directory = path / "checkpoints";
  std::vector<std::int64_t> steps = list_steps(directory);
  if (steps.empty()) fail(ExitCode::bad_data, "{} holds no checkpoint", directory.string());
  // The newest that can be read; the oldest reports what is wrong.
  for (; steps.size() > 1; steps.pop_back()) {
    try {
      return look_at_checkpoint(directory / step_name(steps.back()));
    } catch (const Error&) {  // damaged
    }
  }
  return look_at_checkpoint(directory / step_name(steps.back()));
}

ModelConfig shape_at(const Deck& /*deck*/, const std::string& path) {
  return look_at_model(path).model;
}

void OpenedModel::open_file(const fs::path& path, const Warn& warn) {
  file_ = open_model_file(path, warn);
  std::error_code unknown;
  if (fs::is_directory(path, unknown)) tokenizer_ = find_tokenizer(path);
  const ModelDescription& found = file_->description();
  origin_ = {.kind = found.format,
             .path = path,
             .model = found.model,
             .deck_name = path.string(),
             .dtype = found.dtype,
             .micro_batch = usual_micro_batch(found.model.context)};
  if (tokenizer_.tokenizer != nullptr) {
    origin_.tokenizer = tokenizer_.tokenizer->identity();
    if (tokenizer_.tokenizer->vocab_size() > found.model.vocab) {
      warn(fmt::format("the tokenizer in {} has {} tokens, the model {}: the model takes and gives tokens",
                       path.string(), tokenizer_.tokenizer->vocab_size(), found.model.vocab));
      tokenizer_ = {};
      origin_.tokenizer = {};
    }
  }
  origin_.deck = deck_of_model(found.model, found.dtype, origin_.micro_batch, origin_.tokenizer.name, "");
}

CommandOption step_option() {
  return {"step", OptionKind::text,
          "with RUN: the checkpoint, N or step_N; the newest undamaged one by default"};
}

std::optional<DType> dtype_option(const CommandLine& line) {
  if (!line.has("dtype")) return std::nullopt;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    if (line.text("dtype") == name_of(dtype)) return dtype;
  }
  fail(ExitCode::usage, "--dtype={} must be fp32, bf16 or fp16", line.text("dtype"));
}

std::shared_ptr<const Tokenizer> find_model_tokenizer(const CommandLine& line, const OpenedModel& model,
                                                      std::string& reason) {
  const ModelOrigin& origin = model.origin();
  if (!model.is_checkpoint() && !line.has("ranks")) {
    const FoundTokenizer& found = model.tokenizer();
    if (found.tokenizer == nullptr) reason = found.reason.empty() ? "it has no tokenizer" : found.reason;
    return found.tokenizer;
  }
  std::string name = UncheckedDeck(origin.deck).text("data.tokenizer");
  if (name == "none") name = origin.tokenizer.name;
  if (name.empty() && line.has("ranks")) name = "gpt2";
  if (name.empty()) {
    reason = "[data] tokenizer = none";
    return nullptr;
  }
  if (!tokenizer_kind(name).has_ranks) return make_tokenizer(name);
  try {
    const std::string ranks = find_ranks(line, origin, name).string();
    std::shared_ptr<const Tokenizer> found = make_tokenizer(fmt::format("{}={}", name, ranks));
    if (found->vocab_size() > origin.model.vocab)
      fail(ExitCode::usage, "{} has {} tokens, but the model {}", ranks, found->vocab_size(),
           origin.model.vocab);
    return found;
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage || line.has("ranks")) throw;
    reason = error.what();
    return nullptr;
  }
}

void warn_of_unused_ranks(const CommandLine& line, const Tokenizer* tokenizer) {
  if (!line.has("ranks") || tokenizer == nullptr || !tokenizer->identity().ranks.empty()) return;
  say(stderr, "warning: --ranks is not used: the model's tokenizer, {}, has no ranks\n",
      tokenizer->identity().name);
}

std::vector<fs::path> ranks_of_run(const fs::path& path) {
  const fs::path place = fs::absolute(path).lexically_normal();
  return {RunPaths{place}.ranks(), RunPaths{(place / ".." / "..").lexically_normal()}.ranks()};
}

void OpenedModel::read(const TensorInfo& tensor, const std::vector<TensorPart>& parts) const {
  if (checkpoint_) return checkpoint_->read({.file = "weights.h5", .info = tensor, .parts = parts});
  file_->read(tensor, parts);
}

std::string OpenedModel::identity() const {
  constexpr std::int64_t most = 64;
  const ModelConfig& model = origin_.model;
  std::string text = fmt::format("the model = {}, layers {}, heads {}, {}, context {}, vocab {}, {}\n",
                                 origin_.kind, model.layers, model.heads, width_text(model), model.context,
                                 model.vocab, model.tied ? "tied" : "untied");
  std::vector<float> values;
  const ParameterTable table = parameters_of(model);
  for (const Parameter& parameter : table.parameters()) {
    Box box = Box::whole(parameter.shape);
    box.count.back() = std::min(box.count.back(), most);
    for (std::size_t d = 0; d + 1 < box.count.size(); ++d) box.count[d] = 1;
    const std::size_t begin = values.size();
    values.resize(begin + static_cast<std::size_t>(box.size()));
    const std::vector<std::int64_t> stride(box.count.size(), 1);
    read({.name = parameter.name, .shape = parameter.shape},
         {{.box = box, .data = values.data() + begin, .stride = stride}});
  }
  return text + fmt::format("its weights = {}\n", digest_of(std::as_bytes(std::span(values))).text());
}

}  // namespace mylos
