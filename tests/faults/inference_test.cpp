// SPDX-License-Identifier: BSD-3-Clause
// What `mylos generate` and `mylos eval --choices` give, alone, in batches and on several ranks, and choices
// that are answered during training.
#include <cmath>
#include <csignal>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/join.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class OfAModel : public RunTest {
 protected:
  std::string at(const std::string& name) const { return (scratch() / name).string(); }
  std::string run() const { return run_path("run").string(); }
  static void expect_code(const Outcome& outcome, ExitCode code, const std::string& text) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
  static void expect_done(const Outcome& outcome, const std::string& text = "") {
    expect_code(outcome, ExitCode::done, text);
  }
  static std::vector<nlohmann::json> lines_of(const std::string& text) {
    std::vector<nlohmann::json> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  static Words joined(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

class GeneratedTexts : public OfAModel {
 protected:
  GeneratedTexts() {
    spill(at("prompts.jsonl"),
          "{\"prompt\": \"the quick \"}\n"
          "{\"tokens\": [116, 104, 101]}\n"
          "{\"prompt\": \"again and again and again and again and \"}\n"
          "\n"
          "{\"prompt\": \"\"}\n"
          "{\"prompt\": \"x\", \"note\": [1, 2]}\n");
  }
  /// A run that prefers the text's letters, but is not sure of anything.
  void make_run(const Words& more = {}) const {
    const Outcome outcome = train("run", joined({"--checkpoint.every=0"}, more), {.ranks = 1});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  /// The lines that `generate` writes for a file of prompts.
  std::string generated(const std::string& model, int ranks, const Words& more,
                        const std::string& prompts = "prompts.jsonl") const {
    fs::remove(at("texts.jsonl"));
    const Outcome outcome = run_mylos(
        joined({"generate", model, "--prompts=" + at(prompts), "--output=" + at("texts.jsonl"), "--top-k=0"},
               more),
        {.ranks = ranks});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return slurp(at("texts.jsonl"));
  }
};

/// Texts that pass the context of 16 tokens, beside prompts of any length. Bit for bit, but along the tensor
/// axis, where sums have another order.
TEST_F(GeneratedTexts, DependOnNeitherBatchNorRanks) {
  make_run();
  const Words warm = {"--temperature=1", "--tokens=24"};
  for (const char* dtype : {"--dtype=fp32", "--dtype=bf16"}) {
    const Words how = joined(warm, {dtype});
    const std::string texts = generated(run(), 1, joined(how, {"--samples=2"}));
    const std::vector<nlohmann::json> lines = lines_of(texts);
    ASSERT_EQ(lines.size(), 10U);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].at("prompt"), i / 2);
      EXPECT_EQ(lines[i].at("sample"), i % 2);
    }
    EXPECT_NE(lines[0].at("tokens"), lines[1].at("tokens"));
    const std::pair<int, Words> others[] = {{1, {"--batch=1"}},
                                            {1, {"--batch=3"}},
                                            {2, {}},
                                            {3, {"--batch=2"}},
                                            {2, {"--parallel.exchange=zero3"}},
                                            {4, {"--parallel.pipeline=2"}}};
    for (const auto& [ranks, more] : others)
      EXPECT_EQ(generated(run(), ranks, joined(how, joined({"--samples=2"}, more))), texts)
          << ranks << testing::PrintToString(more) << dtype;
    // The first prompt by itself, as number 0.
    spill(at("one.jsonl"), "{\"prompt\": \"the quick \"}\n");
    EXPECT_EQ(generated(run(), 1, how, "one.jsonl"), texts.substr(0, texts.find('\n') + 1));
    EXPECT_NE(generated(run(), 1, joined(how, {"--samples=2", "--seed=2"})), texts);
  }
  const std::vector<nlohmann::json> whole = lines_of(generated(run(), 1, warm));
  for (const Words& tensor :
       {Words{"--parallel.tensor=2"}, Words{"--parallel.tensor=2", "--parallel.vocab=true"}}) {
    const std::vector<nlohmann::json> divided = lines_of(generated(run(), 2, joined(warm, tensor)));
    ASSERT_EQ(divided.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(divided[i].at("tokens"), whole[i].at("tokens"));
      for (std::size_t t = 0; t < whole[i].at("logprobs").size(); ++t)
        EXPECT_NEAR(divided[i].at("logprobs")[t].get<double>(), whole[i].at("logprobs")[t].get<double>(),
                    1e-5);
    }
  }
}

