// SPDX-License-Identifier: BSD-3-Clause
// Texts that are continued through the cache of keys and values, and rows of questions that are read through
// it, are those of the same windows without a cache: in every layout, with rows of different lengths, and
// past the context.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/inference/text_generator.hpp"
#include "app/train/choice_evaluator.hpp"
#include "core/base/kinds.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/distant_backend.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

constexpr std::int64_t context = 20;
constexpr std::int64_t vocab = 23;

/// Which tokens go where in the model.
struct Routing {
  const char* name;
  bool has_experts, has_depths;
};

class Generation : public testing::TestWithParam<Routing> {
 protected:
  RunConfig config(std::int64_t data = 1, std::int64_t tensor = 1, DType dtype = DType::fp32,
                   const char* exchange = "ddp") const {
    ModelConfig model;
    model.layers = 2;
    model.heads = 4;
    model.width = 4 * 17;
    model.context = context;
    model.vocab = vocab;
    model.vocab_multiple = 8;
    // The first block, and the first of two stages, has no experts.
    if (GetParam().has_experts)
      model.experts = {.count = 4, .per_token = 2, .width = 24, .every = 2, .capacity = 1.0};
    if (GetParam().has_depths) model.depths = {.capacity = 0.3, .every = 1};
    RunConfig run = mini_config(model, data, context, data);
    run.train.dtype = dtype;
    run.parallel.tensor = tensor;
    set_exchange(run, exchange, data);
    return run;
  }

  static std::span<const std::int32_t> kept_prompt(std::int64_t number, std::int64_t size) {
    static std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int32_t>> kept;
    return kept.try_emplace({number, size}, prompt(number, size)).first->second;
  }
  static std::vector<std::int32_t> prompt(std::int64_t number, std::int64_t size) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < size; ++i)
      tokens.push_back(static_cast<std::int32_t>((7 * number + 5 * i + i * i) % vocab));
    return tokens;
  }
  /// Prompts shorter and longer than pieces and context, one token, and more than the cache has rows.
  static std::vector<TextJob> jobs() {
    std::vector<TextJob> jobs;
    for (const std::int64_t size : {1, 9, 3, 20, 27, 8, 16}) {
      const std::int64_t number = std::ssize(jobs);
      jobs.push_back({.prompt = number, .sample = number % 2, .tokens = kept_prompt(number, size)});
    }
    return jobs;
  }

  /// The initial weights, made large enough that logits differ, with the same values in every layout.
  void set_weights(MiniTrainer& trainer) {
    for (const Parameter& parameter : trainer.table().parameters()) {
      std::vector<float> values = trainer.weight(parameter.name);
      if (parameter.shape.size() == 1) continue;
      for (float& value : values) value *= 12.0F;
      trainer.set_weight(parameter.name, values);
    }
  }

  std::map<std::int64_t, Completion> generate(RunConfig run, const std::vector<TextJob>& all,
                                              std::int64_t rows, const GenerationSettings& settings) {
    run.cache = generation_cache(context, rows);
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_of(run), run);
    set_weights(trainer);
    const ProcessGrid& grid = trainer.grid();
    std::vector<TextJob> own;
    for (std::size_t i = static_cast<std::size_t>(grid.coordinates().index(sample_axes)); i < all.size();
         i += static_cast<std::size_t>(grid.coordinates().extent(sample_axes)))
      own.push_back(all[i]);
    TextGenerator generator(backend_, grid, trainer.program(), trainer.executor(), settings);
    std::map<std::int64_t, Completion> found;
    for (Completion& completion : generator.run(own)) found[completion.prompt] = std::move(completion);
    const bool has_block = std::ranges::any_of(
        trainer.table().units(), [](const Unit& unit) { return unit.name.starts_with("block"); });
    EXPECT_EQ(ledger.current(MemoryCategory::cache) > 0, has_block);
    return found;
  }

  /// The configurations with stages on all ranks: on 4, also with two tensor ranks or two data ranks each.
  std::vector<RunConfig> with_stages() const {
    std::vector<RunConfig> runs;
    const auto add = [&](int data, int tensor, int pipeline, const char* schedule) {
      RunConfig run = config(data, tensor);
      run.parallel.pipeline = pipeline;
      run.parallel.splits.vocab = tensor > 1;
      run.parallel.schedule = &find_kind(schedules(), schedule);
      runs.push_back(run);
    };
    if (ranks() > 1 && ranks() <= 4) add(1, 1, ranks(), "accumulate");
    if (ranks() == 2) add(1, 1, 2, "zero_bubble_v");
    if (ranks() == 4) add(1, 2, 2, "1f1b");
    if (ranks() == 4) add(2, 1, 2, "zero_bubble_v");
    if (ranks() == 4 && GetParam().has_experts) {
      add(2, 1, 2, "1f1b");
      runs.back().parallel.expert = 2;
    }
    return runs;
  }

  static bool can_divide_experts(const RunConfig& run) {
    return run.model.experts.count > 0 && run.parallel.data % 2 == 0;
  }

  Communicator* world_of(const RunConfig& run) {
    return run.parallel.world_size() == 1 ? self_.get() : world_.get();
  }
  int ranks() const { return world_->size(); }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

