// SPDX-License-Identifier: BSD-3-Clause
// Every key of the deck has an effect: two runs that differ in nothing but the key differ where they should
// and nowhere else. A key that `mylos help deck` prints and that is not listed here fails.
#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/tokens/token_dataset.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test::keys_of_decks {
namespace {

using Names = std::set<std::string>;
using Words = RunTest::Words;

/// Two runs and what must differ between them.
struct Key {
  Words a = {};
  Words b = {};
  Names differs = {};
  int ranks = 1;
  /// May differ too: what rounding or the backends of the machine decide.
  Names may_differ = {};
  /// Instead of all this: the test that shows the effect.
  const char* shown_by = nullptr;
};

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Names operator+(Names names, const Names& more) {
  names.insert(more.begin(), more.end());
  return names;
}

/// What a change of the arithmetic, the weights or the samples changes.
const Names numbers = {"loss", "norm", "weights", "states", "evaluated"};
const Names memory = {"parameters", "gradients", "optimizer", "activations", "peak"};
const Names shape = numbers + memory + Names{"model", "workspace"};
const Names other_tensors = {"tensors", "layout"};
/// What fewer or more steps change.
const Names length = numbers + Names{"steps", "rate", "tokens", "epochs", "samples", "kept", "evaluations"};

const Words spikes = {"--guard.spike_factor=1e-6", "--guard.spike_window=2", "--optim.lr=1e-9",
                      "--train.steps=8"};
const Words wsd = {"--optim.schedule=wsd", "--optim.decay_steps=1"};
const Words sgd = {"--optim.name=sgd"};
const Words muon = {"--optim.name=muon"};
const Words zero3 = {"--parallel.exchange=zero3", "--model.layers=3"};
const Words tensor = {"--parallel.tensor=2"};
const Words stages = {"--parallel.pipeline=2", "--model.layers=4", "--train.micro_batch=1"};
const Words even_stages = stages + Words{"--parallel.stages=2,2"};
const Words bf16 = {"--train.dtype=bf16"};
/// What routers record is summed over all ranks; products of other sizes may need another workspace.
const Names of_routers = {"workspace", "calls", "bytes"};
const Words experts = {"--model.experts=4"};
const Words scarce_experts = {"--model.experts=4", "--train.expert_capacity=0.5"};
const Words depths = {"--model.layers=2", "--model.depth_capacity=0.5"};
const Words choices = {"--eval.choices=choices.jsonl"};

/// With an effect in the file system, in time or on other machines only.
Key shown_by(const char* test) {
  return {.shown_by = test};
}
Key refused(const Words& words, int ranks = 1) {
  return {.b = words, .differs = {"code 2"}, .ranks = ranks};
}

const std::map<std::string, Key> keys = {
    {"model.preset",
     {{"--model.preset=gpt2-124m", "--model.layers=0"},
      {"--model.preset=gpt2-355m", "--model.layers=0"},
      shape + other_tensors}},
    {"model.init", shown_by("InitialModel.BecomesTheMasterUnrounded")},
    {"model.layers", {{}, {"--model.layers=2"}, shape + other_tensors}},
    {"model.heads", {{}, {"--model.heads=4"}, numbers + Names{"model", "activations", "peak"}}},
    // Whether products of another size need another workspace depends on the processor.
    {"model.width",
     {.b = {"--model.width=64"},
      .differs = numbers + memory + Names{"model"} + other_tensors,
      .may_differ = {"workspace"}}},
    {"model.feed_forward",
     {.b = {"--model.feed_forward=96"},
      .differs = numbers + memory + Names{"model"} + other_tensors,
      .may_differ = {"workspace"}}},
    {"model.context",
     {{"--train.seq_len=16"},
      {"--train.seq_len=16", "--model.context=32"},
      {"model", "tensors", "layout", "weights", "states", "parameters", "gradients", "optimizer", "peak"}}},
    {"model.vocab",
     {{"--data.tokenizer=none"},
      {"--data.tokenizer=none", "--model.vocab=400"},
      numbers + memory + other_tensors + Names{"model"}}},
    {"model.vocab_multiple", {.b = {"--model.vocab_multiple=257"}, .differs = memory, .may_differ = numbers}},
    {"model.tied",
     {{},
      {"--model.tied=false"},
      numbers + other_tensors + Names{"model", "parameters", "gradients", "optimizer", "workspace", "peak"}}},
    {"model.dropout", {{}, {"--model.dropout=0.1"}, numbers}},
    {"model.experts",
     {.b = experts, .differs = numbers + memory + Names{"model"} + other_tensors, .may_differ = of_routers}},
    {"model.experts_per_token",
     {.a = experts,
      .b = experts + Words{"--model.experts_per_token=1"},
      .differs = numbers + Names{"model", "activations", "peak"},
      .may_differ = of_routers}},
    {"model.expert_width",
     {.a = experts,
      .b = experts + Words{"--model.expert_width=64"},
      .differs = numbers + memory + Names{"model"} + other_tensors,
      .may_differ = of_routers}},
    {"model.expert_every",
     {.a = experts + Words{"--model.layers=2"},
      .b = experts + Words{"--model.layers=2", "--model.expert_every=2"},
      .differs = numbers + memory + Names{"model"} + other_tensors,
      .may_differ = of_routers}},
    {"model.shared_expert",
     {.a = experts,
      .b = experts + Words{"--model.shared_expert=true"},
      .differs = numbers + memory + Names{"model"} + other_tensors,
      .may_differ = of_routers}},
    {"model.router", {experts, experts + Words{"--model.router=softmax_topk"}, numbers + Names{"model"}}},
    {"model.router_noise",
     {.a = experts,
      .b = experts + Words{"--model.router_noise=normal"},
      .differs = numbers + Names{"model", "activations", "peak"}}},
    {"model.depth_capacity",
     {.a = {"--model.layers=2"},
      .b = depths,
      .differs = numbers + memory + Names{"model"} + other_tensors,
      .may_differ = of_routers}},
    {"model.depth_every",
     {.a = depths,
      .b = depths + Words{"--model.depth_every=1"},
      .differs = numbers + memory + Names{"model"} + other_tensors,
      .may_differ = of_routers}},
    {"train.expert_capacity",
     {.a = experts,
      .b = scarce_experts,
      .differs = numbers + Names{"activations", "peak"},
      .may_differ = of_routers}},
    {"train.expert_order", {scarce_experts, scarce_experts + Words{"--train.expert_order=choice"}, numbers}},
    {"train.balance_loss", {experts, experts + Words{"--train.balance_loss=1"}, numbers}},
    {"train.router_z_loss", {experts, experts + Words{"--train.router_z_loss=1"}, numbers}},
    {"train.steps", {{}, {"--train.steps=5"}, length}},
    {"train.stop_step", {{}, {"--train.stop_step=2"}, length}},
    {"train.global_batch",
     {{},
      {"--train.global_batch=8"},
      numbers + Names{"tokens", "epochs", "samples", "evaluated tokens", "activations", "peak"}}},
    {"train.micro_batch",
     {.b = {"--train.micro_batch=2"}, .differs = {"activations", "peak"}, .may_differ = numbers}},
    {"train.seq_len",
     {{},
      {"--train.seq_len=8"},
      numbers + Names{"tokens", "epochs", "evaluated tokens", "activations", "peak"}}},
    {"train.dtype", {.b = bf16, .differs = numbers + memory, .may_differ = {"workspace"}}},
    {"train.grad_dtype",
     {bf16, bf16 + Words{"--train.grad_dtype=fp32"}, numbers + Names{"gradients", "peak"}}},
    {"train.loss_scale", {{}, {"--train.loss_scale=8"}, {"scale"}}},
    {"train.loss_scale_window",
     {.a = {"--train.dtype=fp16", "--train.loss_scale=8", "--train.loss_scale_window=2"},
      .b = {"--train.dtype=fp16", "--train.loss_scale=8", "--train.loss_scale_window=1"},
      .differs = {"scale"},
      .may_differ = numbers}},
    {"train.recompute",
     {{"--model.layers=3"}, {"--model.layers=3", "--train.recompute=block"}, {"activations", "peak"}}},
    {"train.seed", {{}, {"--train.seed=2"}, numbers}},
    {"train.wall_clock", {{}, {"--train.wall_clock=0.001"}, {"code 75"}}},
    {"train.end_time", shown_by("DrivenWallClock.EndsWithTheJob")},
    {"train.end_margin", shown_by("DrivenWallClock.EndsWithTheJob")},
    {"optim.name", {{}, sgd, numbers + Names{"tensors", "optimizer", "peak"}}},
    {"optim.beta1", {{}, {"--optim.beta1=0.5"}, numbers}},
    {"optim.beta2", {{}, {"--optim.beta2=0.5"}, numbers}},
    {"optim.epsilon", {{}, {"--optim.epsilon=1e-2"}, numbers}},
    {"optim.momentum", {sgd, sgd + Words{"--optim.momentum=0.5"}, numbers}},
    {"optim.muon_momentum", {muon, muon + Words{"--optim.muon_momentum=0.5"}, numbers}},
    {"optim.muon_scale", {muon, muon + Words{"--optim.muon_scale=original"}, numbers}},
    {"optim.muon_lr", {muon, muon + Words{"--optim.muon_lr=2e-2"}, numbers}},
    {"optim.lr", {{}, {"--optim.lr=2e-2"}, numbers + Names{"rate"}}},
    {"optim.min_lr", {{}, {"--optim.min_lr=1e-3"}, numbers + Names{"rate"}}},
    {"optim.schedule", {{}, {"--optim.schedule=constant"}, numbers + Names{"rate"}}},
    {"optim.warmup", {{}, {"--optim.warmup=2"}, numbers + Names{"rate"}}},
    {"optim.decay_steps", {wsd, wsd + Words{"--optim.decay_steps=2"}, numbers + Names{"rate"}}},
    {"optim.weight_decay", {{}, {"--optim.weight_decay=0.5"}, numbers}},
    {"optim.master", {bf16, bf16 + Words{"--optim.master=none"}, numbers + Names{"optimizer", "peak"}}},
    {"optim.clip_norm", {{}, {"--optim.clip_norm=0.01"}, numbers}},
    {"optim.clip_scope", shown_by("Asynchronous.ClipAndSkipByStage")},
    {"data.train", {{}, {"--data.train=other.bin"}, numbers + Names{"epochs"}}},
    {"data.valid", {{}, {"--data.valid=other.bin"}, {"evaluated"}}},
    {"data.tokenizer", {{}, {"--data.tokenizer=none"}, {"tokenizer"}}},
    {"data.ranks", shown_by("Tokenize.GeneratesTextFromARunOnGpt2Tokens")},
    {"eval.every", {{}, {"--eval.every=1"}, {"evaluations", "evaluated"}}},
    {"eval.batches", {{}, {"--eval.batches=2"}, {"evaluated", "evaluated tokens"}}},
    {"eval.choices", {{}, choices, {"answered", "answers", "cache", "peak"}}},
    {"eval.choices_style", {choices, choices + Words{"--eval.choices_style=harness"}, {"answers"}}},
    {"eval.choices_limit",
     {.a = choices,
      .b = choices + Words{"--eval.choices_limit=1"},
      .differs = {"answered"},
      .may_differ = {"cache", "peak"}}},
    {"parallel.data", refused({"--parallel.data=1"}, 2)},
    {"parallel.tensor",
     {.b = tensor,
      .differs = memory + Names{"calls", "bytes", "communication"},
      .ranks = 2,
      .may_differ = numbers + Names{"workspace"}}},
    {"parallel.vocab",
     {.a = tensor,
      .b = tensor + Words{"--parallel.vocab=true"},
      .differs = memory + Names{"calls", "bytes"},
      .ranks = 2,
      .may_differ = numbers}},
    {"parallel.sequence",
     {.a = tensor,
      .b = tensor + Words{"--parallel.sequence=true"},
      .differs = {"activations", "peak", "calls", "bytes"},
      .ranks = 2,
      .may_differ = numbers}},
    {"parallel.expert",
     {.a = scarce_experts,
      .b = scarce_experts + Words{"--parallel.expert=2"},
      .differs = {"parameters", "gradients", "optimizer", "peak", "calls", "bytes", "communication"},
      .ranks = 2,
      .may_differ = numbers + Names{"activations", "workspace"}}},
    {"parallel.exchange",
     {.b = {"--parallel.exchange=zero1"},
      .differs = {"optimizer", "workspace", "peak", "calls", "bytes"},
      .ranks = 2,
      .may_differ = numbers}},
    {"parallel.ddp_mode",
     {.b = {"--parallel.ddp_mode=per_parameter"}, .differs = {"calls", "bytes"}, .ranks = 2}},
    {"parallel.bucket_mb", {.b = {"--parallel.bucket_mb=0.01"}, .differs = {"calls"}, .ranks = 2}},
    {"parallel.shard",
     {.a = {"--parallel.exchange=zero1"},
      .b = {"--parallel.exchange=zero1", "--parallel.shard=2"},
      .differs = {"optimizer", "workspace", "communication", "peak", "calls", "bytes"},
      .ranks = 4,
      .may_differ = numbers + Names{"parameters", "gradients"}}},
    {"parallel.prefetch",
     {.a = zero3,
      .b = zero3 + Words{"--parallel.prefetch=0"},
      .differs = {"gathered_weights", "peak"},
      .ranks = 2}},
    {"parallel.reshard",
     {.a = zero3,
      .b = zero3 + Words{"--parallel.reshard=false"},
      .differs = {"gathered_weights", "peak", "calls", "bytes"},
      .ranks = 2}},
    {"parallel.schedule",
     {.a = even_stages,
      .b = even_stages + Words{"--parallel.schedule=gpipe"},
      .differs = {"activations", "peak"},
      .ranks = 2}},
    {"parallel.pipeline",
     {.b = even_stages,
      .differs = memory + other_tensors + Names{"model", "workspace", "calls", "bytes", "communication"},
      .ranks = 2,
      .may_differ = numbers}},
    {"parallel.chunks",
     {.a = stages + Words{"--parallel.schedule=interleaved", "--parallel.chunks=2"},
      .b = stages + Words{"--parallel.schedule=interleaved", "--parallel.chunks=3"},
      .differs = memory + Names{"calls", "bytes"},
      .ranks = 2,
      .may_differ = numbers + Names{"workspace"}}},
    {"parallel.schedule_file", refused({"--parallel.schedule=file", "--parallel.schedule_file=missing.csv"})},
    {"parallel.stages",
     {.a = even_stages,
      .b = stages + Words{"--parallel.stages=1,3"},
      .differs = memory,
      .ranks = 2,
      .may_differ = numbers + Names{"workspace"}}},
    {"parallel.in_flight",
     {.a = even_stages + Words{"--parallel.schedule=zero_bubble"},
      .b = even_stages + Words{"--parallel.schedule=zero_bubble", "--parallel.in_flight=1"},
      .differs = {"activations", "peak"},
      .ranks = 2}},
    {"parallel.replicas", shown_by("PipeDream.TrainsWithUnequalReplicas")},
    {"parallel.vertical_sync", shown_by("Asynchronous.RulesDiffer")},
    {"parallel.emulated_stages", shown_by("PipeDream.IsEmulatedByOneRank")},
    {"backend.compute", shown_by("RestartRules.KeepsTheBackendsAndThreadsOfTheRun")},
    {"backend.comm",
     {.a = {"--backend.comm=shm"},
      .b = {"--backend.comm=mpi"},
      .differs = {"backends"},
      .ranks = 2,
      .may_differ = numbers + Names{"communication", "peak"}}},
    {"backend.threads",
     {.b = {"--backend.threads=2"},
      .differs = {"threads"},
      .may_differ = numbers + Names{"backends", "workspace", "peak"}}},
    {"backend.graphs", shown_by("TrainingStepTest.RecordsEachActionOnce")},
    {"backend.autotune", shown_by("DeckChanges.AreTheKeysThatAffectTheResults")},
    {"comm.algorithm",
     {.b = {"--comm.algorithm=ring"},
      .differs = {"backends"},
      .ranks = 2,
      .may_differ = numbers + Names{"communication", "peak"}}},
    {"comm.progress_thread", shown_by("EveryKey.AProgressThreadIsOneMoreThread")},
    {"comm.simulate_alpha", shown_by("EveryKey.SimulatedLinksTakeTheirTime")},
    {"comm.simulate_gbps", shown_by("EveryKey.SimulatedLinksTakeTheirTime")},
    {"comm.timeout", shown_by("DrivenWatchdog.CountsFromTheBeginningOfTheCollective")},
    {"comm.heartbeat", shown_by("Watch.FindsAStoppedRankAtTheShortestHeartbeats")},
    {"comm.start_timeout", shown_by("DrivenWatchdog.WaitsForTheStartAsLongAsItSays")},
    {"comm.gpu_aware", shown_by("GpuAwareMpi.IsGivenHostMemoryForWhatItCannotReduceOnADevice")},
    {"comm.ranks_per_node",
     {.b = {"--comm.ranks_per_node=1"},
      .differs = {"communication", "peak"},
      .ranks = 2,
      .may_differ = numbers}},
    {"io.timeout", shown_by("Watch.EndsAJobWhoseFilesDoNotAnswer")},
    {"guard.policy", {spikes, spikes + Words{"--guard.policy=stop"}, {"code 17"}}},
    {"guard.max_skips", {spikes, spikes + Words{"--guard.max_skips=1"}, {"code 17"}}},
    {"guard.spike_factor", {spikes + Words{"--guard.spike_factor=0"}, spikes, numbers + Names{"skipped"}}},
    {"guard.spike_window", {spikes, spikes + Words{"--guard.spike_window=4"}, numbers + Names{"skipped"}}},
    {"guard.replica_check_every", shown_by("Guard.NamesTheRankWhoseWeightsChanged")},
    {"checkpoint.every", {{}, {"--checkpoint.every=2"}, {"kept"}}},
    {"checkpoint.async", {{}, {"--checkpoint.async=true"}, {"snapshot", "peak"}}},
    {"checkpoint.dir", {{}, {"--checkpoint.dir=elsewhere"}, {"files"}}},
    {"checkpoint.keep", {{}, {"--checkpoint.keep=3"}, {"kept"}}},
    {"checkpoint.keep_every", {{}, {"--checkpoint.keep_every=2"}, {"kept"}}},
    {"checkpoint.keep_abandoned", shown_by("EveryKey.AbandonedCheckpointsAreKeptOrNot")},
    {"checkpoint.alignment", {{}, {"--checkpoint.alignment=1"}, {"layout"}}},
    {"metrics.tensorboard", {{}, {"--metrics.tensorboard=true"}, {"files"}}},
    {"profile.step", {{}, {"--profile.step=2"}, {"files"}}},
    {"run.dir", {}},  // every run has its own, and is looked for there: all else is the same
    {"machine.peak_tflops", {{}, {"--machine.peak_tflops=2"}, {"peak_tflops"}}},
    {"machine.memory_gb", shown_by("Partitioner.KnowsTheMachine")},
    {"machine.node_gbps", shown_by("Partitioner.KnowsTheMachine")},
    {"machine.link_gbps", shown_by("Partitioner.KnowsTheMachine")},
    {"machine.file", shown_by("MachineFile.CutsTheModelByItsTimes")},
};

class EveryKey : public RunTest {
 protected:
  /// A run's facets, as texts to compare.
  using Facets = std::map<std::string, std::string>;