TEST_F(GeneratedTexts, HaveTheirTokensAndTheirEnd) {
  make_run();
  const std::vector<nlohmann::json> whole =
      lines_of(generated(run(), 1, {"--temperature=1", "--tokens=200", "--seed=4"}));
  ASSERT_EQ(whole.size(), 5U);
  for (const nlohmann::json& line : whole) {
    const std::vector<int> ids = line.at("tokens");
    EXPECT_EQ(line.at("logprobs").size(), ids.size());
    for (const double logprob : line.at("logprobs")) EXPECT_LT(logprob, 0.0);
    const bool ends = ids.back() == 256;
    EXPECT_EQ(line.at("finish"), ends ? "end" : "length");
    EXPECT_TRUE(ends || ids.size() == 200U);
  }
  // The greedy text is printable; a stop text ends it, wherever tokens begin.
  const Words greedy = {"--temperature=0", "--tokens=12"};
  const auto text_with = [&](const Words& how) {
    fs::remove(at("texts.jsonl"));
    const Outcome outcome =
        run_mylos(joined({"generate", run(), "--prompt=the quick ", "--output=" + at("texts.jsonl")}, how),
                  {.ranks = 1});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return lines_of(slurp(at("texts.jsonl"))).at(0);
  };
  const nlohmann::json plain = text_with(greedy);
  const std::string text = plain.at("text");
  ASSERT_EQ(text.size(), 12U);
  const std::string stop = text.substr(5, 2);
  const nlohmann::json stopped = text_with(joined(greedy, {"--stop=none of it", "--stop=" + stop}));
  EXPECT_EQ(stopped.at("text"), text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.at("finish"), "stop");
  EXPECT_EQ(stopped.at("tokens").size(), text.find(stop) + 2);
  // With the smallest nucleus, sampling is greedy; with a large penalty, no letter comes twice.
  EXPECT_EQ(text_with({"--temperature=1", "--top-k=0", "--top-p=1e-9", "--tokens=12"}).at("tokens"),
            plain.at("tokens"));
  const std::vector<int> ids =
      text_with({"--temperature=0", "--tokens=12", "--repetition-penalty=1e6"}).at("tokens");
  EXPECT_EQ(std::set<int>(ids.begin(), ids.end()).size(), ids.size());
  // One text is shown while it is generated; several have headings.
  const Outcome shown = run_mylos(joined({"generate", run(), "--prompt=the quick "}, greedy), {.ranks = 2});
  EXPECT_EQ(shown.output.substr(0, shown.output.find('\n')), "the quick " + text);
  const Outcome several =
      run_mylos(joined({"generate", run(), "--prompt=the quick ", "--samples=2"}, greedy), {.ranks = 2});
  expect_done(several, "== prompt 0, sample 0 (length)\nthe quick " + text + "\n");
  expect_done(several, "== prompt 0, sample 1 (length)\nthe quick " + text + "\n");
}

