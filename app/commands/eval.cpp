// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "app/commands/commands.hpp"
#include "app/evaluator.hpp"
#include "app/inference.hpp"
#include "core/base/number_text.hpp"
#include "core/base/say.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {
      {"data", OptionKind::text, "token files, in the syntax of [data] valid; the run's own by default"},
      step_option(),
      {"max-loss", OptionKind::real, "exit with code 17 if the loss is larger or not finite"},
  };
}

int run(const CommandLine& line) {
  if (line.has("data")) parse_validation_sources(line.text("data"));
  return with_inference(line, 0, !line.has("data"), [&](const MpiRuntime& mpi, Inference& model) {
    const RunConfig& config = model.setup.config;
    const std::vector<DataSource> files =
        line.has("data") ? parse_validation_sources(line.text("data")) : config.data.valid;
    if (files.empty()) fail(ExitCode::usage, "the run has no [data] valid; name a token file with --data");
    std::optional<TokenDataset> dataset;
    const auto open = [&] {
      dataset.emplace(open_dataset(files, config.model.vocab, config.train.seq_len, config.train.seed,
                                   config.data.tokenizer));
    };
    if (const int code = run_agreed(mpi, open)) return code;
    if (const int code = check_identity(mpi, fmt::format("content of --data = {}\n", dataset->identity())))
      return code;
    if (mpi.rank() == 0) {
      std::vector<std::string> warnings = dataset->warnings();
      std::ranges::copy(repeated_files(nullptr, &*dataset), std::back_inserter(warnings));
      for (const std::string& warning : warnings) say(stderr, "warning: {}\n", warning);
    }
    const EvalResult result =
        *evaluate(*model.executor, model.session->compute(), *dataset, 0, model.session->grid());
    if (mpi.rank() == 0) {
      fmt::print("step {}: loss {} nats per token, accuracy {:.2f} %, perplexity {} ({} tokens of {})\n",
                 model.step, decimals(result.loss, 4), 100.0 * result.accuracy,
                 decimals(std::exp(result.loss), 3), result.tokens, files.front().text);
    }
    // A loss that is not finite passes no limit, not even an infinite one.
    if (line.has("max-loss") && !(std::isfinite(result.loss) && result.loss <= line.real("max-loss"))) {
      if (mpi.rank() == 0) {
        say(stderr, "mylos: the loss {} is not within --max-loss={}\n", decimals(result.loss, 4),
            line.real("max-loss"));
      }
      return static_cast<int>(ExitCode::numerical);
    }
    return 0;
  });
}

}  // namespace

const Command eval_command{
    .name = "eval",
    .arguments = "RUN|CHECKPOINT",
    .summary = "compute the validation loss and accuracy of a checkpoint, on any number of ranks",
    .options = options,
    .run = run,
    .takes_overrides = true};

}  // namespace mylos