GenerationSettings settings_of(double temperature, std::int64_t tokens) {
  GenerationSettings settings;
  settings.sampling.temperature = temperature;
  settings.most_tokens = tokens;
  return settings;
}

/// The window that predicts the token after the first `size` of `tokens`: what the rule of `--help` says,
/// followed token by token.
std::pair<std::int64_t, std::int64_t> window_of(std::int64_t prompt, std::int64_t size) {
  std::int64_t begin = std::max<std::int64_t>(0, prompt - context);
  for (std::int64_t end = prompt; end <= size; ++end) {
    if (end - begin > context) begin += context / 2;
  }
  return {begin, size};
}

TEST_P(Generation, GreedyTextIsThatOfWindowsWithoutACache) {
  constexpr std::int64_t wanted = 45;  // the window is dropped twice or more
  const std::vector<TextJob> all = jobs();
  const auto found = generate(config(), all, 3, settings_of(0.0, wanted));
  ASSERT_EQ(found.size(), all.size());
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *self_, config());
  set_weights(trainer);
  std::map<std::int32_t, int> different;
  for (const TextJob& job : all) {
    SCOPED_TRACE(fmt::format("prompt {}", job.prompt));
    const Completion& completion = found.at(job.prompt);
    std::vector<std::int32_t> tokens(job.tokens.begin(), job.tokens.end());
    ASSERT_EQ(std::ssize(completion.tokens), wanted);
    for (std::int64_t i = 0; i < wanted; ++i) {
      const auto [begin, end] = window_of(std::ssize(job.tokens), std::ssize(tokens));
      const std::int32_t next = completion.tokens[static_cast<std::size_t>(i)];
      std::vector<std::int32_t> inputs(context, 0), targets(context, -1);
      std::copy(tokens.begin() + begin, tokens.begin() + end, inputs.begin());
      const auto last = static_cast<std::size_t>(end - begin - 1);
      targets[last] = next;
      trainer.executor().load_evaluation(inputs, targets);
      trainer.executor().evaluate();
      EXPECT_EQ(trainer.executor().evaluation_correct()[last], 1) << "token " << i;
      EXPECT_NEAR(completion.logprobs[static_cast<std::size_t>(i)],
                  -trainer.executor().evaluation_losses()[last], 2e-5);
      ++different[next];
      tokens.push_back(next);
    }
  }
  EXPECT_GT(different.size(), 5U) << "the model says more than one thing";
}