/// The model's table has 300 rows, its tokenizer 257 tokens.
TEST_F(GeneratedTexts, HaveNoTokensThatTheTokenizerLacks) {
  make_run({"--model.vocab=300", "--train.steps=1", "--optim.warmup=0"});
  const Words wild = {"--temperature=1e9", "--samples=20", "--tokens=24"};
  const auto largest = [&](const std::string& texts) {
    int most = 0;
    for (const nlohmann::json& line : lines_of(texts)) {
      for (const int id : line.at("tokens")) most = std::max(most, id);
    }
    return most;
  };
  for (const Words& more : {Words{}, Words{"--parallel.tensor=2", "--parallel.vocab=true"}}) {
    const int most = largest(generated(run(), 2, joined(wild, more)));
    EXPECT_LE(most, 256);
    EXPECT_GE(most, 240);
  }
  // Without a tokenizer, the model takes and gives all of its ids.
  expect_done(run_mylos({"convert", run(), at("model.bin"), "--to=llmc"}, {.ranks = 1}));
  spill(at("ids.jsonl"), "{\"tokens\": [299, 0]}\n");
  EXPECT_GT(largest(generated(at("model.bin"), 1, wild, "ids.jsonl")), 256);
  EXPECT_FALSE(lines_of(slurp(at("texts.jsonl"))).at(0).contains("text"));
  const Outcome shown = run_mylos(
      {"generate", at("model.bin"), "--prompts=" + at("ids.jsonl"), "--tokens=3", "--temperature=0"});
  expect_done(shown);
  EXPECT_TRUE(std::regex_search(shown.output, std::regex("sample 0 \\(length\\)\n([0-9]+ ){3}\n")))
      << shown.output;
  spill(at("ids.jsonl"), "{\"tokens\": [0]}\n{\"tokens\": [1, 300]}\n");
  expect_code(run_mylos({"generate", at("model.bin"), "--prompts=" + at("ids.jsonl")}), ExitCode::bad_data,
              "ids.jsonl:2: \"tokens\" has the id 300 at index 1; the model's are 0 to 299");
  expect_code(run_mylos({"generate", at("model.bin"), "--prompts=" + at("prompts.jsonl")}),
              ExitCode::bad_data,
              "prompts.jsonl:1: \"prompt\" is a text, but the model has no known tokenizer");
  expect_code(run_mylos({"generate", at("model.bin"), "--prompt=x"}), ExitCode::usage,
              "give tokens with --prompts");
  expect_code(run_mylos({"generate", at("model.bin"), "--prompts=" + at("ids.jsonl"), "--stop=x"}),
              ExitCode::usage, "--stop needs the model's tokenizer");
}

/// What is dropped is said once.
TEST_F(GeneratedTexts, LoseTheirBeginningWhenTheContextIsFull) {
  make_run({"--train.steps=1", "--optim.warmup=0"});
  const auto output = [&](const Words& more) {
    return run_mylos(joined({"generate", run(), "--temperature=0"}, more)).output;
  };
  const std::string full = "the context of 16 tokens was full, and lost its older half";
  const std::string cut = "a prompt is longer than the context: only the newest 16 tokens";
  EXPECT_THAT(output({"--prompt=12345678", "--tokens=8"}), Not(HasSubstr("context")));
  EXPECT_EQ(occurrences(output({"--prompt=12345678", "--tokens=90", "--samples=4"}), full), 1);
  const std::string text = output({"--prompt=1234567890abcdefg", "--tokens=1"});
  EXPECT_EQ(occurrences(text, cut), 1) << text;
  EXPECT_THAT(output({"--prompt=1234567890abcdef", "--tokens=1"}), Not(HasSubstr(cut)));
  EXPECT_THAT(text, HasSubstr("1234567890abcdefg"));
}

TEST_F(GeneratedTexts, AreRefusedForMistakes) {
  make_run({"--train.steps=1", "--optim.warmup=0"});
  spill(at("empty.jsonl"), "\n\n");
  const std::string list = "--prompts=" + at("prompts.jsonl");
  const std::tuple<Words, ExitCode, std::string> cases[] = {
      {{list, "--prompt=x"}, ExitCode::usage, "--prompt and --prompts exclude each other"},
      {{"--prompts="}, ExitCode::usage, "--prompts is empty; name a file"},
      {{"--prompts=" + at("none")}, ExitCode::usage, "none cannot be read: there is nothing"},
      {{"--prompts=" + at("empty.jsonl")}, ExitCode::bad_data, "empty.jsonl"},
      {{"--prompts=" + tokens().string()}, ExitCode::bad_data, "is a token file, not JSON lines"},
      {{"--stop="}, ExitCode::usage, "--stop needs a text"},
      {{"--top-p=1.5"}, ExitCode::usage, "--top-p=1.5 is not between 0 and 1"},
      {{"--top-k=-1"}, ExitCode::usage, "--top-k=-1 must be at least 0"},
      {{"--repetition-penalty=0"}, ExitCode::usage, "--repetition-penalty=0 is not a positive number"},
      {{"--samples=0"}, ExitCode::usage, "--samples=0 must be at least 1"},
      {{"--batch=0"}, ExitCode::usage, "--batch=0 must be at least 1"},
      {{"--dtype=fp8"}, ExitCode::usage, "--dtype=fp8 must be fp32, bf16 or fp16"},
      {{"--parallel.tensor=3"}, ExitCode::usage, "tensor = 3 must divide [model] heads = 2"},
      {{"--parallel.sequence=true"},
       ExitCode::usage,
       "[parallel] tensor, pipeline, vocab, exchange and stages can be changed"},
      {{list, "--output="}, ExitCode::usage, "--output is empty; name a file"},
      {{list, "--output=" + at("prompts.jsonl")}, ExitCode::usage, "is one of the inputs; name another file"},
      {{list, "--output=" + run() + "/metrics.h5"}, ExitCode::usage, "is a run's file; name another file"},
      {{list, "--output=" + at("none/texts")}, ExitCode::io, "none does not exist"},
      {{list, "--samples=200001"},
       ExitCode::usage,
       "--samples=200001 of 5 prompts: a call generates at most 1000000 texts"},
  };
  const std::string metrics = slurp(run_path("run") / "metrics.h5");
  for (const auto& [words, code, text] : cases) {
    const Outcome outcome = run_mylos(joined({"generate", run(), "--tokens=2"}, words));
    expect_code(outcome, code, text);
    EXPECT_EQ(occurrences(outcome.output, "mylos: rank "), occurrences(outcome.output, "mylos: rank 0: "));
  }
  EXPECT_EQ(slurp(run_path("run") / "metrics.h5"), metrics);
  expect_done(run_mylos({"convert", run(), at("hf"), "--to=hf"}, {.ranks = 1}));
  const std::string file = at("hf") + "/config.json";
  const std::string before = slurp(file);
  expect_code(run_mylos({"generate", at("hf"), list, "--output=" + file}), ExitCode::usage,
              "config.json is a file of the model; name another file");
  EXPECT_EQ(slurp(file), before);
}

