// SPDX-License-Identifier: BSD-3-Clause
#include "app/setup.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <variant>

#include <mpi.h>

#include "app/choice_evaluator.hpp"
#include "app/opened_model.hpp"
#include "app/session.hpp"
#include "app/stop_signals.hpp"
#include "core/base/digest.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/number_text.hpp"
#include "core/base/say.hpp"
#include "core/base/version.hpp"
#include "core/base/what_is_at.hpp"
#include "io/agree.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace {

/// Returns the section of a plugin that cannot be loaded: "libmylos_compute_cuda.so" -> "cuda".
std::string section_of_file(const std::filesystem::path& file) {
  const std::string stem = file.stem();
  return stem.substr(stem.rfind('_') + 1);
}

/// The head's slices are as large as the compute backend likes them.
void take_logits_bytes(Setup& setup) {
  const auto backends = compute_plugins(setup.plugins, setup.config);
  if (!backends.empty()) setup.config.model.logits_bytes = backends.front()->logits_bytes;
}

}  // namespace

void Setup::choose(int world_size, std::span<const ThreadLimit> limits) {
  config.backend = choose_backends(plugins, config.backend, world_size, limits);
  take_logits_bytes(*this);
  values.set("backend.compute", config.backend.compute);
  values.set("backend.comm", config.backend.comm);
  values.set("backend.threads", config.backend.threads);
}

std::string read_standard_input() {
  constexpr std::size_t most_bytes = std::size_t{64} << 20U;
  return read_stream(STDIN_FILENO, "standard input", most_bytes);
}

std::string read_deck(const std::string& file) {
  if (file == "-" || file == "/dev/stdin") {
    std::string text = read_standard_input();
    if (text.empty()) fail(ExitCode::usage, "standard input is empty: it holds no deck");
    return text;
  }
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    const std::string present = what_is_at(file);
    if (present == "nothing") fail(ExitCode::usage, "deck {} does not exist", file);
    fail(ExitCode::usage, "deck {} cannot be read: there is {}", file, present);
  }
  if (std::filesystem::is_directory(file, error))
    fail(ExitCode::usage, "deck {} cannot be read: there is {}", file, what_is_at(file));
  return read_text_file(file);
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    fail(ExitCode::io, "the output cannot be written");
}

int share_text(const MpiRuntime& mpi, const std::function<std::string()>& read, std::string& text) {
  const StopSignals signals;  // on all ranks: they end together
  const auto read_once = [&] {
    if (mpi.rank() == 0) text = read();
    if (signals.received() != 0) fail(ExitCode::preempted, "stopped by a signal");
  };
  if (const int code = run_agreed(mpi, read_once)) return code;
  text = mpi.broadcast(text);
  return 0;
}

bool start_from(const std::string& folder, bool here_first, std::vector<DataSource>& sources) {
  const auto matches = [](DataPattern pattern, const std::string& glob) {
    pattern.glob = glob;
    try {
      return !files_of({.text = "", .patterns = {pattern}}).empty();
    } catch (const Error& error) {
      if (error.code() != ExitCode::usage) throw;
      return false;
    }
  };
  std::error_code unknown;
  if (folder.empty() || folder == std::filesystem::current_path(unknown)) return false;
  bool is_used = false;
  for (DataSource& source : sources) {
    for (DataPattern& pattern : source.patterns) {
      const std::string there = quote_glob(folder) + "/" + pattern.glob;
      if (pattern.glob.starts_with('/') || !matches(pattern, there)) continue;
      if (here_first && matches(pattern, pattern.glob)) continue;
      pattern.glob = there;
      is_used = true;
    }
  }
  return is_used;
}

std::vector<ParamSpec> all_params(const PluginRegistry& plugins) {
  const auto own = deck_params();
  std::vector<ParamSpec> specs(own.begin(), own.end());
  for (const PluginInfo& plugin : plugins.all()) {
    if (plugin.descriptor == nullptr) continue;
    specs.insert(specs.end(), plugin.descriptor->params.begin(), plugin.descriptor->params.end());
  }
  return specs;
}

Setup make_setup(const std::string& deck_text, const std::string& deck_name, const DeckOverrides& overrides,
                 const std::string& plugin_path, const JobSize& job, DeckOrigin origin,
                 const ShapeOfModel& shape_of) {
  Setup setup;
  setup.plugins = PluginRegistry::discover(plugin_search_path(plugin_path));
  setup.specs = all_params(setup.plugins);
  std::vector<std::pair<std::string, std::string>> unavailable;
  for (const PluginInfo& plugin : setup.plugins.all()) {
    if (plugin.descriptor == nullptr) unavailable.emplace_back(section_of_file(plugin.path), plugin.problem);
  }
  DeckErrors errors;
  setup.deck = Deck::parse(deck_text, deck_name, errors);
  if (origin != DeckOrigin::user) setup.deck.keep_declared(setup.specs);
  for (const auto& [key, value] : overrides) setup.deck.set(key, value, errors);
  std::optional<ModelConfig> initial;
  if (const DeckEntry* init = setup.deck.find("model.init"); init != nullptr && !init->value.empty()) {
    initial = at_place(fmt::format("{}: [model] init", init->place.text), [&] {
      const std::string path = expand_path(init->value);
      return shape_of ? shape_of(setup.deck, path) : look_at_model(path).model;
    });
  }
  setup.config = make_run_config(setup.deck, setup.specs, job, errors, setup.values, unavailable, initial);
  errors.throw_if_any(origin == DeckOrigin::checkpoint ? ExitCode::bad_data : ExitCode::usage);
  return setup;
}

