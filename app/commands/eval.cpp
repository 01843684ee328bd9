// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "app/commands/choice_evaluation.hpp"
#include "app/commands/commands.hpp"
#include "app/inference/inference.hpp"
#include "app/train/evaluator.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/number_text.hpp"
#include "core/base/say.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

std::vector<CommandOption> options() {
  std::vector<CommandOption> own = {
      {.name = "data",
       .kind = OptionKind::text,
       .doc = "token files, in the syntax of [data] valid; the run's own by default",
       .may_differ = true},
      {"stride",
       OptionKind::integer,
       "windows begin this many tokens apart, and each counts the targets that no earlier one has counted: "
       "every token of a file except its first; by default, whole windows follow one another",
       {},
       {},
       1},
      {"per-token", OptionKind::text, "write every target's token, loss and hit to this HDF5 file"},
      {"max-loss", OptionKind::real, "exit with code 17 if the loss is larger or not finite"},
  };
  for (const CommandOption& option : choice_options()) own.push_back(option);
  const std::vector<CommandOption> common = inference_options();
  own.insert(own.end(), common.begin(), common.end());
  return own;
}

/// The tokenizer of the data according to a sidecar or, without one, the model's; null if it is not known, or
/// cannot be made here.
std::shared_ptr<const Tokenizer> find_tokenizer(const CommandLine& line, const Inference& model,
                                                const TokenDataset& dataset) {
  const std::optional<TokenDataset::Origin>& origin = dataset.origin();
  if (origin && !tokenizer_kind(origin->tokenizer.name).has_ranks)
    return make_tokenizer(origin->tokenizer.name);
  std::shared_ptr<const Tokenizer> found;
  try {
    std::string reason;
    found = find_model_tokenizer(line, *model.source, reason);
  } catch (const Error&) {
    if (line.has("ranks")) throw;
  }
  return found != nullptr && origin && found->identity() != origin->tokenizer ? nullptr : found;
}

/// `mylos eval --data`, from the command line to the output.
class DataEvaluation {
 public:
  explicit DataEvaluation(const CommandLine& line) : line_(line) {
    if (line.has("data")) sources_ = parse_validation_sources(line.text("data"));
    if (line.has("stride")) stride_ = line.integer("stride");
  }

  /// Opens the data, and checks that --per-token can be written.
  void prepare(const Launch& launch, const Inference& model) {
    launch.agree([&] { open(launch, model); });
    const std::string identity =
        fmt::format("content of --data = {}\n--stride = {}\n--per-token is given = {}\n",
                    dataset_->identity(), stride_.value_or(0), line_.has("per-token"));
    launch.check_same(identity);
    if (!launch.is_first()) return;
    std::vector<std::string> warnings = dataset_->warnings();
    std::ranges::copy(repeated_files(nullptr, &*dataset_), std::back_inserter(warnings));
    for (const std::string& warning : warnings) say(stderr, "warning: {}\n", warning);
  }

  int run(const Launch& launch, Inference& model) {
    EvalOptions how{.stride = stride_, .tokenizer = tokenizer_.get()};
    std::optional<TargetFileWriter> writer;
    if (line_.has("per-token")) {
      if (launch.is_first()) writer.emplace(*model.io, target_file_, target_info(model));
      how.take_targets = [&](std::span<const TargetResult> results) {
        if (writer) writer->append(results);
      };
    }
    const EvalResult result =
        *evaluate(*model.executor, model.session->compute(), *dataset_, model.session->grid(), how);
    if (writer) writer->finish();
    if (launch.is_first()) print(model, result);
    // A loss that is not finite passes no limit, not even an infinite one.
    if (line_.has("max-loss") && !(std::isfinite(result.loss) && result.loss <= line_.real("max-loss"))) {
      if (launch.is_first()) {
        say(stderr, "mylos: the loss {} is not within --max-loss={}\n", decimals(result.loss, 4),
            line_.real("max-loss"));
      }
      return static_cast<int>(ExitCode::numerical);
    }
    return 0;
  }

 private:
  void open(const Launch& launch, const Inference& model) {
    const RunConfig& config = model.setup.config;
    if (!line_.has("data")) sources_ = config.data.valid;
    if (sources_.empty())
      fail(ExitCode::usage, "{} has no [data] valid; name a token file with --data",
           model.source->is_checkpoint() ? "the run" : "the model");
    if (stride_ > config.train.seq_len)
      fail(ExitCode::usage, "--stride={} must be at most {}, the number of tokens of a window", *stride_,
           config.train.seq_len);
    dataset_.emplace(open_dataset(sources_, config.model.vocab, config.train.seq_len, config.train.seed,
                                  config.data.tokenizer, stride_ ? ShortFiles::read : ShortFiles::skipped));
    tokenizer_ = find_tokenizer(line_, model, *dataset_);
    if (line_.has("per-token") && launch.is_first()) {
      std::vector<fs::path> inputs;
      for (const TokenFile& data : dataset_->files()) inputs.emplace_back(data.path());
      target_file_ = output_file(line_, "per-token", inputs);
    }
  }

  TargetFileInfo target_info(const Inference& model) const {
    const EvaluationWindows windows(*dataset_, stride_);
    return {.model = line_.arguments.front(),
            .step = model.source->origin().step,
            .context = dataset_->seq_len(),
            .stride = windows.stride(),
            .data = dataset_->identity(),
            .targets = windows.targets()};
  }

  void print(const Inference& model, const EvalResult& result) const {
    const std::optional<double> bits = result.bits_per_byte();
    fmt::print("{}: loss {} nats per token, accuracy {:.2f} %, perplexity {}{} ({} tokens of {})\n",
               model.name(), decimals(result.loss, 4), 100.0 * result.accuracy,
               decimals(std::exp(result.loss), 3),
               bits ? fmt::format(", bits per byte {}", decimals(*bits, 3)) : "", result.tokens,
               sources_.front().text);
  }

  const CommandLine& line_;
  std::vector<DataSource> sources_;
  std::optional<std::int64_t> stride_;
  std::optional<TokenDataset> dataset_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  fs::path target_file_;  // on rank 0
};

int run_with(const CommandLine& line, bool needs_valid, auto evaluation) {
  return with_inference(
      line, {.needs_valid = needs_valid,
             .prepare = [&](const Launch& launch, Inference& model) { evaluation.prepare(launch, model); },
             .run = [&](const Launch& launch, Inference& model) { return evaluation.run(launch, model); }});
}

int run(const CommandLine& line) {
  check_choice_options(line);
  if (line.has("choices")) return run_with(line, false, ChoiceEvaluation(line));
  return run_with(line, !line.has("data"), DataEvaluation(line));
}

}  // namespace

const Command eval_command{
    .name = "eval",
    .arguments = model_argument,
    .summary = "compute a model's loss on data, or its answers to multiple choice questions",
    .options = options,
    .run = run,
    .takes_overrides = true};

}  // namespace mylos