/// A pipe, which nothing may be renamed to.
TEST_F(GeneratedTexts, GoToWhateverTheOutputIs) {
  make_run({"--train.steps=1", "--optim.warmup=0"});
  const std::string expected = generated(run(), 1, {"--tokens=3"});
  const Outcome piped = run_mylos({"generate", run(), "--prompts=" + at("prompts.jsonl"), "--tokens=3",
                                   "--top-k=0", "--output=/dev/stdout"},
                                  {.ranks = 1});
  expect_done(piped, expected);
}

class Choices : public OfAModel {
 protected:
  Choices() {
    spill(
        at("choices.jsonl"),
        R"({"ctx": "the quick brown", "endings": ["fox jumps", "dog", "again and again and again", "x"], "label": 0}
{"ctx": "the lazy", "endings": ["dog, again", "fox"], "label": "0"}

{"ctx": "", "endings": ["the quick", "a", "b"], "label": 1}
{"ctx": "again and", "endings": ["again"], "label": 0}
{"ctx": "jumps over", "endings": ["the lazy dog", "again"], "label": 1}
)");
  }
  std::string choices() const { return "--choices=" + at("choices.jsonl"); }
  /// The line that `eval` prints.
  std::string evaluated(const std::string& run, int ranks, const Words& more) const {
    const Outcome outcome =
        run_mylos(joined({"eval", run_path(run).string(), choices()}, more), {.ranks = ranks});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::size_t begin = outcome.output.find("step ");
    return begin == std::string::npos
               ? outcome.output
               : outcome.output.substr(begin, outcome.output.find('\n', begin) - begin);
  }
};