namespace {

/// Returns the number of ranks of `planned_setup`.
std::int64_t planned_ranks(const CommandLine& line, const std::string& text, const std::string& name) {
  if (line.has("ranks")) {
    const std::int64_t ranks = line.integer("ranks");
    if (ranks < 1) fail(ExitCode::usage, "--ranks={} must be at least 1", ranks);
    return ranks;
  }
  DeckErrors reported_later;
  Deck deck = Deck::parse(text, name, reported_later);
  for (const auto& [key, value] : line.overrides) deck.set(key, value, reported_later);
  const auto number = [](std::string_view value) -> std::int64_t {
    try {
      constexpr std::int64_t most = 1 << 20;
      return std::clamp<std::int64_t>(parse_integer(value).value_or(1), 1, most);
    } catch (const Error&) {  // reported later
      return 1;
    }
  };
  const auto extent = [&](const char* key) -> std::int64_t {
    const DeckEntry* entry = deck.find(key);
    return entry != nullptr ? number(entry->value) : 1;
  };
  const DeckEntry* replicas = deck.find("parallel.replicas");
  if (replicas == nullptr || replicas->value.empty())
    return extent("parallel.data") * extent("parallel.tensor") * extent("parallel.pipeline");
  std::int64_t sum = 0;
  for (const std::string_view word : split(replicas->value, ',')) sum += number(word);
  return extent("parallel.tensor") * sum;
}

}  // namespace

Setup planned_setup(const CommandLine& line, const std::string& deck_name, const ShapeOfModel& shape_of) {
  const StopSignals signals;
  const std::string text = read_deck(deck_name);
  JobSize job{planned_ranks(line, text, deck_name)};
  if (line.has("ranks-per-node")) job.ranks_per_node = line.integer("ranks-per-node");
  if (job.ranks_per_node < 1 || job.ranks % job.ranks_per_node != 0)
    fail(ExitCode::usage, "--ranks-per-node={} must divide --ranks={}", job.ranks_per_node, job.ranks);
  Setup setup =
      make_setup(text, deck_name, line.overrides, line.text("plugin-path"), job, DeckOrigin::user, shape_of);
  RunConfig& config = setup.config;
  if (!config.eval.choices.empty())
    config.cache = choice_cache(config.model.context, config.train.micro_batch * config.train.seq_len);
  take_logits_bytes(setup);
  if (config.machine_file != nullptr && config.machine_file->logits > 0.0)
    config.model.logits_bytes = static_cast<std::int64_t>(config.machine_file->logits);
  return setup;
}

std::vector<RunPlan> plans_of(const Setup& setup) {
  const RunConfig& config = setup.config;
  const auto plugins = compute_plugins(setup.plugins, config);
  return make_plans(config, {.algorithm = config.comm.algorithm,
                             .threads = config.backend.threads,
                             .communicator = plan_communicator(setup.plugins, config, setup.values),
                             .plan_compute = plugins.empty() ? nullptr : plugins.front()->plan_compute,
                             .keeps_snapshot = config.checkpoint.async});
}

