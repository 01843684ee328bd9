// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/plan_files.hpp"

#include <functional>

#include "app/deck/command_line.hpp"
#include "app/launch/run_directory.hpp"
#include "app/train/opened_model.hpp"
#include "app/train/run_inputs.hpp"
#include "app/train/run_state.hpp"
#include "core/base/expand_path.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/io_thread.hpp"
#include "io/tokens/bpe_tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// Collects the lines of the text, with warnings last.
class Findings {
 public:
  void add(const char* name, const std::string& text) { facts_ += fmt::format("{:<12} {}\n", name, text); }
  void warn(const std::string& text) { warnings_ += fmt::format("warning: {}\n", text); }
  /// Calls `work`; its errors become warnings.
  void look(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      warn(error_of(error).what());
    }
  }
  std::string text() const { return facts_ + warnings_; }

 private:
  std::string facts_, warnings_;
};

std::string counted(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// The datasets of `setup` that can be opened here.
void look_at_data(const Setup& setup, Findings& found) {
  const RunConfig& config = setup.config;
  std::optional<TokenDataset> train;
  std::optional<TokenDataset> valid;
  const auto open = [&](const char* key, const std::vector<DataSource>& sources,
                        std::optional<TokenDataset>& data) {
    if (sources.empty()) return;
    found.look([&] {
      RunConfig only = config;
      (&sources == &config.data.train ? only.data.valid : only.data.train).clear();
      DeckErrors missing;
      check_token_files(setup.deck, only, missing);
      for (const std::string& message : missing.messages()) found.warn(message + " (on this machine)");
      if (!missing.empty()) return;
      data.emplace(open_dataset(sources, config.model.vocab, config.train.seq_len, config.train.seed,
                                config.data.tokenizer));
    });
    if (data)
      found.add(key, fmt::format("{} tokens in {}", data->num_tokens(), counted(data->num_files(), "file")));
  };
  open("train data", config.data.train, train);
  const std::int64_t samples = config.limits.steps * config.train.global_batch;
  for (std::size_t i = 0; train && i < train->num_sources(); ++i) {
    const std::int64_t tokens = train->num_tokens(i);
    found.add("", fmt::format("{}: {} tokens; {} steps read {:.4g} epochs", config.data.train[i].text, tokens,
                              config.limits.steps, train->epochs(i, samples)));
  }
  open("valid data", config.data.valid, valid);
  if (!train) return;
  found.look([&] { tokenizer_of(config.data, *train, valid); });
  found.look([&] {
    for (const std::string& line : data_warnings(*train, valid)) found.warn(line);
  });
}

}  // namespace

std::vector<std::filesystem::path> inputs_of(const Setup& setup, const std::string& deck) {
  std::vector<std::filesystem::path> inputs = {deck};
  for (const char* key : {"parallel.schedule_file", "machine.file"}) {
    if (const std::string& file = setup.values.text(key); !file.empty())
      inputs.emplace_back(expand_path(file));
  }
  if (const std::string& file = setup.config.unit_profile; !file.empty()) inputs.emplace_back(file);
  return inputs;
}

std::string files_text(const Setup& setup, const std::optional<std::string>& restart) {
  Findings found;
  look_at_data(setup, found);
  const RunConfig& config = setup.config;
  if (!config.init.empty() && !restart) {
    found.look([&] {
      const ModelOrigin origin = look_at_model(config.init);
      found.add("init", fmt::format("{}: {}", config.init, origin.kind));
    });
  }
  if (!config.eval.choices.empty()) {
    found.look([&] {
      const EvalConfig& eval = config.eval;
      const std::int64_t count = count_choices(eval.choices, eval.choices_style, eval.choices_limit);
      found.add("choices", fmt::format("{}: {} questions", eval.choices, count));
    });
  }
  if (!config.data.ranks.empty()) found.look([&] { read_gpt2_ranks(config.data.ranks); });
  const RunPaths paths{config.run_dir};
  found.look([&] {
    const auto problem = run_directory_problem(paths, config.checkpoint.directory, restart.has_value());
    std::error_code error;
    const bool holds_run = fs::exists(paths.resolved_deck(), error);
    found.add("directory", fmt::format("{}, {}", paths.root.string(),
                                       holds_run                       ? "which holds a run"
                                       : fs::exists(paths.root, error) ? "which exists"
                                                                       : "new"));
    if (!problem.empty()) return found.warn(problem);
    if (!restart) return;
    IoThread io;
    const auto reader = open_newest(io, paths.checkpoints(), parse_step("restart", *restart),
                                    [&](const std::string& text) { found.warn(text); });
    const std::int64_t step = reader->state().step;
    found.add("restart", fmt::format("from step {}", step));
    check_continues(parse_state(reader->state().json, fmt::format("state.json of step {}", step), step),
                    config);
    if (step == config.limits.last_step())
      found.warn(fmt::format("nothing is left to train: the run has reached step {}", step));
  });
  return found.text();
}

}  // namespace mylos