TEST_P(Generation, EveryLayoutContinuesTheSameTexts) {
  const std::vector<TextJob> all = jobs();
  const GenerationSettings settings = settings_of(0.9, 30);
  const auto expected = generate(config(), all, 2, settings);
  const auto expect_same = [&](const RunConfig& run) {
    for (const auto& [prompt, completion] : generate(run, all, 3, settings)) {
      const Completion& same = expected.at(prompt);
      EXPECT_EQ(completion.tokens, same.tokens);
      ASSERT_EQ(completion.logprobs.size(), same.logprobs.size());
      for (std::size_t i = 0; i < same.logprobs.size(); ++i)
        EXPECT_NEAR(completion.logprobs[i], same.logprobs[i], 2e-5);
    }
  };
  for (const RunConfig& run : with_stages()) {
    SCOPED_TRACE(fmt::format("{} stages of {}, {} tensor ranks", run.parallel.pipeline,
                             run.parallel.schedule->name, run.parallel.tensor));
    expect_same(run);
  }
  for (int tensor = 1; tensor <= std::min(ranks(), 4); ++tensor) {
    if (ranks() % tensor != 0 || 4 % tensor != 0) continue;
    for (const char* exchange : {"ddp", "zero3"}) {
      for (const bool vocab_too : {false, true}) {
        SCOPED_TRACE(fmt::format("{} tensor ranks, {}, vocabulary divided: {}", tensor, exchange, vocab_too));
        RunConfig run = config(ranks() / tensor, tensor, DType::fp32, exchange);
        run.parallel.splits.vocab = vocab_too && tensor > 1;
        expect_same(run);
        if (!can_divide_experts(run)) continue;
        run.parallel.expert = 2;
        expect_same(run);
      }
    }
  }
}

TEST_P(Generation, LogProbabilitiesHaveTheSameBitsInAnyBatch) {
  const std::vector<TextJob> all = jobs();
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const GenerationSettings settings = settings_of(0.9, 30);
    const auto together = generate(config(1, 1, dtype), all, 8, settings);
    std::vector<TextJob> many = all;
    for (std::int64_t i = 0; i < 6; ++i)
      many.push_back({.prompt = 100 + i, .sample = 0, .tokens = kept_prompt(i, 4)});
    const auto in_groups = generate(config(1, 1, dtype), many, 12, settings);
    const auto in_turn = generate(config(1, 1, dtype), all, 2, settings);
    const auto on_all_ranks = generate(config(ranks(), 1, dtype), all, 4, settings);
    for (const TextJob& job : all) {
      SCOPED_TRACE(fmt::format("{}, prompt {}", name_of(dtype), job.prompt));
      const auto alone = generate(config(1, 1, dtype), {job}, 1, settings);
      const Completion& expected = alone.at(job.prompt);
      for (const auto* batch : {&together, &in_groups, &in_turn, &on_all_ranks}) {
        const auto found = batch->find(job.prompt);
        if (found == batch->end()) continue;  // of another rank
        EXPECT_EQ(found->second.tokens, expected.tokens);
        EXPECT_EQ(found->second.logprobs, expected.logprobs);
      }
    }
  }
}