  EveryKey() {
    TokenFileWriter writer(scratch() / "other.bin");
    std::vector<std::uint16_t> ids(7000);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * i % 251);
    writer.append(ids);
    writer.finish();
    // By tokens, the beginning with a space and a letter is likelier; by letters, the other one, of which the
    // space is a smaller part.
    const std::string question = "{\"ctx\": \"again\", \"endings\": [\"a\", \"~~~~~~~~\"], \"label\": 1}\n";
    spill(scratch() / "choices.jsonl", question + question);
  }

  /// The values of a column; one that repeats the one before is left out.
  static std::string text_of(const std::vector<double>& values) {
    std::string text;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i == 0 || values[i] != values[i - 1]) text += fmt::format("{} ", values[i]);
    }
    return text;
  }

  Facets facets_of(const std::string& run, const Outcome& outcome) {
    Facets facets;
    facets["code"] = fmt::format("{}", outcome.exit_code);
    if (!fs::exists(run_path(run) / "metrics.h5")) return facets;
    MetricsTable steps = steps_table(run);
    const auto take = [&](const char* facet, MetricsTable& table, const char* column) {
      facets[facet] = text_of(table[column]);
    };
    for (const auto& [facet, column] :
         std::initializer_list<std::pair<const char*, const char*>>{{"steps", "step"},
                                                                    {"loss", "loss"},
                                                                    {"rate", "learning_rate"},
                                                                    {"norm", "gradient_norm"},
                                                                    {"skipped", "skipped"},
                                                                    {"scale", "loss_scale"},
                                                                    {"tokens", "tokens"},
                                                                    {"epochs", "epochs_1"},
                                                                    {"calls", "communication_calls"},
                                                                    {"bytes", "communication_bytes"},
                                                                    {"peak", "memory_peak_max"}})
      take(facet, steps, column);
    for (const auto& [column, values] : steps) {
      if (column.starts_with("memory_") && !column.starts_with("memory_peak"))
        facets[column.substr(std::string("memory_").size())] = text_of(values);
    }
    MetricsTable evaluations = read_table(run, "eval");
    take("evaluations", evaluations, "step");
    take("evaluated", evaluations, "loss");
    take("evaluated tokens", evaluations, "tokens");
    MetricsTable answers = read_table(run, "choices");
    take("answered", answers, "examples");
    for (const char* column : {"accuracy", "normalised_accuracy", "right_loss"})
      facets["answers"] += text_of(answers[column]) + "/ ";
    MetricsTable launches = read_table(run, "launches");
    take("threads", launches, "threads");
    take("peak_tflops", launches, "peak_tflops");
    for (const std::int64_t step : checkpoint_steps(run)) facets["kept"] += fmt::format("{} ", step);
    for (const auto& file : fs::directory_iterator(run_path(run)))
      facets["files"] += fmt::format("{}{} ", file.path().filename().string(), file.is_symlink() ? "@" : "");
    const std::int64_t last = checkpoint_steps(run).empty() ? 0 : checkpoint_steps(run).back();
    if (last == 0) return facets;
    facets["layout"] = fmt::format("{}", fs::file_size(checkpoint_path(run, last) / "weights.h5"));
    const auto state = nlohmann::json::parse(slurp(checkpoint_path(run, last) / "state.json"));
    facets["model"] = state.at("model").dump();
    facets["tokenizer"] = state.at("tokenizer").dump();
    facets["samples"] = state.at("sample").dump();
    const Snapshot tensors = snapshot(run, last);
    for (const auto& [name, values] : tensors.tensors) {
      facets["tensors"] += fmt::format("{} {} ", name, values.size());
      std::string& of = facets[name.starts_with("weights.h5") ? "weights" : "states"];
      std::uint64_t hash = 0;
      for (const float value : values) hash = hash * 1000003 + std::bit_cast<std::uint32_t>(value);
      of += fmt::format("{} ", hash);
    }
    std::istringstream lines(outcome.output);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t comm = line.find("comm ");
      if (comm == std::string::npos || line.find(", compute ") == std::string::npos) continue;
      facets["backends"] = line.substr(comm);
    }
    return facets;
  }

  /// The facets of a run; runs with the same words are made once.
  const Facets& facets(const Words& words, int ranks) {
    const auto [found, is_new] = known_.try_emplace({words, ranks});
    if (is_new) {
      const std::string run = fmt::format("run{}", known_.size());
      const Outcome outcome = train(run, merged(words), {.ranks = ranks});
      found->second = facets_of(run, outcome);
      output_ = outcome.output;
    }
    return found->second;
  }

  /// The options of every run, with those that `words` gives in place of its own.
  Words merged(const Words& words) const {
    std::map<std::string, std::string> options = {
        {"--model.layers", "1"}, {"--train.steps", "4"},      {"--train.global_batch", "4"},
        {"--optim.warmup", "1"}, {"--checkpoint.every", "1"}, {"--data.valid", tokens().string()},
        {"--eval.every", "2"},   {"--eval.batches", "1"}};
    for (const std::string& word : words) {
      const std::size_t equals = word.find('=');
      const std::string value = word.substr(equals + 1);
      const bool is_file = value == "other.bin" || value == "elsewhere" || value == "choices.jsonl";
      options[word.substr(0, equals)] = is_file ? (scratch() / value).string() : value;
    }
    Words all;
    for (const auto& [option, value] : options) all.push_back(fmt::format("{}={}", option, value));
    return all;
  }

  /// The keys in the order of `mylos help deck`.
  static std::vector<std::string> documented() {
    const Outcome help = run_mylos({"help", "deck"}, {.ranks = 1});
    EXPECT_EQ(help.exit_code, 0) << help.output;
    const std::regex section(R"(\[([a-z]+)\])");
    const std::regex name(R"(  ([a-z0-9_]+) +(integer|real|boolean|choice|text): .*)");
    std::vector<std::string> found;
    std::string in;
    std::istringstream lines(help.output);
    std::smatch match;
    for (std::string line; std::getline(lines, line);) {
      if (std::regex_match(line, match, section)) in = match[1];
      if (std::regex_match(line, match, name)) found.push_back(fmt::format("{}.{}", in, match[1].str()));
    }
    return found;
  }

  /// Expects that a source file of the tests has the test "Suite.Name".
  static void expect_test(const std::string& test) {
    const std::size_t dot = test.find('.');
    const std::string begin = fmt::format("({}, {})", test.substr(0, dot), test.substr(dot + 1));
    const fs::path all = fs::path(std::getenv("MYLOS_SOURCE")) / "tests";
    for (const auto& file : fs::recursive_directory_iterator(all)) {
      if (file.path().extension() == ".cpp" && slurp(file.path()).find(begin) != std::string::npos) return;
    }
    ADD_FAILURE() << "there is no test " << test;
  }

  void expect_effect(const Key& key) {
    if (key.shown_by != nullptr) return expect_test(key.shown_by);
    const Facets a = facets(key.a, key.ranks);
    EXPECT_EQ(a.at("code"), "0") << output_;
    const Facets b = facets(key.b, key.ranks);
    Names differing;
    if (b.at("code") != "0") {
      differing = {"code " + b.at("code")};
    } else {
      for (const auto& [facet, value] : a) {
        if (!b.contains(facet) || b.at(facet) != value) differing.insert(facet);
      }
      for (const auto& [facet, value] : b) {
        if (!a.contains(facet)) differing.insert(facet);
      }
    }
    for (const std::string& facet : key.may_differ) differing.erase(facet);
    EXPECT_EQ(differing, key.differs) << output_;
  }

 private:
  std::map<std::pair<Words, int>, Facets> known_;
  std::string output_;  // of the last run
};