int run_agreed(const MpiRuntime& mpi, const std::function<void()>& work) {
  try {
    run_collectively(MPI_COMM_WORLD, work);
    return 0;
  } catch (const Error& error) {
    if (mpi.rank() == 0) say(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}

std::chrono::milliseconds start_timeout(const CommandLine& line, const std::string& deck_name) {
  constexpr const char* key = "comm.start_timeout";
  std::string value;
  try {
    DeckErrors reported_later;
    std::error_code unknown;
    if (std::filesystem::is_regular_file(deck_name, unknown)) {
      const Deck deck = Deck::parse(read_text_file(deck_name), deck_name, reported_later);
      if (const DeckEntry* entry = deck.find(key)) value = entry->value;
    }
  } catch (const Error&) {  // if a deck is needed, rank 0 reads it later and reports the error
  }
  for (const auto& [name, given] : line.overrides) {
    if (name == key) value = given;
  }
  const double seconds = std::atof(value.c_str());
  if (!(seconds > 0.0 && seconds <= 1e6)) return MpiRuntime::default_start_timeout;
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

TokenizerIdentity tokenizer_of(const DataConfig& config, const TokenDataset& train,
                               const std::optional<TokenDataset>& valid) {
  std::optional<TokenDataset::Origin> origin = train.origin();
  if (valid && valid->origin()) {
    if (!origin) origin = valid->origin();
    if (origin->tokenizer != valid->origin()->tokenizer) {
      fail(ExitCode::usage, "{} holds tokens of {}, but {} holds tokens of {}",
           valid->origin()->file.string(), valid->origin()->tokenizer.text(), origin->file.string(),
           origin->tokenizer.text());
    }
  }
  if (config.tokenizer == "none") return origin ? origin->tokenizer : TokenizerIdentity();
  if (!origin) return {.name = config.tokenizer, .ranks = {}};
  if (origin->tokenizer.name != config.tokenizer) {
    fail(ExitCode::usage, "{} holds tokens of {}, but [data] tokenizer = {}", origin->file.string(),
         origin->tokenizer.text(), config.tokenizer);
  }
  return origin->tokenizer;
}

namespace {

std::string option_text(const auto& value) {
  return fmt::format("{}", value);
}
std::string option_text(const std::vector<std::string>& values) {
  return join(values, ", ");
}

}  // namespace

std::string identity_of(const Setup& setup, const CommandLine& line) {
  // Left out: each node may have its own copy of the data (copies are compared by content), and each rank its
  // own number of threads and its own idea of when the job ends.
  constexpr std::string_view own_matters[] = {"data.train", "data.valid", "backend.threads", "train.end_time",
                                              "train.end_margin"};
  std::string text = fmt::format("mylos = {}\n", code_version());
  for (const std::string& argument : line.arguments) text += fmt::format("the argument = {}\n", argument);
  for (const char* option : {"restart", "step",   "max-loss",    "dtype",  "prompt", "prompts",
                             "samples", "tokens", "temperature", "top-k",  "top-p",  "repetition-penalty",
                             "stop",    "seed",   "batch",       "output", "stride", "per-token",
                             "choices", "style",  "limit"}) {
    const auto given = line.options.find(option);
    text += fmt::format("--{} = ", option);
    if (given != line.options.end())
      std::visit([&](const auto& value) { text += option_text(value); }, given->second);
    text += '\n';
  }
  DeckErrors ignored;
  const Deck resolved = Deck::parse(setup.resolved_deck(), "the resolved deck", ignored);
  for (const DeckEntry& entry : resolved.entries()) {
    if (std::ranges::find(own_matters, entry.key()) != std::end(own_matters)) continue;
    text += fmt::format("{} = {}\n", entry.key(), entry.value);
  }
  // As expanded: a variable may have another value on another rank.
  text += fmt::format("the folder of the run = {}\n", setup.config.run_dir);
  text += fmt::format("the folder of the checkpoints = {}\n", setup.config.checkpoint.directory);
  std::string chunks;
  for (const PassTimes& own : setup.config.parallel.times)
    chunks += fmt::format(" {} {} {},", own.forward, own.input, own.weight);
  text += fmt::format("the first blocks of chunks = {}\nthe costs of chunks ={}\n",
                      join(setup.config.parallel.cuts, " "), chunks);
  text += fmt::format("the content of parallel.schedule_file = {}\n",
                      digest_of(setup.config.parallel.schedule_file).text());
  return text;
}

int check_identity(const MpiRuntime& mpi, const std::string& identity) {
  const std::string first = mpi.broadcast(identity);
  return run_agreed(mpi, [&] {
    if (identity == first) return;
    require(identity.ends_with('\n') && first.ends_with('\n'),
            "neither identity is the beginning of the other");
    const std::vector<std::string_view> own_lines = split(identity, '\n');
    const std::vector<std::string_view> first_lines = split(first, '\n');
    const auto [own, expected] = std::ranges::mismatch(own_lines, first_lines);
    fail(ExitCode::usage, "{}, but rank 0 has {}: this must be the same on all ranks", *own, *expected);
  });
}

int fall_back_to_mpi(const MpiRuntime& mpi, Setup& setup) {
  return run_agreed(mpi, [&] {
    std::string& comm = setup.config.backend.comm;
    const std::string problem = comm_problem(setup.plugins, setup.config, setup.values);
    if (problem.empty()) return;
    const DeckEntry* wanted = setup.deck.find("backend.comm");
    if (wanted != nullptr && wanted->value != "auto") {
      fail(ExitCode::usage, "{}: [backend] comm = {} cannot be used by these ranks: {}; or use auto or mpi",
           wanted->place.text, comm, problem);
    }
    if (mpi.rank() == 0) say(stderr, "warning: [backend] comm is mpi, not {}: {}\n", comm, problem);
    comm = "mpi";
    setup.values.set("backend.comm", comm);
  });
}

int end_job(const MpiRuntime& mpi, const std::exception& error,
            const std::function<void(ExitCode, const std::string&)>& record) {
  constexpr std::chrono::milliseconds head_start{300};
  constexpr int most_waits = 10;
  std::this_thread::sleep_for(head_start * std::min(mpi.rank(), most_waits));
  const Error known = error_of(error);
  const ExitCode code = known.code();
  const std::string message = known.what();
  record(code, message);
  const bool names_rank = dynamic_cast<const AgreedError*>(&error) != nullptr;
  say(stderr, "mylos: {}\n", names_rank ? message : fmt::format("rank {}: {}", mpi.rank(), message));
  if (mpi.size() > 1) mpi.watchdog().end(code);
  return static_cast<int>(code);
}

}  // namespace mylos