TEST_F(Choices, AreAnsweredAlikeInAllLayouts) {
  ASSERT_EQ(train("run", {"--checkpoint.every=0"}, {.ranks = 1}).exit_code, 0);
  for (const char* style : {"--style=llmc", "--style=harness"}) {
    const Words output = {style, "--output=" + at("answers.jsonl")};
    const std::string line = evaluated("run", 1, output);
    EXPECT_THAT(line, HasSubstr("(5 questions)"));
    const std::string answers = slurp(at("answers.jsonl"));
    const std::vector<nlohmann::json> whole = lines_of(answers);
    ASSERT_EQ(whole.size(), 5U);
    double right = 0.0;
    int correct = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(whole[i].at("example"), i);
      const std::vector<double> losses = whole[i].at("losses");
      const auto label = whole[i].at("label").get<std::size_t>();
      EXPECT_EQ(whole[i].at("tokens").size(), losses.size());
      correct +=
          std::ranges::min_element(losses) - losses.begin() == static_cast<std::ptrdiff_t>(label) ? 1 : 0;
      right += losses[label] / whole[i].at("tokens")[label].get<double>();
    }
    EXPECT_THAT(line, HasSubstr(fmt::format("accuracy {:.2f} %", 20.0 * correct)));
    EXPECT_EQ(whole[0].at("tokens"), nlohmann::json::parse("[10, 4, 16, 2]")) << "a space and the letters";
    const std::pair<int, Words> same[] = {{2, {}},
                                          {3, {}},
                                          {2, {"--parallel.exchange=zero3"}},
                                          {2, {"--parallel.pipeline=2"}},
                                          {4, {"--parallel.pipeline=2"}}};
    for (const auto& [ranks, more] : same) {
      fs::remove(at("answers.jsonl"));
      EXPECT_EQ(evaluated("run", ranks, joined(output, more)), line);
      EXPECT_EQ(slurp(at("answers.jsonl")), answers) << ranks << testing::PrintToString(more);
    }
    EXPECT_EQ(evaluated("run", 2, joined(output, {"--parallel.tensor=2", "--parallel.vocab=true"})), line);
    const std::vector<nlohmann::json> divided = lines_of(slurp(at("answers.jsonl")));
    ASSERT_EQ(divided.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (std::size_t e = 0; e < whole[i].at("losses").size(); ++e)
        EXPECT_NEAR(divided[i].at("losses")[e].get<double>(), whole[i].at("losses")[e].get<double>(), 1e-3);
    }
    evaluated("run", 2, joined(output, {"--limit=2"}));
    EXPECT_EQ(slurp(at("answers.jsonl")), answers.substr(0, answers.find('\n', answers.find('\n') + 1) + 1));
  }
}

TEST_F(Choices, AreRefusedForMistakes) {
  ASSERT_EQ(train("run", {"--train.steps=1", "--optim.warmup=0"}, {.ranks = 1}).exit_code, 0);
  ASSERT_EQ(train("unknown", {"--train.steps=1", "--optim.warmup=0", "--data.tokenizer=none"}, {.ranks = 1})
                .exit_code,
            0);
  const std::string run = run_path("run").string();
  const std::string unknown = run_path("unknown").string();
  const std::string good = R"({"ctx": "a", "endings": ["b"], "label": 0})";
  const std::pair<std::string, std::string> bad_lines[] = {
      {R"({"ctx": "a", "endings": ["b"]})", "bad.jsonl:2: has no \"label\""},
      {R"({"ctx": "a", "endings": ["b"], "label": 1})", "bad.jsonl:2: "},
      {R"({"ctx": "a", "endings": [], "label": 0})", "bad.jsonl:2: \"endings\" is empty"},
      {R"({"endings": ["b"], "label": 0})", "bad.jsonl:2: has no \"ctx\""},
      {R"({"ctx": "a")", "bad.jsonl:2"},
  };
  for (const auto& [line, text] : bad_lines) {
    spill(at("bad.jsonl"), good + "\n" + line + "\n");
    expect_code(run_mylos({"eval", run, "--choices=" + at("bad.jsonl"), "--output=" + at("out")}),
                ExitCode::bad_data, text);
    expect_code(train("new", {"--eval.choices=" + at("bad.jsonl")}, {.ranks = 1}), ExitCode::bad_data, text);
  }
  // A limit spares what is behind it.
  expect_done(run_mylos({"eval", run, "--choices=" + at("bad.jsonl"), "--limit=1"}), "(1 questions)");
  const std::tuple<std::string, Words, ExitCode, std::string> cases[] = {
      {run, {"--choices="}, ExitCode::usage, "--choices is empty; name a file"},
      {run, {"--choices=" + at("none")}, ExitCode::usage, "none cannot be read: there is nothing"},
      {run,
       {"--choices=" + tokens().string()},
       ExitCode::bad_data,
       "train.bin is a token file, not JSON lines"},
      {run, {choices(), "--style=other"}, ExitCode::usage, "--style=other must be llmc or harness"},
      {run, {choices(), "--limit=0"}, ExitCode::usage, "--limit=0 must be at least 1"},
      {run, {choices(), "--data=x"}, ExitCode::usage, "--data and --choices exclude each other"},
      {run, {choices(), "--stride=1"}, ExitCode::usage, "--stride and --choices exclude each other"},
      {run, {choices(), "--per-token=x"}, ExitCode::usage, "--per-token and --choices exclude each other"},
      {run, {choices(), "--max-loss=1"}, ExitCode::usage, "--max-loss and --choices exclude each other"},
      {run, {"--style=llmc"}, ExitCode::usage, "--style is for --choices"},
      {run, {"--limit=1"}, ExitCode::usage, "--limit is for --choices"},
      {run, {"--output=x"}, ExitCode::usage, "--output is for --choices"},
      {run, {choices(), "--output=" + at("choices.jsonl")}, ExitCode::usage, "is one of the inputs"},
      {run, {choices(), "--output=" + run + "/metrics.h5"}, ExitCode::usage, "is a run's file"},
      {run, {choices(), "--output=" + at("none/out")}, ExitCode::io, "none does not exist"},
      {unknown,
       {choices()},
       ExitCode::usage,
       "the model's tokenizer cannot be used: [data] tokenizer = none"},
  };
  for (const auto& [model, words, code, text] : cases)
    expect_code(run_mylos(joined({"eval", model}, words)), code, text);
  expect_code(train("new", {"--eval.choices=" + at("none")}), ExitCode::usage,
              "none cannot be read: there is nothing");
  expect_code(train("new", {"--eval.every=2"}), ExitCode::usage, "needs [data] valid or [eval] choices");
  EXPECT_FALSE(fs::exists(run_path("new")));
  EXPECT_FALSE(fs::exists(at("out")));
  EXPECT_THAT(slurp(at("choices.jsonl")), HasSubstr("the quick brown"));
}

