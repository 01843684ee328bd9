// SPDX-License-Identifier: BSD-3-Clause
// Models from elsewhere and for elsewhere, as a user meets them: `mylos convert`, runs that begin with
// [model] init, and files that are refused.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/tokens/hugging_face_tokenizer.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_dataset.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/io/model_test_util.hpp"

namespace mylos::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Models : public RunTest {
 protected:
  std::string at(const std::string& name) const { return (scratch() / name).string(); }
  static Outcome alone(const Words& words, const JobOptions& options = {.ranks = 1}) {
    return run_mylos(words, options);
  }
  static void expect_code(const Outcome& outcome, ExitCode code, const std::string& text) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
  static void expect_done(const Outcome& outcome, const std::string& text = "") {
    expect_code(outcome, ExitCode::done, text);
  }

  /// A run of two steps with its checkpoint.
  void make_run(const std::string& run, const Words& more = {}) const {
    Words words = {"--train.steps=2"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = train(run, words, {.ranks = 1});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }

  Outcome convert(const std::string& from, const std::string& to, const std::string& kind,
                  const Words& more = {}, const JobOptions& options = {.ranks = 1}) const {
    Words words = {"convert", from, to, "--to=" + kind};
    words.insert(words.end(), more.begin(), more.end());
    return alone(words, options);
  }

  /// All weights of a run, a checkpoint, a folder or a file.
  Weights weights_of(const fs::path& path) {
    if (is_model_file(path)) return read_all(*open_model(path));
    const fs::path checkpoints = path / "checkpoints";
    const bool is_run = fs::exists(checkpoints);
    CheckpointReader reader(weights_io_,
                            is_run ? checkpoints / step_name(steps_in(checkpoints).back()) : path);
    Weights weights;
    for (const TensorInfo& info : reader.tensors("weights.h5")) {
      std::vector<float>& values = weights[info.name];
      values.resize(static_cast<std::size_t>(info.size()));
      reader.read({"weights.h5", info, parts_of_range(info, 0, info.size(), values.data())});
    }
    return weights;
  }

  /// The names in a folder.
  static std::set<std::string> names_in(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
  }

  /// Writes `value` over an element of a weight of a Hugging Face folder in fp32.
  static void replace_weight(const fs::path& folder, const std::string& tensor, std::size_t element,
                             float value) {
    const fs::path file = folder / "model.safetensors";
    std::string content = slurp(file);
    std::uint64_t size = 0;
    std::memcpy(&size, content.data(), sizeof size);
    const auto header = nlohmann::json::parse(content.substr(sizeof size, size));
    const std::size_t begin = header.at("transformer." + tensor).at("data_offsets").at(0);
    std::memcpy(content.data() + sizeof size + size + begin + element * sizeof value, &value, sizeof value);
    spill(file, content);
  }

 private:
  IoThread weights_io_;
};

using Convert = Models;

TEST_F(Convert, KeepsEveryBitBetweenAllKinds) {
  make_run("run");
  const Weights expected = weights_of(run_path("run"));
  ASSERT_EQ(expected.size(), 28U);
  const std::string kinds[] = {"hf", "llmc", "checkpoint"};
  for (const std::string& kind : kinds)
    expect_done(convert(run_path("run").string(), at(kind), kind),
                ", from " + run_path("run").string() + " (checkpoint of step 2)");
  for (const std::string& from : kinds) {
    EXPECT_EQ(weights_of(at(from)), expected) << from;
    for (const std::string& to : kinds) {
      const std::string result = at(from + "_" + to);
      expect_done(convert(at(from), result, to));
      EXPECT_EQ(weights_of(result), expected) << from << " to " << to;
    }
  }
  expect_done(convert(checkpoint_path("run", 2).string(), at("step") + "/", "hf"));
  EXPECT_EQ(weights_of(at("step")), expected);
  const std::string header = slurp(at("step") + "/model.safetensors").substr(0, 300);
  EXPECT_THAT(header, AllOf(HasSubstr(R"("format":"pt")"), HasSubstr(R"("mylos_step":"2")"),
                            HasSubstr(checkpoint_path("run", 2).string())));
  for (const std::string& name : names_in(scratch())) EXPECT_THAT(name, Not(HasSubstr(".tmp")));
}

/// "n_inner" of Hugging Face; llm.c's format has no place for it.
TEST_F(Convert, KeepsTheWidthOfFeedForwardLayers) {
  make_run("run", {"--model.feed_forward=80"});
  expect_done(convert(run_path("run").string(), at("hf"), "hf"));
  expect_done(alone({"inspect", at("hf")}), "width 32, feed-forward 80, context 16");
  expect_done(convert(at("hf"), at("checkpoint"), "checkpoint"));
  EXPECT_EQ(weights_of(at("checkpoint")), weights_of(run_path("run")));
  expect_done(alone({"eval", at("checkpoint"), "--data=" + tokens().string()}));
  expect_code(convert(at("hf"), at("llmc"), "llmc"), ExitCode::bad_data, "but the model's have 80");
}

TEST_F(Convert, RoundsToTheTypeOfTheResult) {
  const std::string fp32_model = reference_model("fp32").string();
  const Weights exact = reference_weights(reference_shape);
  expect_done(convert(fp32_model, at("bf16"), "hf", {"--dtype=bf16"}));
  EXPECT_EQ(weights_of(at("bf16")), rounded<bf16>(exact));
  expect_done(convert(fp32_model, at("fp16"), "hf", {"--dtype=fp16"}));
  EXPECT_EQ(weights_of(at("fp16")), rounded<fp16>(exact));
  expect_done(convert(fp32_model, at("bf16.bin"), "llmc", {"--dtype=bf16"}));
  EXPECT_EQ(weights_of(at("bf16.bin")), rounded<bf16>(exact));
  // By default, the type is that of the source; one that holds the values keeps them.
  expect_done(convert(at("bf16"), at("again.bin"), "llmc"));
  EXPECT_EQ(slurp(at("again.bin")), slurp(at("bf16.bin")));
  expect_done(convert(at("fp16"), at("wide.bin"), "llmc", {"--dtype=fp32"}));
  EXPECT_EQ(weights_of(at("wide.bin")), rounded<fp16>(exact));
  expect_done(convert(reference_model("bf16_shards").string(), at("one_file"), "hf"));
  EXPECT_EQ(weights_of(at("one_file")), rounded<bf16>(reference_weights(untied(reference_shape))));
  expect_done(convert(at("one_file"), at("untied"), "checkpoint", {"--dtype=fp32"}));
  EXPECT_EQ(weights_of(at("untied")), weights_of(at("one_file")));
}

TEST_F(Convert, RefusesBeforeAnythingIsWritten) {
  make_run("run");
  const std::string run = run_path("run").string();
  const std::string shards = reference_model("bf16_shards").string();
  spill(at("file"), "content");
  fs::create_directory(at("folder"));
  fs::create_symlink("nowhere", at("link"));
  fs::create_directory(at("half.tmp"));
  const std::set<std::string> before = names_in(scratch());
  const std::tuple<Words, ExitCode, std::string> cases[] = {
      {{run, at("file"), "--to=llmc"}, ExitCode::usage, "file exists: there is a file; name another place"},
      {{run, at("folder"), "--to=hf"}, ExitCode::usage, "folder exists: there is a folder"},
      {{run, at("folder") + "/", "--to=hf"}, ExitCode::usage, "folder exists: there is a folder"},
      {{run, at("link"), "--to=hf"}, ExitCode::usage, "link exists: there is a link to nowhere"},
      {{run, at("half"), "--to=checkpoint"}, ExitCode::usage, "half.tmp exists: there is a folder"},
      {{run, at("none/new"), "--to=hf"}, ExitCode::usage, "none/new cannot be written: there is no folder"},
      {{run, at("file/new"), "--to=hf"}, ExitCode::usage, "file/new cannot be written: there is no folder"},
      {{run, "", "--to=hf"}, ExitCode::usage, "the name of the result is empty"},
      {{run, run, "--to=hf"}, ExitCode::usage, "run exists"},
      {{run}, ExitCode::usage, "mylos convert needs the name of the result"},
      {{run, at("new")}, ExitCode::usage, "needs --to=hf, --to=checkpoint or --to=llmc"},
      {{run, at("new"), "--to=onnx"}, ExitCode::usage, "--to=onnx must be hf, checkpoint or llmc"},
      {{run, at("new"), "--to=hf", "--dtype=int8"}, ExitCode::usage, "--dtype=int8 must be fp32, bf16 or"},
      {{run, at("new"), "--to=checkpoint", "--dtype=bf16"},
       ExitCode::usage,
       "--dtype=bf16: a checkpoint is always in fp32"},
      {{run, at("new"), "--to=llmc", "--dtype=fp16"}, ExitCode::bad_data, "has fp32 and bf16, not fp16"},
      {{shards, at("new"), "--to=llmc"}, ExitCode::bad_data, "the model's head is not tied"},
      {{run, at("new"), "--to=hf", "--step=7"}, ExitCode::bad_data, "step_000007"},
      {{shards, at("new"), "--to=hf", "--step=1"}, ExitCode::usage, "--step is for a run directory, but"},
      {{at("none"), at("new"), "--to=hf"}, ExitCode::bad_data, "none does not exist"},
      {{tokens().string(), at("new"), "--to=hf"}, ExitCode::bad_data, "train.bin is no model"},
      {{at("folder"), at("new"), "--to=hf"}, ExitCode::bad_data, "folder is no model"},
      {{shards, at("new"), "--to=hf", "--ranks=" + at("none")}, ExitCode::io, "none"},
  };
  for (const auto& [words, code, text] : cases) {
    Words all = {"convert"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = alone(all);
    expect_code(outcome, code, text);
    EXPECT_EQ(occurrences(outcome.output, "\n"), 1) << outcome.output;
  }
  expect_code(convert(run, at("new"), "hf", {}, {.ranks = 2}), ExitCode::usage, "convert is for one process");
  EXPECT_EQ(names_in(scratch()), before);
  EXPECT_EQ(slurp(at("file")), "content");
  EXPECT_TRUE(fs::is_empty(at("folder")));
}

/// The signal comes while a write waits, so that it is there when the next weight is read.
TEST_F(Convert, LeavesNothingIfASignalStopsIt) {
  make_run("run");
  fs::create_directory(at("place"));
  int write = 1;
  for (const char* kind : {"hf", "llmc", "checkpoint"}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      const std::string release = at(fmt::format("release{}", write));
      const std::string plan = fmt::format("{}:0:pwrite:{}:-2", at("place"), write++);
      Job job(
          {"convert", run_path("run").string(), at("place/new"), std::string("--to=") + kind},
          {.ranks = 1,
           .environment = {"LD_PRELOAD=" MYLOS_PRELOADED, "MYLOS_FAIL=" + plan, "MYLOS_RELEASE=" + release}});
      job.wait_until([&] { return occurrences(job.output(), "failing call: pwrite") == 1; });
      ::kill(job.rank(0), signal);
      spill(release, "");
      expect_code(job.wait(), ExitCode::preempted, "stopped by a signal: nothing was written");
      EXPECT_TRUE(fs::is_empty(at("place"))) << kind << " " << signal;
    }
  }
}

TEST_F(Convert, LeavesNothingOnAFullDisk) {
  make_run("run");
  fs::create_directory(at("place"));
  for (const char* kind : {"hf", "llmc", "checkpoint"}) {
    for (const char* call : {"pwrite:1", "pwrite:4", "fsync:1", "fsync:2", "rename:1"}) {
      const std::string plan = fmt::format("{}:0:{}:{}", at("place"), call, ENOSPC);
      const Outcome outcome =
          convert(run_path("run").string(), at("place/new"), kind, {},
                  {.ranks = 1, .environment = {"LD_PRELOAD=" MYLOS_PRELOADED, "MYLOS_FAIL=" + plan}});
      expect_code(outcome, ExitCode::io, "No space left on device");
      EXPECT_TRUE(fs::is_empty(at("place"))) << kind << " " << call;
    }
  }
}

TEST_F(Convert, WritesTheTokenizerOfBytes) {
  make_run("run");
  const std::string run = run_path("run").string();
  expect_done(convert(run, at("hf"), "hf"));
  EXPECT_THAT(names_in(at("hf")),
              testing::IsSupersetOf({"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"}));
  const FoundTokenizer found = find_tokenizer(at("hf"));
  ASSERT_NE(found.tokenizer, nullptr) << found.reason;
  EXPECT_EQ(found.tokenizer->identity().name, "bytes");
  // So that a model from its folder takes the same text, and again as a checkpoint.
  expect_done(convert(at("hf"), at("checkpoint"), "checkpoint"));
  const Words how = {"--prompt=the quick ", "--tokens=12"};
  std::set<std::string> texts;
  for (const std::string& model : {run, at("hf"), at("checkpoint")}) {
    const Outcome outcome = alone(Words{"generate", model, how[0], how[1]});
    expect_done(outcome, "the quick ");
    texts.insert(outcome.output);
  }
  EXPECT_EQ(texts.size(), 1U);
}

TEST_F(Convert, WritesTheTokenizerOfGpt2) {
  const char* data = std::getenv("MYLOS_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "MYLOS_TEST_DATA is not set";
  const std::string ranks = (fs::path(data) / "gpt2.tiktoken").string();
  const Words large = {"--model.vocab=50304", "--model.width=8",       "--model.heads=1",
                       "--model.layers=1",    "--data.tokenizer=none", "--train.global_batch=1"};
  make_run("large", large);
  make_run("small");
  expect_done(convert(run_path("large").string(), at("large.bin"), "llmc"));
  expect_done(convert(at("large.bin"), at("hf"), "hf", {"--ranks=" + ranks}));
  const FoundTokenizer found = find_tokenizer(at("hf"));
  ASSERT_NE(found.tokenizer, nullptr) << found.reason;
  EXPECT_EQ(found.tokenizer->identity(), make_tokenizer("gpt2=" + ranks)->identity());
  expect_done(alone({"generate", at("hf"), "--prompt=Hello, world", "--tokens=3"}), "Hello, world");
  expect_done(alone({"generate", at("large.bin"), "--prompt=Hello", "--tokens=3", "--ranks=" + ranks}),
              "Hello");
  // A model of bytes is none of GPT-2's tokens, and has no rows for them.
  expect_done(convert(run_path("small").string(), at("bytes"), "hf", {"--ranks=" + ranks}),
              "--ranks is not used: the model's tokenizer, bytes, has no ranks");
  EXPECT_EQ(find_tokenizer(at("bytes")).tokenizer->identity().name, "bytes");
  expect_done(convert(run_path("small").string(), at("small.bin"), "llmc"));
  for (const std::string command : {"convert", "generate"}) {
    Words words = {command, at("small.bin"), "--ranks=" + ranks};
    if (command == "convert") words.insert(words.end(), {at("new"), "--to=hf"});
    expect_code(alone(words), ExitCode::usage, "has 50257 tokens, but the model 257");
  }
  EXPECT_FALSE(fs::exists(at("new")));
  // A run that begins with the folder keeps its ranks, and needs the folder no more.
  write_sidecar(tokens(), {.tokenizer = found.tokenizer->identity(),
                           .vocab = 50257,
                           .tokens = 7300,
                           .content = std::string(32, '0'),
                           .documents = 1});
  spill(at("choices.jsonl"), R"({"ctx": "Hello,", "endings": [" world", " there"], "label": 0})");
  Words tuned = large;
  tuned.insert(tuned.end(), {"--model.init=" + at("hf"), "--eval.choices=" + at("choices.jsonl"),
                             "--eval.every=1", "--checkpoint.every=1", "--train.steps=3"});
  Words first = tuned;
  first.push_back("--train.stop_step=2");
  expect_done(train("tuned", first, {.ranks = 1}), "questions)");
  fs::remove_all(at("hf"));
  tuned.push_back("--restart");
  const Outcome rest = train("tuned", tuned, {.ranks = 1});
  expect_done(rest, ", bitwise");
  EXPECT_EQ(occurrences(rest.output, "questions)"), 1) << rest.output;
  const std::string run = run_path("tuned").string();
  expect_done(alone({"generate", run, "--prompt=Hello, world", "--tokens=3"}), "Hello, world");
  expect_done(convert(run, at("tuned_hf"), "hf"));
  EXPECT_EQ(find_tokenizer(at("tuned_hf")).tokenizer->identity(), found.tokenizer->identity());
}

/// Its own copy, then the file that its deck names, which may begin where the run was started.
TEST_F(Convert, FindsTheRanksOfARun) {
  const char* data = std::getenv("MYLOS_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "MYLOS_TEST_DATA is not set";
  fs::copy_file(fs::path(data) / "gpt2.tiktoken", at("deck.tiktoken"));
  make_run("run", {"--model.vocab=50257", "--model.width=8", "--model.heads=1", "--model.layers=1",
                   "--data.tokenizer=gpt2", "--data.ranks=" + at("deck.tiktoken"), "--train.global_batch=1"});
  const std::string run = run_path("run").string();
  const fs::path own = run_path("run") / "gpt2.tiktoken";
  const auto expect_found = [&](const std::string& to) {
    expect_done(convert(run, at(to), "hf"));
    EXPECT_EQ(find_tokenizer(at(to)).tokenizer->identity().name, "gpt2");
    expect_done(alone({"generate", run, "--prompt=Hello", "--tokens=1"}), "Hello");
  };
  ASSERT_TRUE(fs::exists(own));
  fs::rename(at("deck.tiktoken"), at("moved.tiktoken"));
  expect_found("by_own");
  fs::remove(own);
  const Outcome without = convert(run, at("without"), "hf");
  expect_done(without, "warning: the ranks of gpt2 were not found; looked for: ");
  EXPECT_THAT(without.output, HasSubstr("deck.tiktoken; name them with --ranks=FILE: no tokenizer files"));
  EXPECT_FALSE(fs::exists(at("without/tokenizer.json")));
  expect_code(alone({"generate", run, "--prompt=Hello"}), ExitCode::usage, "name them with --ranks=FILE");
  fs::rename(at("moved.tiktoken"), at("deck.tiktoken"));
  expect_found("by_deck");
  spill(at("deck.tiktoken"), slurp(at("deck.tiktoken")) + "enp6eg== 50256\n");
  expect_code(convert(run, at("new"), "hf"), ExitCode::bad_data, "deck.tiktoken does not hold GPT-2's ranks");
  EXPECT_FALSE(fs::exists(at("new")));
}

TEST_F(Convert, ARunDoesNotContinueFromTheResult) {
  make_run("run");
  fs::create_directories(run_path("other") / "checkpoints");
  expect_done(convert(run_path("run").string(), checkpoint_path("other", 2).string(), "checkpoint"));
  EXPECT_THAT(verify_checkpoint(checkpoint_path("other", 2)), testing::IsEmpty());
  const Outcome outcome = train("other", {"--restart"}, {.ranks = 1});
  expect_code(outcome, ExitCode::bad_data, "holds weights, but no states of the optimizer");
  EXPECT_THAT(outcome.output, HasSubstr("[model] init begins one with its weights"));
}

class InitialModel : public Models {
 protected:
  InitialModel() {
    std::string text = slurp(deck());
    for (const char* key : {"layers = 2\n", "heads = 2\n", "width = 32\n", "context = 16\n", "vocab = 257\n"})
      text.erase(text.find(key), std::string(key).size());
    spill(deck(), text);
  }
  /// A run of random weights: `train` needs the shape, which the deck leaves open.
  void make_random_run(const std::string& run, const Words& more = {}) const {
    Words words = {"--model.layers=2", "--model.heads=2", "--model.width=32", "--model.context=16",
                   "--model.vocab=257"};
    words.insert(words.end(), more.begin(), more.end());
    make_run(run, words);
  }
  void make_sources() const {
    make_random_run("source");
    for (const char* kind : {"hf", "llmc", "checkpoint"})
      expect_done(convert(run_path("source").string(), at(kind), kind));
  }
  static std::string digest_in(const std::string& text) {
    const std::size_t begin = text.find(", digest ");
    return begin == std::string::npos ? "" : text.substr(begin + 9, 16);
  }
  nlohmann::json initial_of(const std::string& run, std::int64_t step) const {
    return nlohmann::json::parse(slurp(checkpoint_path(run, step) / "state.json")).at("initial");
  }
};

TEST_F(InitialModel, IsTheSameFromAllSourcesInAllLayouts) {
  make_sources();
  const std::string run = run_path("source").string();
  const std::tuple<std::string, std::string, int, Words> cases[] = {
      {at("hf"), "Hugging Face folder", 1, {}},
      {at("hf"), "Hugging Face folder", 2, {}},
      {at("hf"), "Hugging Face folder", 2, {"--parallel.exchange=zero3"}},
      {at("hf"), "Hugging Face folder", 2, {"--parallel.pipeline=2"}},
      {at("llmc"), "llm.c file (version 3)", 2, {"--parallel.exchange=zero1"}},
      {at("llmc"), "llm.c file (version 3)", 2, {"--parallel.tensor=2", "--parallel.vocab=true"}},
      {at("checkpoint"), "checkpoint of step 2", 2, {"--parallel.exchange=zero2"}},
      {run, "checkpoint of step 2", 2, {"--parallel.tensor=2"}},
      {run, "checkpoint of step 2", 4, {"--parallel.pipeline=2", "--parallel.exchange=zero1"}},
      {checkpoint_path("source", 2).string(), "checkpoint of step 2", 3, {"--train.dtype=bf16"}},
  };
  std::set<std::string> digests;
  std::optional<double> loss;  // in fp32, of the first case
  for (const auto& [source, kind, ranks, more] : cases) {
    SCOPED_TRACE(source + testing::PrintToString(more));
    fs::remove_all(run_path("run"));
    Words words = {"--model.init=" + source, "--train.steps=1", "--optim.warmup=0"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = train("run", words, {.ranks = ranks});
    expect_done(outcome, fmt::format("initial weights of {} ({}), digest ", source, kind));
    digests.insert(digest_in(outcome.output));
    const nlohmann::json initial = initial_of("run", 1);
    EXPECT_EQ(initial.at("path"), source);
    EXPECT_EQ(initial.at("kind"), kind);
    digests.insert(initial.at("digest"));
    const double seen = steps_table("run")["loss"].at(0);
    EXPECT_NEAR(seen, loss.value_or(seen), 5e-3);
    loss = loss.value_or(seen);
  }
  EXPECT_EQ(digests.size(), 1U);
  expect_done(alone({"report", run_path("run").string()}));
  EXPECT_THAT(slurp(run_path("run") / "report.html"),
              HasSubstr(fmt::format("(checkpoint of step 2), digest {}", *digests.begin())));
}

/// In bf16, the weights with which the model computes are rounded, but not the master, which is exported.
TEST_F(InitialModel, BecomesTheMasterUnrounded) {
  make_sources();
  const Words still = {"--model.init=" + at("hf"), "--train.dtype=bf16", "--optim.lr=0", "--train.steps=2",
                       "--parallel.exchange=zero1"};
  const Outcome outcome = train("run", still);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_done(convert(run_path("run").string(), at("out"), "hf", {"--dtype=fp32"}));
  EXPECT_EQ(weights_of(at("out")), weights_of(at("hf")));
}

TEST_F(InitialModel, GivesTheFirstPositionsToASmallerContext) {
  make_sources();
  ASSERT_EQ(
      train("run", {"--model.init=" + at("llmc"), "--model.context=6", "--optim.lr=0", "--train.steps=2"})
          .exit_code,
      0);
  Weights expected = weights_of(at("llmc"));
  expected["wpe.weight"].resize(6U * 32);
  EXPECT_EQ(weights_of(run_path("run")), expected);
}

TEST_F(InitialModel, HasTheShapeThatTheDeckSays) {
  make_sources();
  const std::string init = "--model.init=" + at("hf");
  const std::pair<std::string, std::string> cases[] = {
      {"--model.layers=3", "[model] layers = 3, but layers = 2 in "},
      {"--model.heads=4", "[model] heads = 4, but heads = 2 in "},
      {"--model.width=64", "[model] width = 64, but width = 32 in "},
      {"--model.feed_forward=96", "[model] feed_forward = 96, but feed_forward = 128 in "},
      {"--model.context=17", "[model] context = 17, but context = 16 in "},
      {"--model.vocab=258", "[model] vocab = 258, but vocab = 257 in "},
      {"--model.tied=false", "[model] tied = false, but tied = true in "},
      {"--model.preset=gpt2-124m", "[model] width = 768, but width = 32 in "},
      {"--model.init=" + at("none"), "given twice"},
  };
  for (const auto& [option, text] : cases)
    expect_code(train("run", {init, option}, {.ranks = 1}), ExitCode::usage, text);
  expect_code(train("run", {"--model.init=" + at("none")}), ExitCode::bad_data, "[model] init: ");
  expect_code(train("run", {"--model.init=" + tokens().string()}), ExitCode::bad_data,
              "train.bin is no model");
  EXPECT_FALSE(fs::exists(run_path("run")));
}

TEST_F(InitialModel, IsNotNeededForARestart) {
  make_sources();
  const std::string init = "--model.init=" + at("hf");
  const Outcome first = train("run", {init, "--train.stop_step=2"});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  ASSERT_EQ(train("whole", {init}).exit_code, 0);
  const nlohmann::json initial = initial_of("run", 2);
  fs::remove_all(at("hf"));
  Words plan = train_arguments("run", {init, "--restart", "--dry-run"});
  const Outcome planned = alone(plan);
  expect_done(planned, "restart      from step 2");
  EXPECT_THAT(planned.output, Not(HasSubstr("warning")));
  const Outcome rest = train("run", {init, "--restart", "--train.stop_step=4"});
  expect_done(rest, ", bitwise");
  EXPECT_THAT(rest.output, Not(HasSubstr("initial weights")));
  // From the resolved deck, and with another name for what is gone.
  expect_done(run_mylos({"train", (run_path("run") / "resolved.deck").string(), "--restart",
                         "--model.init=" + at("moved"), "--train.stop_step=0", "--progress=plain"}),
              ", bitwise");
  expect_same_run("run", "whole", 8);
  EXPECT_EQ(initial_of("run", 8), initial);
  expect_done(convert(run_path("run").string(), at("weights"), "checkpoint"));
  EXPECT_EQ(nlohmann::json::parse(slurp(at("weights") + "/state.json")).at("initial"), initial);
  EXPECT_THAT(slurp(run_path("run") / "report.html"), HasSubstr(at("hf") + " (Hugging Face folder), digest"));
}

/// The resolved deck of a run without a checkpoint gives the shape, and the source may have changed since.
TEST_F(InitialModel, IsCheckedAgainIfThereIsNoCheckpointYet) {
  make_sources();
  const std::string init = "--model.init=" + at("hf");
  ASSERT_EQ(train("run", {init, "--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  fs::remove_all(run_path("run") / "checkpoints");
  const Words wider = {"--model.width=64", "--model.layers=2", "--model.heads=2", "--model.context=16",
                       "--model.vocab=257"};
  make_run("wide", wider);
  fs::remove_all(at("hf"));
  expect_done(convert(run_path("wide").string(), at("hf"), "hf"));
  expect_code(train("run", {init, "--restart"}), ExitCode::usage,
              "[model] width = 32 in this run, but width = 64 in ");
}

TEST_F(InitialModel, OfARunIsThatOfItsNewestUndamagedCheckpoint) {
  make_random_run("source", {"--checkpoint.every=1"});
  spill(checkpoint_path("source", 2) / "state.json", "");
  const std::string init = "--model.init=" + run_path("source").string();
  expect_done(alone(train_arguments("run", {init, "--dry-run"})), "checkpoint of step 1");
  const Outcome outcome = train("run", {init, "--train.steps=2"});
  expect_done(outcome, "(checkpoint of step 1), digest ");
  EXPECT_THAT(outcome.output, HasSubstr("step_000002 is not whole and is passed over"));
  fs::remove(checkpoint_path("source", 1) / "state.json");
  expect_code(train("other", {init}), ExitCode::bad_data, "step_000001/state.json");
  expect_code(convert(run_path("source").string(), at("new"), "hf"), ExitCode::bad_data, "checkpoint");
  EXPECT_FALSE(fs::exists(run_path("other")) || fs::exists(at("new")));
}

TEST_F(InitialModel, OfAnotherTokenizerIsRefused) {
  make_sources();
  write_sidecar(tokens(), {.tokenizer = {.name = "gpt2", .ranks = std::string(32, '0')},
                           .vocab = 257,
                           .tokens = 7300,
                           .content = std::string(32, '0'),
                           .documents = 1});
  for (const char* source : {"hf", "checkpoint"}) {
    expect_code(train("run", {"--model.init=" + at(source), "--data.tokenizer=none"}), ExitCode::usage,
                "is a model of tokens of bytes, but the data are tokens of gpt2");
  }
  EXPECT_FALSE(fs::exists(run_path("run")));
}

/// Each rank looks in its own folder.
TEST_F(InitialModel, MustBeTheSameOnAllRanks) {
  make_sources();
  make_random_run("other", {"--train.seed=2"});
  const Words wrapper = {"sh", "-c", "cd '" + scratch().string() + "'/own$PMI_RANK && exec \"$@\"", "sh"};
  const auto train_apart = [&](const std::string& first, const std::string& second) {
    int rank = 0;
    for (const std::string& source : {first, second}) {
      const fs::path own = scratch() / fmt::format("own{}", rank++);
      fs::remove_all(own);
      fs::create_directory(own);
      fs::create_symlink(source, own / "model");
    }
    return train("run", {"--model.init=model", "--train.steps=2"}, {.wrapper = wrapper});
  };
  const Outcome weights = train_apart(at("hf"), run_path("other").string());
  EXPECT_EQ(weights.exit_code, static_cast<int>(ExitCode::usage)) << weights.output;
  EXPECT_THAT(weights.output, HasSubstr("this must be the same on all ranks"));
  expect_done(convert(run_path("other").string(), at("other_hf"), "hf"));
  const Outcome values = train_apart(at("hf"), at("other_hf"));
  expect_code(values, ExitCode::usage, "rank 1: its weights = ");
  EXPECT_THAT(values.output, HasSubstr("this must be the same on all ranks"));
  EXPECT_EQ(train_apart(at("hf"), at("none")).exit_code, static_cast<int>(ExitCode::bad_data));
  EXPECT_FALSE(fs::exists(run_path("run")));
  fs::copy(at("hf"), at("copy"), fs::copy_options::recursive);
  expect_done(train_apart(at("hf"), at("copy")), "initial weights of model (Hugging Face folder)");
}

TEST_F(InitialModel, WithDamagedValuesLeavesNothingInTheWay) {
  make_sources();
  fs::copy(at("hf"), at("damaged"), fs::copy_options::recursive);
  replace_weight(at("damaged"), "h.1.mlp.c_fc.weight", 128 * 5 + 77, std::numeric_limits<float>::quiet_NaN());
  const std::string damaged = "--model.init=" + at("damaged");
  // A dry run reads only headers.
  expect_done(alone(train_arguments("run", {damaged, "--dry-run"})), "damaged: Hugging Face folder");
  EXPECT_FALSE(fs::exists(run_path("run")));
  for (const int ranks : {1, 2}) {
    expect_code(train("run", {damaged}, {.ranks = ranks}), ExitCode::bad_data,
                "tensor transformer.h.1.mlp.c_fc.weight is nan at [5, 77]");
    expect_status("run", "failed", ExitCode::bad_data);
    EXPECT_TRUE(checkpoint_steps("run").empty());
    expect_code(run_mylos({"eval", at("damaged"), "--data=" + tokens().string()}, {.ranks = ranks}),
                ExitCode::bad_data, "is nan at [5, 77]");
  }
  const Outcome again = train("run", {"--model.init=" + at("hf")});
  expect_done(again, "done at step 8");
  expect_every_step_once("run", 8);
}

/// One case for each reader and each way to name a model; the rules themselves are tested with the readers.
class HostileModel : public Models {
 protected:
  /// A copy of a reference folder.
  fs::path copy_of(const std::string& model) {
    const fs::path folder = scratch() / fmt::format("model{}", copies_++);
    fs::copy(reference_model(model), folder, fs::copy_options::recursive);
    return folder;
  }
  /// A copy in which `file` has `to` in place of `from`.
  fs::path changed(const std::string& model, const std::string& file, const std::string& from,
                   const std::string& to) {
    fs::path folder = copy_of(model);
    std::string text = slurp(folder / file);
    const std::size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << file << " has no " << from;
    if (place != std::string::npos) spill(folder / file, text.replace(place, from.size(), to));
    return folder;
  }

 private:
  int copies_ = 0;
};

TEST_F(HostileModel, IsRefusedByEveryCommand) {
  const std::string huge(8, '\x7f');
  const fs::path long_header = copy_of("fp32");
  spill(long_header / "model.safetensors", huge + slurp(long_header / "model.safetensors").substr(8));
  const fs::path pickled = copy_of("fp32");
  fs::rename(pickled / "model.safetensors", pickled / "pytorch_model.bin");
  const fs::path short_file = scratch() / "short.bin";
  spill(short_file, slurp(reference_model("llmc_fp32.bin")).substr(0, 30000));
  const fs::path version = scratch() / "version.bin";
  std::string header = slurp(reference_model("llmc_fp32.bin"));
  header[4] = 4;
  spill(version, header);
  const fs::path lost = copy_of("bf16_shards");
  fs::remove(lost / "model-00002-of-00002.safetensors");
  const fs::path broken = copy_of("fp32");
  spill(broken / "tokenizer.json", "{\"model\": ");
  const std::pair<fs::path, std::string> cases[] = {
      {long_header, "model.safetensors"},
      {changed("fp32", "model.safetensors", "transformer.h.0.attn.c_proj.bias",
               "transformer.h.0.attn.c_proj.bia5"),
       "transformer.h.0.attn.c_proj.bia5"},
      {changed("fp32", "model.safetensors", R"("shape":[16,64])", R"("shape":[64,16])"), "transposed"},
      {changed("fp32", "config.json", "gelu_new", "relu"), "activation_function"},
      {changed("fp32", "config.json", R"("n_head": 2)", R"("n_head": 3)"), "n_head"},
      {changed("fp32", "config.json", R"("n_head": 2)", R"("n_head": 2, "n_head": 2)"), "n_head"},
      {changed("bf16_shards", "model.safetensors.index.json", "model-00002-of-00002.safetensors",
               "../model0/model.safetensors"),
       "../model0/model.safetensors"},
      {lost, "model-00002-of-00002.safetensors"},
      {broken, "tokenizer.json"},
      {short_file, "short.bin"},
      {version, "version 4"},
      {pickled, "reading pickle executes code"},
      {pickled / "pytorch_model.bin", "pytorch_model.bin"},
  };
  const std::set<std::string> before = names_in(scratch());
  int number = 0;
  for (const auto& [model, text] : cases) {
    SCOPED_TRACE(model.string() + ": " + text);
    // Each command opens each kind of model in the same way; the commands take turns to save time.
    const Words commands[] = {{"convert", model.string(), at("out"), "--to=hf"},
                              {"eval", model.string(), "--data=" + tokens().string()},
                              {"generate", model.string(), "--prompt=x"}};
    const Outcome converted = alone(commands[0]);
    expect_code(converted, ExitCode::bad_data, text);
    EXPECT_EQ(occurrences(converted.output, "\n"), 1) << converted.output;
    expect_code(run_mylos(commands[1 + number++ % 2], {.ranks = 2}), ExitCode::bad_data, text);
  }
  const Words tokens_of_model = {"--data.tokenizer=none", "--model.layers=0",  "--model.heads=0",
                                 "--model.width=0",       "--model.context=0", "--model.vocab=0"};
  for (const fs::path& model : {long_header, short_file, lost}) {
    Words words = tokens_of_model;
    words.push_back("--model.init=" + model.string());
    expect_code(train("run", words), ExitCode::bad_data, "[model] init: ");
  }
  EXPECT_EQ(names_in(scratch()), before);
}

}  // namespace
}  // namespace mylos::test