TEST_F(EveryKey, HasAnEffect) {
  const std::vector<std::string> all = documented();
  EXPECT_GT(all.size(), 70U);
  for (const std::string& name : all) {
    SCOPED_TRACE(name);
    const auto key = keys.find(name);
    if (key == keys.end()) {
      ADD_FAILURE() << name
                    << " is not listed in keys_test.cpp: which two values make a difference, and where?";
      continue;
    }
    expect_effect(key->second);
  }
  for (const auto& [name, key] : keys) {
    // Only builds with CUDA have autotune.
    if (name != "backend.autotune") {
      EXPECT_THAT(all, testing::Contains(name));
    }
  }
}

TEST_F(EveryKey, AProgressThreadIsOneMoreThread) {
  const auto threads_with = [&](const std::string& value) {
    Job job(train_arguments("run" + value, {"--comm.progress_thread=" + value}),
            {.environment = {"MYLOS_FAULT=forward:1:3:stop"}});
    const pid_t rank = job.rank(1);
    job.wait_until([&] { return is_stopped(rank); });
    const auto count = std::ranges::distance(fs::directory_iterator(fmt::format("/proc/{}/task", rank)));
    ::kill(rank, SIGCONT);
    EXPECT_EQ(job.wait().exit_code, 0);
    return count;
  };
  EXPECT_EQ(threads_with("true"), threads_with("false") + 1);
}