/// With and without validation data, and as `eval` computes them afterwards.
TEST_F(Choices, AreAnsweredInTraining) {
  const Words how = {"--eval.choices=" + at("choices.jsonl"), "--eval.every=2", "--checkpoint.every=2",
                     "--train.steps=4", "--checkpoint.keep=9"};
  const Outcome outcome =
      train("run", joined(how, {"--eval.choices_limit=4", "--eval.choices_style=harness"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  MetricsTable table = read_table("run", "choices");
  EXPECT_THAT(table["step"], ElementsAre(2, 4));
  EXPECT_THAT(table["examples"], ElementsAre(4, 4));
  EXPECT_TRUE(read_table("run", "eval").empty());
  for (const char* step : {"--step=2", "--step=4"}) {
    const std::string line = evaluated("run", 1, {"--limit=4", "--style=harness", step});
    EXPECT_EQ(occurrences(outcome.output, line), 1) << line << outcome.output;
  }
  EXPECT_THAT(slurp(run_path("run") / "report.html"), HasSubstr("Multiple choice"));
  const Outcome both = train("both", joined(how, {"--data.valid=" + tokens().string()}));
  ASSERT_EQ(both.exit_code, 0) << both.output;
  EXPECT_THAT(read_table("both", "choices")["examples"], ElementsAre(5, 5));
  EXPECT_EQ(read_table("both", "eval")["step"], read_table("both", "choices")["step"]);
  // Nothing about them changes what is trained.
  EXPECT_EQ(steps_table("both")["loss"], steps_table("run")["loss"]);
  EXPECT_EQ(occurrences(train("run", {"--restart", "--eval.every=1"}).output, "not bitwise"), 0);
  expect_code(run_mylos({"eval", run()}), ExitCode::usage, "the run has no [data] valid");
}

/// The signal comes at the beginning of the evaluation: none of it is recorded, and the restart makes it.
TEST_F(Choices, FollowAfterARestartIfASignalInterruptsThem) {
  const Words how = {"--eval.choices=" + at("choices.jsonl"), "--eval.every=2", "--train.steps=4",
                     "--checkpoint.every=0"};
  ASSERT_EQ(train("whole", how).exit_code, 0);
  Job job(train_arguments("run", how), {.environment = {"MYLOS_FAULT=evaluation:1:2:stop"}});
  job.wait_until([&] { return is_stopped(job.rank(1)); });
  ::kill(job.rank(0), SIGTERM);
  ::kill(job.rank(1), SIGTERM);
  ::kill(job.rank(1), SIGCONT);
  const Outcome stopped = job.wait();
  expect_code(stopped, ExitCode::preempted, "step 2: the evaluation was interrupted; a restart will run it");
  EXPECT_TRUE(read_table("run", "choices").empty());
  const Outcome rest = train("run", joined(how, {"--restart"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(read_table("run", "choices"), read_table("whole", "choices"));
  expect_same_run("run", "whole", 4);
}

}  // namespace
}  // namespace mylos::test
