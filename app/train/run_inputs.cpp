// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/run_inputs.hpp"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "app/launch/link_rates.hpp"
#include "app/launch/shared_directory.hpp"
#include "app/train/continued_run.hpp"
#include "core/base/clock.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "io/file_util.hpp"
#include "io/tokens/bpe_tokenizer.hpp"

namespace mylos {

namespace {

/// The merge ranks that come with the model of [model] init, if they may be those of `identity`; otherwise
/// "".
std::string initial_ranks(const std::string& init, const TokenizerIdentity& identity) {
  std::error_code unknown;
  if (init.empty()) return "";
  for (const std::filesystem::path& file : ranks_of_run(init)) {
    if (!std::filesystem::exists(file, unknown)) continue;
    const BpeRanks ranks = read_gpt2_ranks(file);
    return may_be_same({"gpt2", ranks.digest()}, identity) ? ranks.text() : "";
  }
  if (!std::filesystem::is_directory(init, unknown)) return "";
  const FoundTokenizer found = find_tokenizer(init);
  return found.tokenizer != nullptr && may_be_same(found.tokenizer->identity(), identity) ? found.ranks : "";
}

/// The tokenizer of a run's data, of which `identity` is known. Merge ranks come from the deck's file, the
/// run's own copy, or what belongs to the model of [model] init. Throws ExitCode::usage if there is none.
std::shared_ptr<const Tokenizer> data_tokenizer(const RunConfig& config, const TokenizerIdentity& identity) {
  if (identity.name.empty())
    fail(ExitCode::usage,
         "[eval] choices are text, but the tokenizer of the data is not known: set [data] tokenizer");
  if (!tokenizer_kind(identity.name).has_ranks) return make_tokenizer(identity.name);
  std::error_code unknown;
  for (const std::filesystem::path& file :
       {std::filesystem::path(config.data.ranks), RunPaths{config.run_dir}.ranks()}) {
    if (file.empty() || !std::filesystem::exists(file, unknown)) continue;
    std::shared_ptr<const Tokenizer> found =
        make_tokenizer(fmt::format("{}={}", identity.name, file.string()));
    if (may_be_same(found->identity(), identity)) return found;
  }
  if (const std::string ranks = initial_ranks(config.init, identity); !ranks.empty())
    return std::make_shared<const BpeTokenizer>(BpeRanks::parse_tiktoken(ranks, config.init));
  fail(ExitCode::usage, "[eval] choices need the ranks of {}: set [data] ranks", identity.text());
}

/// Reads the questions of [eval] choices and plans the cache for them.
std::optional<ChoiceQuestions> take_choices(RunConfig& config, const TokenizerIdentity& identity) {
  const EvalConfig& eval = config.eval;
  if (eval.choices.empty()) return std::nullopt;
  std::error_code unknown;
  if (!std::filesystem::exists(eval.choices, unknown)) {
    fail(ExitCode::usage, "[eval] choices = {} cannot be read: there is {}", eval.choices,
         what_is_at(eval.choices));
  }
  const bool has_tokens = ChoiceFile(eval.choices, eval.choices_style).has_tokens();
  const auto tokenizer = has_tokens ? nullptr : data_tokenizer(config, identity);
  ChoiceQuestions questions = at_place("[eval] choices", [&] {
    return read_choices(eval.choices, eval.choices_style, eval.choices_limit, tokenizer.get(),
                        config.model.vocab, config.model.context);
  });
  config.cache =
      choice_cache(questions, config.train.micro_batch * config.train.seq_len, config.parallel.data);
  return questions;
}

/// Opens the token files of the deck and the questions.
void open_data(RunInputs& inputs) {
  RunConfig& config = inputs.setup.config;
  const auto begin = Clock::now();
  inputs.fault.at(Fault::data, 0);
  DeckErrors errors;
  check_token_files(inputs.setup.deck, config, errors);
  errors.throw_if_any();
  const auto open = [&](const std::vector<DataSource>& sources) {
    return open_dataset(sources, config.model.vocab, config.train.seq_len, config.train.seed,
                        config.data.tokenizer);
  };
  inputs.train_data.emplace(open(config.data.train));
  if (!config.data.valid.empty()) inputs.valid_data.emplace(open(config.data.valid));
  inputs.tokenizer = tokenizer_of(config.data, *inputs.train_data, inputs.valid_data);
  inputs.choices = take_choices(config, inputs.tokenizer);
  inputs.data_seconds = seconds_since(begin);
}

/// What must be the same on all ranks.
std::string identity_of(const RunInputs& inputs, const CommandLine& line) {
  std::string identity = identity_of(inputs.setup, line);
  identity += fmt::format("content of data.train = {}\n", inputs.train_data->identity());
  if (inputs.valid_data)
    identity += fmt::format("content of data.valid = {}\n", inputs.valid_data->identity());
  identity += fmt::format("tokenizer of the data = {}\n", inputs.tokenizer.text());
  if (inputs.choices) identity += fmt::format("content of eval.choices = {}\n", inputs.choices->digest);
  return identity;
}

}  // namespace

std::optional<std::string> parse_restart(const CommandLine& line) {
  if (!line.has("restart")) return std::nullopt;
  parse_step("restart", line.text("restart"));
  return line.text("restart");
}

void note_past_end(Setup& setup, std::vector<std::string>& notes) {
  std::optional<std::int64_t>& end = setup.config.limits.end_time;
  const std::int64_t now = std::time(nullptr);
  if (!end || *end > now) return;
  const std::string past = fmt::format("{}, which was {} s ago", *end, now - *end);
  if (setup.values.text("train.end_time") != "auto")
    fail(ExitCode::usage, "[train] end_time = {}: give a later one, auto or none", past);
  notes.push_back(fmt::format("SLURM_JOB_END_TIME={}: the run does not stop for it", past));
  end.reset();
}

std::vector<std::string> data_warnings(const TokenDataset& train, const std::optional<TokenDataset>& valid) {
  std::vector<std::string> lines = train.warnings();
  if (valid) lines.insert(lines.end(), valid->warnings().begin(), valid->warnings().end());
  const std::vector<std::string> repeated = repeated_files(&train, valid ? &*valid : nullptr);
  lines.insert(lines.end(), repeated.begin(), repeated.end());
  return lines;
}

RunInputs read_inputs(const Launch& launch, const CommandLine& line) {
  const MpiRuntime& mpi = launch.mpi();
  RunInputs inputs{.deck_name = line.argument(0, "a deck"),
                   .restart = parse_restart(line),
                   .setup = {},
                   .fault = {},
                   .train_data = {},
                   .valid_data = {},
                   .tokenizer = {},
                   .choices = {},
                   .initial = {}};
  Setup& setup = inputs.setup;
  const std::string text = launch.share([&] { return read_deck(inputs.deck_name); });
  const JobSize job = with_link_rates(mpi, line, text);
  std::vector<std::string> notes;
  launch.agree([&] {
    inputs.fault = Fault::from_environment(mpi.rank());
    inputs.fault.at(Fault::launch, 0);
    setup = make_setup(text, inputs.deck_name, line.overrides, line.text("plugin-path"), job,
                       inputs.restart ? shape_to_continue : shape_at);
    if (inputs.restart) {
      notes = find_from_folder(setup, inputs.deck_name);
      reuse_choices(setup, {setup.config.run_dir});
    }
    setup.choose(mpi.size(), mpi.thread_limits());
    note_past_end(setup, notes);
    open_data(inputs);
  });
  if (launch.is_first()) {
    for (const std::string& note : notes) say(stderr, "mylos: {}\n", note);
  }
  launch.check_same(identity_of(inputs, line));
  launch.agree([&] {
    if (!launch.is_first()) return;
    for (const std::string& warning : data_warnings(*inputs.train_data, inputs.valid_data))
      launch.warn(warning);
  });
  return inputs;
}

void open_initial(const Launch& launch, RunInputs& inputs, IoThread& io) {
  const RunConfig& config = inputs.setup.config;
  std::string has_checkpoint;
  launch.agree([&] {
    const std::filesystem::path named = config.checkpoint.directory;
    const std::filesystem::path folder = named.empty() ? inputs.paths().checkpoints() : named;
    if (launch.is_first() && inputs.restart && !list_steps(folder).empty()) has_checkpoint = "yes";
  });
  if (config.init.empty() || !launch.mpi().broadcast(has_checkpoint).empty()) return;
  try {
    inputs.initial = std::make_unique<OpenedModel>(io, config.init, false, std::nullopt,
                                                   [&](const std::string& text) { launch.warn(text); });
  } catch (const Error& error) {  // the same on all ranks
    if (launch.is_first()) say(stderr, "mylos: [model] init: {}\n", error.what());
    throw AgreedEnd{static_cast<int>(error.code())};
  }
  launch.agree([&] {
    // The shape of a run that is continued came from its resolved deck.
    const ModelConfig& model = inputs.initial->origin().model;
    const ModelConfig& wanted = config.model;
    const auto check_same = [&](const char* key, const auto& own, const auto& found) {
      if (own != found) {
        fail(ExitCode::usage, "[model] {} = {} in this run, but {} = {} in {}", key, own, key, found,
             config.init);
      }
    };
    check_same("layers", wanted.layers, model.layers);
    check_same("heads", wanted.heads, model.heads);
    check_same("width", wanted.width, model.width);
    check_same("feed_forward", wanted.inner_width(), model.inner_width());
    check_same("context", wanted.context, std::min(wanted.context, model.context));
    check_same("vocab", wanted.vocab, model.vocab);
    check_same("tied", wanted.tied, model.tied);
    check_same("experts", experts_text(wanted.experts), experts_text(model.experts));
    check_same("depth_capacity", wanted.depths.capacity, model.depths.capacity);
    check_same("depth_every", wanted.depths.every, model.depths.every);
    const TokenizerIdentity& known = inputs.initial->origin().tokenizer;
    if (may_be_same(known, inputs.tokenizer)) return;
    fail(ExitCode::usage, "[model] init = {} is a model of tokens of {}, but the data are tokens of {}",
         config.init, known.text(), inputs.tokenizer.text());
  });
  std::string identity;
  launch.agree([&] { identity = inputs.initial->identity(); });
  launch.check_same(identity);
  if (inputs.tokenizer.name.empty()) inputs.tokenizer = inputs.initial->origin().tokenizer;
}

TakenDirectory take_directory(const Launch& launch, const RunInputs& inputs, const StopSignals& signals) {
  const RunConfig& config = inputs.setup.config;
  const RunPaths paths = inputs.paths();
  const bool restarts = inputs.restart.has_value();
  TakenDirectory taken;
  std::string ranks_text;
  std::string checkpoints;
  launch.agree([&] {
    if (!launch.is_first()) return;
    const std::string& ranks = config.data.ranks;
    if (!ranks.empty() && !(restarts && std::filesystem::exists(paths.ranks())))
      ranks_text = read_gpt2_ranks(ranks).text();
    if (ranks.empty() && inputs.initial != nullptr) ranks_text = initial_ranks(config.init, inputs.tokenizer);
    taken.directory.emplace(paths, config.checkpoint.directory, restarts);
    checkpoints = taken.directory->checkpoints();
  });
  checkpoints = launch.mpi().broadcast(checkpoints);
  try {
    check_shared(launch, {{"run.dir", paths.root}, {"checkpoint.dir", checkpoints}}, signals);
  } catch (const AgreedEnd&) {
    if (taken.directory) taken.directory->withdraw();
    throw;
  }
  launch.agree([&] {
    if (!taken.directory) return;
    taken.removed = taken.directory->begin(restarts);
    if (!ranks_text.empty()) write_text_file(paths.ranks(), ranks_text);
  });
  return taken;
}

}  // namespace mylos
