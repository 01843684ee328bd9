// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>

#include <mpi.h>

#include "app/commands/commands.hpp"
#include "app/commands/report.hpp"
#include "app/environment.hpp"
#include "app/inference.hpp"
#include "app/launch.hpp"
#include "app/link_rates.hpp"
#include "app/opened_model.hpp"
#include "app/plan_files.hpp"
#include "app/plan_text.hpp"
#include "app/processors.hpp"
#include "app/schedule_text.hpp"
#include "app/setup.hpp"
#include "app/shared_directory.hpp"
#include "app/trainer.hpp"
#include "core/base/clock.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/host.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "parallel/schedule/schedule_file.hpp"

namespace mylos {

namespace {

/// Returns the value of --restart, if given: "newest", "N" or "step_N". Throws ExitCode::usage for another
/// value.
std::optional<std::string> parse_restart(const CommandLine& line) {
  if (!line.has("restart")) return std::nullopt;
  parse_step("restart", line.text("restart"));
  return line.text("restart");
}

/// A time to end that has passed is an error if the user has named it. Slurm's is ignored, with a note: the
/// job's limit was extended.
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

/// What a resolved deck says about experts.
ExpertConfig experts_of(const Deck& deck) {
  const auto text = [&](const char* key) { return deck.find(key)->value; };
  const DeckEntry* count = deck.find("model.experts");
  if (count == nullptr || count->value == "0") return {};
  return {.count = std::atoll(count->value.c_str()),
          .per_token = std::atoll(text("model.experts_per_token").c_str()),
          .width = std::atoll(text("model.expert_width").c_str()),
          .every = std::atoll(text("model.expert_every").c_str()),
          .has_shared = text("model.shared_expert") == "true",
          .router = router_named(text("model.router")),
          .noise = router_noise_named(text("model.router_noise"))};
}

/// The same about routed blocks.
DepthConfig depths_of(const Deck& deck) {
  const DeckEntry* capacity = deck.find("model.depth_capacity");
  const DeckEntry* every = deck.find("model.depth_every");
  if (capacity == nullptr || every == nullptr) return {};
  return {.capacity = std::strtod(capacity->value.c_str(), nullptr),
          .every = std::atoll(every->value.c_str())};
}

/// The shape of the model of a run that is continued, whose initial weights may be gone: that of its resolved
/// deck or, if there is none, that of the model at `path`.
ModelConfig shape_to_continue(Deck deck, const std::string& path) {
  const DeckEntry* directory = deck.find("run.dir");
  std::error_code unknown;
  if (directory == nullptr) return look_at_model(path).model;
  const std::filesystem::path resolved = RunPaths{expand_path(directory->value)}.resolved_deck();
  DeckErrors ignored;
  if (std::filesystem::exists(resolved, unknown)) {
    deck = Deck::parse(read_text_file(resolved), resolved.string(), ignored);
  } else if (deck.find("model.experts") != nullptr || deck.find("model.depth_capacity") != nullptr) {
    return look_at_model(path).model;  // other keys of experts and depths may be open
  }
  const auto number = [&](const char* key) {
    const DeckEntry* entry = deck.find(key);
    return entry == nullptr ? 0 : std::atoll(entry->value.c_str());
  };
  const DeckEntry* tied = deck.find("model.tied");
  const ModelConfig shape{.layers = number("model.layers"),
                          .heads = number("model.heads"),
                          .width = number("model.width"),
                          .feed_forward = number("model.feed_forward"),
                          .context = number("model.context"),
                          .vocab = number("model.vocab"),
                          .tied = tied == nullptr || tied->value == "true",
                          .experts = experts_of(deck),
                          .depths = depths_of(deck)};
  const bool is_whole =
      shape.layers > 0 && shape.heads > 0 && shape.width > 0 && shape.context > 0 && shape.vocab > 0;
  return is_whole ? shape : look_at_model(path).model;
}

int dry_run(const CommandLine& line, const std::string& name) {
  const std::optional<std::string> restart = parse_restart(line);
  Setup setup = planned_setup(line, name, restart ? shape_to_continue : ShapeOfModel());
  if (line.has("pass-times")) set_pass_times(setup.config, line.text("pass-times"));
  std::filesystem::path list;
  if (line.has("write-schedule")) {
    check_is_one_step(setup.config);
    list = output_file(line, "write-schedule", inputs_of(setup, name));
  }
  std::vector<std::string> notes;
  note_past_end(setup, notes);
  for (const std::string& note : notes) say(stderr, "mylos: {}\n", note);
  const std::vector<RunPlan> plans = plans_of(setup);
  fmt::print("{}", plan_text(setup.config, largest_of(plans)));
  if (line.flag("layout")) fmt::print("\n{}", layout_text(setup.config));
  if (line.flag("schedule")) fmt::print("\n{}\n", simulation_text(setup.config, plans));
  if (!list.empty()) write_output(list, schedule_text(passes_of_step(setup.config)));
  fmt::print("{}", files_text(setup, restart));
  if (std::fflush(stdout) != 0) fail(ExitCode::io, "the plan cannot be printed");
  return 0;
}

/// If parallel.data and parallel.tensor are unchanged, makes the automatic choices as in the resolved deck of
/// the run that is continued, except backends that cannot be used, so that the restart can be bitwise
/// identical.
void reuse_choices(Setup& setup, const RunPaths& paths) {
  if (!std::filesystem::exists(paths.resolved_deck())) return;
  DeckErrors ignored;
  const Deck before =
      Deck::parse(read_text_file(paths.resolved_deck()), paths.resolved_deck().string(), ignored);
  const auto value = [&](const char* key) {
    const DeckEntry* entry = before.find(key);
    return entry != nullptr ? entry->value : std::string();
  };
  const ParallelLayout& layout = setup.config.parallel;
  const std::pair<const char*, std::int64_t> extents[] = {{"parallel.data", layout.data},
                                                          {"parallel.tensor", layout.tensor},
                                                          {"parallel.pipeline", layout.pipeline}};
  for (const auto& [key, extent] : extents) {
    const std::string text = value(key);
    if ((text.empty() ? "1" : text) != std::to_string(extent)) return;
  }
  std::string replicas = value("parallel.replicas");
  std::erase(replicas, ' ');
  if (replicas != join(layout.replicas, ",")) return;
  const auto keep = [&](std::string& choice, PluginKind kind, const char* key) {
    const auto usable = setup.plugins.usable(kind);
    const bool offered =
        std::ranges::any_of(usable, [&](const auto* plugin) { return plugin->name == value(key); });
    if (choice == "auto" && offered) choice = value(key);
  };
  BackendConfig& backend = setup.config.backend;
  keep(backend.compute, PluginKind::compute, "backend.compute");
  keep(backend.comm, PluginKind::communication, "backend.comm");
  std::string& algorithm = setup.config.comm.algorithm;
  if (algorithm == "auto" && !value("comm.algorithm").empty()) algorithm = value("comm.algorithm");
  const std::int64_t threads = std::atoll(value("backend.threads").c_str());
  const std::optional<ThreadLimit> allotted = slurm_threads(1);
  const std::int64_t most = std::min(openmp_thread_limit(), allotted ? allotted->threads : INT64_MAX);
  if (backend.threads == 0 && threads <= most) backend.threads = threads;
}

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

/// Opens the model that [model] init names, for a run that has no checkpoint. Collective: returns 0 and the
/// model, or the exit code of an error that rank 0 has printed.
int open_initial(const MpiRuntime& mpi, const RunConfig& config, const TokenizerIdentity& tokenizer,
                 IoThread& io, std::unique_ptr<OpenedModel>& source) {
  try {
    source =
        std::make_unique<OpenedModel>(io, config.init, false, std::nullopt, [&](const std::string& text) {
          if (mpi.rank() == 0) say(stderr, "warning: {}\n", text);
        });
  } catch (const Error& error) {
    if (mpi.rank() == 0) say(stderr, "mylos: [model] init: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  const auto check = [&] {
    // The shape of a run that is continued came from its resolved deck.
    const ModelConfig& model = source->origin().model;
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
    const TokenizerIdentity& known = source->origin().tokenizer;
    if (may_be_same(known, tokenizer)) return;
    fail(ExitCode::usage, "[model] init = {} is a model of tokens of {}, but the data are tokens of {}",
         config.init, known.text(), tokenizer.text());
  };
  if (const int code = run_agreed(mpi, check)) return code;
  std::string identity;
  if (const int code = run_agreed(mpi, [&] { identity = source->identity(); })) return code;
  return check_identity(mpi, identity);
}

/// Lets a restart find what the run found from the folder where it was started. With the resolved deck of a
/// run, relative paths begin in that folder; with another deck, only data that are not found from here.
/// Returns what to say about that.
std::vector<std::string> find_from_folder(Setup& setup, const std::string& deck_name) {
  namespace fs = std::filesystem;
  RunConfig& config = setup.config;
  std::error_code unknown;
  const auto is_same = [&](const fs::path& a, const fs::path& b) { return fs::equivalent(a, b, unknown); };
  const auto begin_in = [](const std::string& folder, std::string& path) {
    if (!path.empty()) path = (fs::path(folder) / path).string();
  };
  const fs::path deck_folder = fs::absolute(deck_name, unknown).parent_path();
  const std::string before = folder_of_run({deck_folder});
  const bool is_resolved = !before.empty() && is_same(deck_name, RunPaths{deck_folder}.resolved_deck()) &&
                           is_same(fs::path(before) / config.run_dir, deck_folder);
  const std::string folder = is_resolved ? before : folder_of_run({config.run_dir});
  if (folder.empty() || folder == config.folder) return {};
  std::vector<std::string> notes;
  if (is_resolved) {
    begin_in(folder, config.run_dir);
    begin_in(folder, config.checkpoint.directory);
    begin_in(folder, config.data.ranks);
    begin_in(folder, config.init);
    begin_in(folder, config.eval.choices);
    notes.push_back(
        fmt::format("relative paths of {} begin in {}, where the run was started", deck_name, folder));
  }
  for (auto& [key, sources] :
       {std::pair("train", &config.data.train), std::pair("valid", &config.data.valid)}) {
    if (start_from(folder, !is_resolved, *sources) && !is_resolved)
      notes.push_back(
          fmt::format("[data] {} is not here, but in {}, where the run was started", key, folder));
  }
  if (!notes.empty()) config.folder = folder;
  return notes;
}

/// Prints the run's directory, for scripts that look for its status. Needs nothing else of the deck.
int print_directory(const CommandLine& line, const std::string& deck_name, bool restart) {
  DeckErrors errors;
  Setup setup;
  setup.deck = Deck::parse(read_deck(deck_name), deck_name, errors);
  for (const auto& [key, value] : line.overrides) setup.deck.set(key, value, errors);
  errors.throw_if_any();
  const DeckEntry* entry = setup.deck.find("run.dir");
  if (entry == nullptr || entry->value.empty()) fail(ExitCode::usage, "{}: [run] dir is missing", deck_name);
  setup.config.run_dir = expand_path(entry->value);
  if (restart) find_from_folder(setup, deck_name);
  fmt::print("{}\n", setup.config.run_dir);
  if (std::fflush(stdout) != 0) fail(ExitCode::io, "the run's directory cannot be printed");
  return 0;
}

/// "2 ranks on 2 nodes (n1, n2), Slurm job 17, restart 1, ends in 3:58:10"
std::string placement_text(const MpiRuntime& mpi, std::optional<std::int64_t> end_time) {
  constexpr std::size_t most_names = 8;
  std::vector<std::string> names = mpi.hosts();
  const auto count = [](std::size_t number, const char* what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
  };
  const std::string nodes = count(names.size(), "node");
  if (names.size() > most_names) {
    names.resize(most_names);
    names.emplace_back("...");
  }
  std::string text = fmt::format("{} on {} ({})", count(static_cast<std::size_t>(mpi.size()), "rank"), nodes,
                                 join(names, ", "));
  if (const std::optional<SlurmJob> job = slurm_job()) {
    text += fmt::format(", Slurm job {}", job->id);
    if (job->restarts > 0) text += fmt::format(", restart {}", job->restarts);
  }
  if (end_time) {
    const std::int64_t left = std::max<std::int64_t>(0, *end_time - std::time(nullptr));
    text += fmt::format(", ends in {}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
  }
  return text;
}

/// The layout that the partitioner has chosen: "2 stages of 8,4 blocks with 2,1 replicas".
std::string chosen_stages_text(const ParamValues& values) {
  const std::int64_t stages = values.integer("parallel.pipeline");
  if (stages == 1) return "one stage, plain data parallelism";
  const std::string& replicas = values.text("parallel.replicas");
  return fmt::format("{} stages of {} blocks with {} replicas{}", stages, values.text("parallel.stages"),
                     replicas.empty() ? std::to_string(values.integer("parallel.data")) : replicas,
                     replicas.empty() ? " each" : "");
}

void print_header(Console& console, const MpiRuntime& mpi, const Setup& setup, Session& session,
                  double peak_tflops) {
  if (mpi.rank() > 0) return;  // the plans of all stages take a while
  const RunConfig& c = setup.config;
  const RunPlan plan = plan_of(setup);
  console.line(fmt::format("mylos: {} parameters, {} steps of {} tokens, {}, {:.3f} GB per rank",
                           plan.parameters, c.limits.steps, plan.tokens_per_step, name_of(c.train.dtype),
                           1e-9 * static_cast<double>(plan.memory_total())));
  const std::string algorithm = session.algorithm() == "native" ? "" : " by " + session.algorithm();
  console.line("       " + placement_text(mpi, c.limits.end_time));
  console.line(fmt::format("       comm {}{}, compute {}: {}", c.backend.comm, algorithm, c.backend.compute,
                           session.compute().description()));
  const DeckEntry* replicas = setup.deck.find("parallel.replicas");
  if (replicas != nullptr && replicas->value == "auto")
    console.line("       chosen: " + chosen_stages_text(setup.values));
  const std::string& limit = c.backend.threads_limit;
  console.line(fmt::format("       {} thread{} per rank{}, rank 0 on cores {}", c.backend.threads,
                           c.backend.threads == 1 ? "" : "s", limit.empty() ? "" : " (" + limit + ")",
                           text_of(own_processors())));
  console.line(fmt::format("       MFU refers to {:.3f} TFLOP/s per rank, {}", peak_tflops,
                           c.peak_tflops > 0.0 ? "from the deck" : "a measured matrix product"));
}

std::vector<CommandOption> options() {
  return {
      {"restart",
       OptionKind::text,
       "continue from the newest undamaged checkpoint, or from step N with --restart=step_N",
       {},
       "newest"},
      {"print-dir", OptionKind::flag, "print the run's directory and stop; needs no launcher"},
      {"dry-run", OptionKind::flag, "check the deck, print the plan and stop; needs no launcher"},
      {"ranks", OptionKind::integer,
       "with --dry-run: the number of ranks to plan for; by default parallel.data times "
       "parallel.tensor times parallel.pipeline, where 0 counts as 1, or the sum of parallel.replicas"},
      {"ranks-per-node", OptionKind::integer,
       "with --dry-run: the number of ranks per node; by default all ranks are on one node"},
      {"layout", OptionKind::flag, "with --dry-run: also print what each rank holds, one line per rank"},
      {"schedule", OptionKind::flag,
       "with --dry-run: also print a simulated step: figures of each stage, makespan, bubble and a diagram"},
      {"pass-times", OptionKind::text,
       "with --dry-run: F,I,W, the times of a chunk's passes (forward, input and weight gradients) instead "
       "of "
       "the model's"},
      {"write-schedule", OptionKind::text,
       "with --dry-run: write the passes of a step to this file, for parallel.schedule_file or PyTorch"},
      {.name = "progress",
       .kind = OptionKind::text,
       .doc = "how progress is shown on the console: auto, live, plain or none",
       .default_value = "auto",
       .choices = "auto|live|plain|none"},
  };
}

int train(const MpiRuntime& mpi, const CommandLine& line, const LaunchTime& launched) {
  // 1. The deck, the run's directory. An error on one rank is reported once, and all ranks return it.
  const std::string deck_name = line.argument(0, "a deck");
  const std::optional<std::string> restart = parse_restart(line);
  Setup setup;
  std::optional<RunDirectory> directory;
  Fault fault;
  std::string deck_text;
  JobSize job;
  std::vector<std::string> notes;
  std::optional<TokenDataset> train_data;
  std::optional<TokenDataset> valid_data;
  TokenizerIdentity tokenizer;
  std::optional<ChoiceQuestions> choices;
  double data_seconds = 0.0;
  const auto read_everything = [&] {
    fault = Fault::from_environment(mpi.rank());
    fault.at(Fault::launch, 0);
    setup = make_setup(deck_text, deck_name, line.overrides, line.text("plugin-path"), job, DeckOrigin::user,
                       restart ? shape_to_continue : ShapeOfModel());
    if (restart) {
      notes = find_from_folder(setup, deck_name);
      reuse_choices(setup, {setup.config.run_dir});
    }
    setup.choose(mpi.size(), mpi.thread_limits());
    note_past_end(setup, notes);
    const auto begin = Clock::now();
    fault.at(Fault::data, 0);
    DeckErrors errors;
    check_token_files(setup.deck, setup.config, errors);
    errors.throw_if_any();
    const auto open = [&](const std::vector<DataSource>& sources) {
      return open_dataset(sources, setup.config.model.vocab, setup.config.train.seq_len,
                          setup.config.train.seed, setup.config.data.tokenizer);
    };
    train_data.emplace(open(setup.config.data.train));
    if (!setup.config.data.valid.empty()) valid_data.emplace(open(setup.config.data.valid));
    tokenizer = tokenizer_of(setup.config.data, *train_data, valid_data);
    choices = take_choices(setup.config, tokenizer);
    data_seconds = seconds_since(begin);
  };
  if (const int code = share_text(
          mpi, [&] { return read_deck(deck_name); }, deck_text))
    return code;
  job = with_link_rates(mpi, line, deck_text);
  if (const int code = run_agreed(mpi, read_everything)) return code;
  if (mpi.rank() == 0) {
    for (const std::string& note : notes) say(stderr, "mylos: {}\n", note);
  }
  std::string identity = identity_of(setup, line);
  identity += fmt::format("content of data.train = {}\n", train_data->identity());
  if (valid_data) identity += fmt::format("content of data.valid = {}\n", valid_data->identity());
  identity += fmt::format("tokenizer of the data = {}\n", tokenizer.text());
  if (choices) identity += fmt::format("content of eval.choices = {}\n", choices->digest);
  if (const int code = check_identity(mpi, identity)) return code;
  const auto warn_of_data = [&] {
    if (mpi.rank() != 0) return;
    for (const std::string& warning : data_warnings(*train_data, valid_data))
      say(stderr, "warning: {}\n", warning);
  };
  if (const int code = run_agreed(mpi, warn_of_data)) return code;
  mpi.set_limits(setup.config.comm.limits);
  if (const int code = fall_back_to_mpi(mpi, setup)) return code;
  const RunPaths paths{setup.config.run_dir, setup.config.folder};
  // These threads start before OpenMP. If its variables request binding, it binds this thread to a core,
  // which threads started later would share.
  auto io = std::make_unique<IoThread>();
  auto checkpoint_io = std::make_unique<IoThread>();
  std::unique_ptr<OpenedModel> initial;
  std::string has_checkpoint;
  const auto look = [&] {
    const std::filesystem::path named = setup.config.checkpoint.directory;
    if (mpi.rank() == 0 && restart && !list_steps(named.empty() ? paths.checkpoints() : named).empty())
      has_checkpoint = "yes";
  };
  if (const int code = run_agreed(mpi, look)) return code;
  if (!setup.config.init.empty() && mpi.broadcast(has_checkpoint).empty()) {
    if (const int code = open_initial(mpi, setup.config, tokenizer, *io, initial)) return code;
    if (tokenizer.name.empty()) tokenizer = initial->origin().tokenizer;
  }
  std::string ranks_text;
  std::string checkpoints;
  const auto take_directory = [&] {
    if (mpi.rank() != 0) return;
    const std::string& ranks = setup.config.data.ranks;
    if (!ranks.empty() && !(restart && std::filesystem::exists(paths.ranks())))
      ranks_text = read_gpt2_ranks(ranks).text();
    if (ranks.empty() && initial != nullptr) ranks_text = initial_ranks(setup.config.init, tokenizer);
    directory.emplace(paths, setup.config.checkpoint.directory, restart.has_value());
    checkpoints = directory->checkpoints();
  };
  if (const int code = run_agreed(mpi, take_directory)) return code;
  const StopSignals signals;
  checkpoints = mpi.broadcast(checkpoints);
  if (const int code =
          check_shared(mpi, {{"run.dir", paths.root}, {"checkpoint.dir", checkpoints}}, signals)) {
    if (directory) directory->withdraw();
    return code;
  }
  std::vector<std::string> removed;
  const auto begin_run = [&] {
    if (!directory) return;
    removed = directory->begin(restart.has_value());
    if (!ranks_text.empty()) write_text_file(paths.ranks(), ranks_text);
  };
  if (const int code = run_agreed(mpi, begin_run)) return code;

  // 2. The backends and the trainer: from here on, an error on one rank ends the job.
  Console console(mpi.rank() == 0, progress_style(line.text("progress")));
  std::string resolved_deck;
  std::unique_ptr<SampleStream> samples;
  std::unique_ptr<Session> session;
  std::unique_ptr<Trainer> trainer;
  const auto step = std::make_shared<std::atomic<std::int64_t>>(0);
  const auto record = [paths, step](ExitCode code, const std::string& message) {
    write_status(paths, "failed", code, *step, message);
  };
  mpi.watchdog().set_record(record);
  try {
    const TrainConfig& train = setup.config.train;
    samples =
        std::make_unique<SampleStream>(*std::move(train_data), train.micro_batch, train.sample_stride());
    session = std::make_unique<Session>(setup.plugins, setup.config, setup.values, mpi.recorder());
    setup.config.comm.algorithm = session->algorithm();
    setup.values.set("comm.algorithm", session->algorithm());
    resolved_deck = setup.resolved_deck();
    const double peak = setup.config.peak_tflops > 0.0
                            ? setup.config.peak_tflops
                            : measure_gemm_tflops(*session, setup.config.train.dtype);
    print_header(console, mpi, setup, *session, peak);
    trainer = std::make_unique<Trainer>(
        TrainerContext{*session, *io, *checkpoint_io, setup.config, resolved_deck, paths, console, fault,
                       signals, launched, peak, *samples, std::move(valid_data), tokenizer, data_seconds,
                       *step, std::move(choices), std::move(initial)});
    trainer->start(restart);
    if (mpi.rank() == 0) {
      if (!removed.empty()) {
        console.warn(fmt::format("removed from {} what is of an earlier run: {}", paths.root.string(),
                                 join(removed, ", ")));
      }
      write_text_file(paths.resolved_deck(), resolved_deck);
      write_status(paths, "running", std::nullopt, *step, "");
    }

    // 3. Train.
    const TrainResult result = trainer->run();

    // 4. Report how the run ended.
    mpi.watchdog().set_record(nullptr);
    if (mpi.rank() == 0) {
      write_status(paths, result.state, result.code, result.step, result.message);
      trainer.reset();
      try {
        write_report(*io, paths, paths.report());
      } catch (const std::exception& error) {
        std::error_code ignored;
        std::filesystem::remove(paths.report(), ignored);  // of an earlier launch
        console.warn(fmt::format("no report: {}", error_of(error).what()));
      }
    }
    console.line(fmt::format("{} at step {}{}{}", result.state, result.step,
                             result.message.empty() ? "" : ": ", result.message));
    if (result.code != ExitCode::done && mpi.rank() == 0) {
      say(stderr, "mylos: {}\n", result.message);
    }
    session->world().barrier();
    return static_cast<int>(result.code);
  } catch (const std::exception& error) {
    return end_job(mpi, error, record);
  }
}

int run(const CommandLine& line) {
  const std::string deck_name = line.argument(0, "a deck");
  const std::optional<std::string> restart = parse_restart(line);
  progress_style(line.text("progress"));
  if (line.flag("print-dir"))
    return launched_rank() > 0 ? 0 : print_directory(line, deck_name, restart.has_value());
  if (line.flag("dry-run")) return launched_rank() > 0 ? 0 : dry_run(line, deck_name);
  if (line.has("ranks") || line.has("ranks-per-node") || line.flag("layout"))
    fail(ExitCode::usage,
         "--ranks, --ranks-per-node and --layout are for --dry-run; for training, the launcher sets the "
         "number of ranks");
  if (line.flag("schedule") || line.has("pass-times") || line.has("write-schedule"))
    fail(ExitCode::usage, "--schedule, --pass-times and --write-schedule are for --dry-run");
  const LaunchTime launched;
  std::signal(SIGPIPE, SIG_IGN);  // the process that reads a long run's output may end first
  return with_mpi(start_timeout(line, deck_name),
                  [&](const MpiRuntime& mpi) { return train(mpi, line, launched); });
}

}  // namespace

const Command train_command{.name = "train",
                            .arguments = "DECK|-",
                            .summary = "train from an input deck; --section.name=value overrides the deck",
                            .options = options,
                            .run = run,
                            .takes_overrides = true,
                            .may_lose_output = true};

}  // namespace mylos
