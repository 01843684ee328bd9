// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/setup.hpp"

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

#include "app/deck/unchecked_deck.hpp"
#include "app/launch/session.hpp"
#include "app/launch/stop_signals.hpp"
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

}  // namespace

void Setup::take_logits_bytes() {
  const auto backends = compute_plugins(plugins, config);
  if (!backends.empty()) config.model.logits_bytes = backends.front()->logits_bytes;
}

void Setup::choose(int world_size, std::span<const ThreadLimit> limits) {
  config.backend = choose_backends(plugins, config.backend, world_size, limits);
  take_logits_bytes();
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
                 const std::string& plugin_path, const JobSize& job, const ShapeOfModel& shape_of,
                 DeckOrigin origin) {
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
      return shape_of(setup.deck, path);
    });
  }
  setup.config = make_run_config(setup.deck, setup.specs, job, errors, setup.values, unavailable, initial);
  errors.throw_if_any(origin == DeckOrigin::checkpoint ? ExitCode::bad_data : ExitCode::usage);
  return setup;
}

std::chrono::milliseconds start_timeout(const CommandLine& line, const std::string& deck_name) {
  std::string text;
  try {
    std::error_code unknown;
    if (std::filesystem::is_regular_file(deck_name, unknown)) text = read_text_file(deck_name);
  } catch (const Error&) {  // if a deck is needed, rank 0 reads it later and reports the error
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(UncheckedDeck(text, line.overrides).real("comm.start_timeout")));
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
  std::string text = fmt::format("mylos = {}\n", code_version());
  for (const std::string& argument : line.arguments) text += fmt::format("the argument = {}\n", argument);
  for (const std::string& option : line.common_options) {
    const auto given = line.options.find(option);
    text += fmt::format("--{} = ", option);
    if (given != line.options.end())
      std::visit([&](const auto& value) { text += option_text(value); }, given->second);
    text += '\n';
  }
  DeckErrors ignored;
  const Deck resolved = Deck::parse(setup.resolved_deck(), "the resolved deck", ignored);
  for (const DeckEntry& entry : resolved.entries()) {
    // Each node may have its own copy of the data (copies are compared by content), and each rank its own
    // number of threads and its own idea of when the job ends.
    const ParamSpec* spec = find_spec(setup.specs, entry.key());
    if (spec != nullptr && spec->may_differ) continue;
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

}  // namespace mylos