/// A sum takes a ring of two ranks two messages after each other. A step has the sums of the gradients and of
/// the norm.
TEST_F(EveryKey, SimulatedLinksTakeTheirTime) {
  const Words two_steps = {"--train.steps=2", "--optim.warmup=1", "--checkpoint.every=0",
                           "--comm.algorithm=ring"};
  ASSERT_EQ(
      train("late", two_steps + Words{"--comm.simulate_gbps=1000", "--comm.simulate_alpha=50000"}).exit_code,
      0);
  EXPECT_GE(steps_table("late")["rank_time_min"].back(), 4 * 0.05);
  // 34208 gradients and more of 4 bytes, half of them in each message.
  ASSERT_EQ(train("narrow", two_steps + Words{"--comm.simulate_gbps=0.004"}).exit_code, 0);
  EXPECT_GE(steps_table("narrow")["rank_time_min"].back(), 34208 * 4 * 8 / 4e6);
}

TEST_F(EveryKey, AbandonedCheckpointsAreKeptOrNot) {
  for (const char* kept : {"0", "1"}) {
    const std::string run = std::string("run") + kept;
    const std::string keep = std::string("--checkpoint.keep_abandoned=") + kept;
    ASSERT_EQ(train(run, {keep}, {.ranks = 1}).exit_code, 0);
    ASSERT_EQ(train(run, {keep, "--restart=step_6", "--train.stop_step=7"}, {.ranks = 1}).exit_code, 0);
    ASSERT_EQ(train(run, {keep, "--restart"}, {.ranks = 1}).exit_code, 0);  // keeps what it has not moved
    const fs::directory_iterator files(run_path(run) / "checkpoints");
    EXPECT_EQ(std::ranges::count_if(
                  files,
                  [](const auto& file) { return file.path().filename().string().starts_with("abandoned-"); }),
              std::atoll(kept));
  }
}

}  // namespace
}  // namespace mylos::test::keys_of_decks