TEST_P(Generation, RowsOfQuestionsHaveTheLossesOfWindows) {
  ChoiceQuestions questions;
  questions.max_length = context;
  for (std::int64_t i = 0; i < 9; ++i) {
    EncodedChoice choice{.number = i, .label = i % 3, .context = {}, .endings = {}, .code_points = {}};
    for (const std::int32_t token : prompt(i, 1 + 3 * i))
      choice.context.push_back(static_cast<std::uint16_t>(token));
    for (std::int64_t ending = 0; ending < 3 + i % 2; ++ending) {
      choice.endings.emplace_back();
      for (const std::int32_t token : prompt(i + 11 * ending, 1 + 2 * ending))
        choice.endings.back().push_back(static_cast<std::uint16_t>(token));
      const ChoiceRow row = choice.row(static_cast<std::size_t>(ending), context);
      questions.longest = std::max(questions.longest, std::ssize(row.tokens) - 1);
      questions.tokens += std::ssize(row.tokens) - 1;
    }
    questions.questions.push_back(choice);
  }
  std::vector<ChoiceScore> scores;
  {
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *self_, config());
    set_weights(trainer);
    for (const EncodedChoice& choice : questions.questions) {
      std::vector<EndingLoss> losses;
      for (std::size_t ending = 0; ending < choice.endings.size(); ++ending) {
        const ChoiceRow row = choice.row(ending, context);
        const std::int64_t size = std::ssize(row.tokens) - 1;
        std::vector<std::int32_t> inputs(context, 0), targets(context, -1);
        EndingLoss& loss = losses.emplace_back(EndingLoss{.tokens = row.num_targets, .is_greedy = true});
        for (std::int64_t i = 0; i < size; ++i) {
          inputs[static_cast<std::size_t>(i)] = row.tokens[static_cast<std::size_t>(i)];
          if (i >= size - row.num_targets)
            targets[static_cast<std::size_t>(i)] = row.tokens[static_cast<std::size_t>(i) + 1];
        }
        trainer.executor().load_evaluation(inputs, targets);
        trainer.executor().evaluate();
        for (std::int64_t i = size - row.num_targets; i < size; ++i) {
          loss.loss += trainer.executor().evaluation_losses()[static_cast<std::size_t>(i)];
          loss.is_greedy =
              loss.is_greedy && trainer.executor().evaluation_correct()[static_cast<std::size_t>(i)] != 0;
        }
      }
      scores.push_back(score_choice(choice, losses));
    }
  }
  const ChoiceSummary expected = summarize_choices(scores);
  const auto expect_same = [&](RunConfig run, std::int64_t tokens) {
    run.cache = choice_cache(questions, tokens, run.parallel.data);
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, run);
    set_weights(trainer);
    const ChoiceResult result =
        *evaluate_choices(trainer.executor(), backend_, trainer.grid(), run.cache, questions);
    EXPECT_EQ(result.summary.examples, 9);
    EXPECT_EQ(result.summary.accuracy.mean, expected.accuracy.mean);
    EXPECT_EQ(result.summary.normalised_accuracy.mean, expected.normalised_accuracy.mean);
    EXPECT_EQ(result.summary.greedy.mean, expected.greedy.mean);
    EXPECT_NEAR(result.summary.right_token_loss, expected.right_token_loss, 1e-5);
    // The ranks of a pipeline agree less often.
    int calls = 0;
    const auto interrupted = [&] { return ++calls == (run.parallel.pipeline == 1 ? 3 : 1); };
    EXPECT_FALSE(
        evaluate_choices(trainer.executor(), backend_, trainer.grid(), run.cache, questions, interrupted));
  };
  for (const RunConfig& run : with_stages()) {
    SCOPED_TRACE(fmt::format("{} stages of {}, {} tensor ranks", run.parallel.pipeline,
                             run.parallel.schedule->name, run.parallel.tensor));
    for (const std::int64_t tokens : {1, 100, 2000}) expect_same(run, tokens);
  }
  for (int tensor = 1; tensor <= std::min(ranks(), 4); ++tensor) {
    if (ranks() % tensor != 0 || 4 % tensor != 0) continue;
    for (const char* exchange : {"ddp", "zero3"}) {
      for (const std::int64_t tokens : {1, 100, 2000}) {
        SCOPED_TRACE(fmt::format("{} tensor ranks, {}, {} tokens per pass", tensor, exchange, tokens));
        RunConfig run = config(ranks() / tensor, tensor, DType::fp32, exchange);
        expect_same(run, tokens);
        if (!can_divide_experts(run)) continue;
        run.parallel.expert = 2;
        expect_same(run, tokens);
      }
    }
  }
}

/// Rows of 40 to 120 tokens, which share passes: little is computed that no row asked for.
TEST_P(Generation, RowsOfQuestionsCostTheirOwnLength) {
  RunConfig run = config();
  run.model.context = 128;
  ChoiceQuestions questions;
  questions.max_length = run.model.context;
  for (std::int64_t i = 0; i < 40; ++i) {
    EncodedChoice choice{.number = i, .label = 0, .context = {}, .endings = {}, .code_points = {}};
    choice.context.assign(static_cast<std::size_t>(36 + 29 * i % 70), 3);
    for (std::int64_t ending = 0; ending < 4; ++ending) {
      choice.endings.emplace_back(static_cast<std::size_t>(5 + (7 * i + 5 * ending) % 11), 4);
      const std::int64_t inputs = std::ssize(choice.context) + std::ssize(choice.endings.back()) - 1;
      questions.longest = std::max(questions.longest, inputs);
      questions.tokens += inputs;
    }
    questions.questions.push_back(choice);
  }
  ASSERT_LE(questions.longest, 120);
  for (const std::int64_t most_tokens : {64, 128, 512}) {
    run.cache = choice_cache(questions, most_tokens, 1);
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *self_, run);
    const ChoiceResult result =
        *evaluate_choices(trainer.executor(), backend_, trainer.grid(), run.cache, questions);
    EXPECT_GE(result.computed, questions.tokens);
    EXPECT_LE(static_cast<double>(result.computed), 1.3 * static_cast<double>(questions.tokens))
        << most_tokens;
  }
}

/// A pass over the cache is recorded when it runs for the second time, and replayed at other positions and
/// rows. The first run of another pass drops the records.
TEST_P(Generation, PassesAreReplayedAtOtherPositions) {
  DistantBackend device(backend_);
  const std::unique_ptr<Communicator> self = open_communicator("self", &device);
  RunConfig run = config();
  run.cache = generation_cache(context, 3);
  constexpr std::size_t one = 0;
  ASSERT_EQ(run.cache.passes[one].texts, 1);
  ASSERT_EQ(run.cache.passes[one].tokens, 1);
  const auto of_three = static_cast<std::size_t>(
      std::ranges::find_if(run.cache.passes, [](const CachedPass& pass) { return pass.texts >= 3; }) -
      run.cache.passes.begin());
  ASSERT_LT(of_three, run.cache.passes.size());
  const auto texts = static_cast<std::size_t>(run.cache.passes[of_three].texts);
  ASSERT_EQ(run.cache.passes[of_three].tokens, 1);
  const auto logits_of = [&](bool graphs, std::vector<int>& captures) {
    run.graphs = graphs;
    MemoryLedger ledger;
    MiniTrainer trainer(device, ledger, *self, run);
    set_weights(trainer);
    ModelExecutor& executor = trainer.executor();
    const int before = device.device().num_captures();
    std::vector<float> all;
    const auto keep = [&](std::int64_t count) {
      const std::span<const float> logits = executor.cached_logits();
      all.insert(all.end(), logits.begin(), logits.begin() + count * vocab);
      captures.push_back(device.device().num_captures() - before);
    };
    std::int32_t token = 2;
    const auto continue_one = [&](std::int32_t row, std::int32_t position) {
      token = (5 * token + 3) % vocab;
      executor.continue_texts(one, {.tokens = {&token, 1}, .rows = {&row, 1}, .positions = {&position, 1}});
      keep(1);
    };
    const auto continue_three = [&](std::vector<std::int32_t> positions) {
      std::vector<std::int32_t> tokens(texts, 4), rows(texts, executor.padding_row());
      for (std::int32_t i = 0; i < 3; ++i) rows[static_cast<std::size_t>(i)] = 2 - i;
      positions.resize(texts);
      executor.continue_texts(of_three, {.tokens = tokens, .rows = rows, .positions = positions});
      keep(3);
    };
    continue_one(1, 0);         // not recorded
    continue_one(1, 1);         // recorded
    continue_one(1, 2);         // replayed
    continue_one(2, 0);         // replayed in another row
    continue_three({1, 3, 0});  // not recorded; drops the other record
    continue_one(0, 1);         // recorded again
    continue_three({2, 4, 2});  // recorded
    continue_three({3, 5, 3});  // replayed
    continue_one(0, 4);         // replayed
    return all;
  };
  std::vector<int> captures, no_captures;
  const std::vector<float> expected = logits_of(false, no_captures);
  EXPECT_EQ(logits_of(true, captures), expected);
  EXPECT_THAT(captures, testing::ElementsAre(0, 1, 1, 1, 1, 2, 3, 3, 3));
  EXPECT_THAT(no_captures, testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(Models, Generation,
                         testing::Values(Routing{"dense", false, false}, Routing{"depths", false, true},
                                         Routing{"experts_and_depths", true, true}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace mylos
