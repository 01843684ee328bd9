// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/stop_signals.hpp"
#include "core/base/error.hpp"
#include "core/base/say.hpp"
#include "io/file_util.hpp"
#include "io/tokens/corpus_reader.hpp"
#include "io/tokens/shard_progress.hpp"
#include "io/tokens/shard_writer.hpp"
#include "io/tokens/tokenize_corpus.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// Throws ExitCode::usage if an output is the same file as an input or another output, whether or not that
/// file exists yet. Empty names are ignored.
void check_apart(const std::vector<CorpusInput>& inputs, const std::vector<fs::path>& outputs) {
  const auto place = [](const fs::path& file) { return fs::weakly_canonical(fs::absolute(file)); };
  const auto check = [&](const fs::path& a, const fs::path& b) {
    std::error_code not_there;
    if (!a.empty() && !b.empty() && (place(a) == place(b) || fs::equivalent(a, b, not_there)))
      fail(ExitCode::usage, "{} and {} are the same file: the text and each output need a file of their own",
           a.string(), b.string());
  };
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    for (const CorpusInput& input : inputs) check(input.path, *output);
    for (auto other = output + 1; other != outputs.end(); ++other) check(*output, *other);
  }
}

/// Returns the offset at which the held-out end of a UTF-8 text of `size` bytes begins: the start of a
/// character, or `size` if nothing is held out.
std::int64_t held_out_offset(const fs::path& text, std::int64_t size, double fraction) {
  auto split = static_cast<std::int64_t>(static_cast<double>(size) * (1.0 - fraction));
  const FileDescriptor file = open_file(text, O_RDONLY);
  for (int i = 0; i < 3 && split > 0 && split < size; ++i, --split) {
    unsigned char byte = 0;
    read_fully(file.get(), text, &byte, 1, split);
    if ((byte & 0xc0U) != 0x80U) break;
  }
  return split;
}

/// A line that is redrawn on stderr if that is a terminal.
class ProgressLine {
 public:
  /// `bytes` is the size of the input; 0 if unknown.
  explicit ProgressLine(std::int64_t bytes) : bytes_(bytes), is_shown_(::isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const TokenizeProgress& progress) {
    const auto now = Clock::now();
    if (!is_shown_ || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    const double elapsed = seconds();
    const auto read = static_cast<double>(progress.bytes_read);
    std::string text = fmt::format("{:.1f} MB", read / 1e6);
    if (bytes_ > 0) text += fmt::format(" of {:.1f} MB", static_cast<double>(bytes_) / 1e6);
    text += fmt::format("  {} documents  {:.1f}M tokens  {:.1f} MB/s", progress.documents,
                        static_cast<double>(progress.tokens) / 1e6, read / 1e6 / elapsed);
    if (bytes_ > 0 && read > 0.0) {
      const auto left = static_cast<std::int64_t>(elapsed / read * (static_cast<double>(bytes_) - read));
      text += fmt::format("  ETA {}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
    }
    say(stderr, "\r\033[K{}", text);
    is_drawn_ = true;
  }
  void clear() {
    if (is_drawn_) say(stderr, "\r\033[K");
    is_drawn_ = false;
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const std::int64_t bytes_;
  const bool is_shown_;
  bool is_drawn_ = false;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

std::vector<CommandOption> options() {
  return {
      {"tokenizer", OptionKind::text,
       "bytes, or gpt2=FILE with GPT-2's merge ranks: a .tiktoken file, vocab.json next to "
       "merges.txt, or the folder that contains both",
       std::string(tokenizers[0].name)},
      {"output", OptionKind::text,
       "token file to write or, with --shard-tokens, the prefix of the shards' names (required)"},
      {"valid-output", OptionKind::text, "token file for the held-out text"},
      {"valid-fraction", OptionKind::real,
       "fraction held out for validation: the end of a single text, otherwise documents chosen by a hash; "
       "0.1 "
       "by default with --valid-output"},
      {"seed", OptionKind::integer, "seed for the choice of held-out documents", "1"},
      {"shard-tokens", OptionKind::integer,
       "write shards of this many tokens, OUTPUT_train_000001.bin ... and OUTPUT_val_000000.bin ..."},
      {"continue", OptionKind::flag, "continue the shards of an interrupted run, if there are any"},
      {"format", OptionKind::text,
       "format of the input, text or jsonl; by default jsonl for .jsonl files and standard input, "
       "text for other files"},
      {"key", OptionKind::text, "key of the text in JSON lines", "text"},
      {"eot", OptionKind::text, "place of <|endoftext|> in each document: end or, as in llm.c, begin", "end"},
      {"threads", OptionKind::integer, "number of threads; 0 takes all cores", "0"},
  };
}

std::optional<CorpusFormat> format_option(const CommandLine& line) {
  if (!line.has("format")) return std::nullopt;
  if (line.text("format") == "text") return CorpusFormat::text;
  if (line.text("format") == "jsonl") return CorpusFormat::json_lines;
  fail(ExitCode::usage, "--format={} must be text or jsonl", line.text("format"));
}

/// What the command line requests.
struct Plan {
  std::vector<CorpusInput> inputs;
  std::int64_t bytes = 0;  // of the inputs; 0 if unknown
  TokenizeSettings settings;
  std::int64_t shard_tokens = 0;
  std::string output, valid_output;

  bool has_shards() const { return shard_tokens > 0; }
  bool reads_standard_input() const {
    return std::ranges::any_of(inputs, [](const CorpusInput& input) { return input.path.empty(); });
  }
  /// Shards have llm.c's file names: validation shards are numbered from 0, training shards from 1.
  fs::path file(Split split, std::int64_t shard) const {
    const bool is_train = split == Split::train;
    if (!has_shards()) return is_train ? output : valid_output;
    return fmt::format("{}_{}_{:06}.bin", output, is_train ? "train" : "val", shard + (is_train ? 1 : 0));
  }
  fs::path progress_file() const { return output + "_tokenize.json"; }
};

/// Splits the single text of a plan into two parts, unless the second would be empty.
void hold_out_end(Plan& plan, double fraction) {
  CorpusInput& text = plan.inputs.front();
  if (text.path.empty())
    fail(ExitCode::usage,
         "the end of standard input is not known in advance: holding it out needs a file, or documents");
  const std::int64_t split = held_out_offset(text.path, plan.bytes, fraction);
  plan.settings.split.has_two_parts = true;
  if (split == plan.bytes) return;
  CorpusInput end = text;
  end.first = split;
  text.bytes = split;
  plan.inputs.push_back(end);
}

Plan plan_of(const CommandLine& line) {
  Plan plan;
  line.argument(0, "a text");
  if (!line.has("output")) fail(ExitCode::usage, "mylos tokenize needs --output FILE");
  plan.output = line.text("output");
  if (line.has("valid-output")) plan.valid_output = line.text("valid-output");
  plan.inputs = find_corpus(line.arguments, format_option(line));
  if (line.has("shard-tokens")) {
    plan.shard_tokens = line.integer("shard-tokens");
    constexpr std::int64_t most = 2147483647;
    if (plan.shard_tokens < 1 || plan.shard_tokens > most)
      fail(ExitCode::usage, "--shard-tokens={} must lie between 1 and {}", plan.shard_tokens, most);
    if (!plan.valid_output.empty())
      fail(
          ExitCode::usage,
          "shards are named after --output: for validation shards, use --valid-fraction, not --valid-output");
  } else if (line.flag("continue")) {
    fail(ExitCode::usage, "--continue needs --shard-tokens: only complete shards are kept");
  }
  if (line.flag("continue") && plan.reads_standard_input())
    fail(ExitCode::usage, "--continue needs files: standard input cannot be read twice");
  plan.settings.key = line.text("key");
  const std::string& eot = line.text("eot");
  if (eot != "begin" && eot != "end") fail(ExitCode::usage, "--eot={} must be end or begin", eot);
  plan.settings.end_of_text_begins = eot == "begin";
  const std::int64_t threads = line.integer("threads");
  constexpr std::int64_t most_threads = 1024;
  if (threads < 0 || threads > most_threads)
    fail(ExitCode::usage, "--threads={} must lie between 0 and {}", threads, most_threads);
  plan.settings.threads = threads > 0 ? static_cast<int>(threads)
                                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));

  for (const CorpusInput& input : plan.inputs) {
    if (!input.path.empty()) plan.bytes += static_cast<std::int64_t>(fs::file_size(input.path));
  }
  const bool is_one_text = plan.inputs.size() == 1 && plan.inputs.front().format == CorpusFormat::text;
  const bool reads_standard_input = plan.reads_standard_input();
  if (is_one_text && plan.bytes == 0 && !reads_standard_input)
    fail(ExitCode::bad_data, "{} is empty", plan.inputs.front().name());
  const double fraction = line.has("valid-fraction") ? line.real("valid-fraction") : 0.1;
  if (!(fraction > 0.0 && fraction < 1.0))
    fail(ExitCode::usage, "--valid-fraction={} must lie between 0 and 1", fraction);
  plan.settings.split.seed = static_cast<std::uint64_t>(line.integer("seed"));
  if (!plan.valid_output.empty() || (plan.has_shards() && line.has("valid-fraction"))) {
    plan.settings.split.valid_fraction = fraction;
    if (is_one_text) hold_out_end(plan, fraction);
  }
  if (reads_standard_input) plan.bytes = 0;
  return plan;
}

/// Returns the progress at the start of a run: its settings, and no shards.
ShardProgress progress_of(const Plan& plan, const CommandLine& line, const Tokenizer& tokenizer) {
  ShardProgress progress;
  progress.settings = {{"tokenizer", tokenizer.identity().text()},
                       {"--eot", line.text("eot")},
                       {"--key", plan.settings.key},
                       {"--shard-tokens", std::to_string(plan.shard_tokens)},
                       {"--valid-fraction", fmt::format("{}", plan.settings.split.valid_fraction)},
                       {"--seed", std::to_string(plan.settings.split.seed)},
                       {"inputs", std::to_string(plan.inputs.size())}};
  for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
    const CorpusInput& input = plan.inputs[i];
    struct stat info {};
    if (!input.path.empty() && ::stat(input.path.c_str(), &info) != 0)
      fail(ExitCode::io, "cannot read {}", input.name());
    progress.settings.emplace_back(fmt::format("input {}", i),
                                   fmt::format("{} ({}, {} bytes, changed at {}.{:09})", input.name(),
                                               input.format == CorpusFormat::text ? "text" : "jsonl",
                                               info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec));
  }
  return progress;
}

/// Reads the progress of an earlier run, if there is one, into `progress`. Returns whether shards remain to
/// be written. Throws ExitCode::usage if `may_continue` is false and there is progress or a first shard, or
/// if the settings have changed.
bool continue_from(const Plan& plan, ShardProgress& progress, bool may_continue) {
  const fs::path file = plan.progress_file();
  const auto before = read_progress(file);
  if (!may_continue) {
    if (before || fs::exists(plan.file(Split::train, 0)) || fs::exists(plan.file(Split::valid, 0)))
      fail(ExitCode::usage, "shards named {}_* already exist: continue them with --continue, or remove them",
           plan.output);
    return true;
  }
  if (!before) return true;
  check_same_settings(file, *before, progress);
  progress = *before;
  return !before->done;
}

int run(const CommandLine& line) {
  Plan plan = plan_of(line);
  check_apart(plan.inputs, {plan.file(Split::train, 0), plan.file(Split::valid, 0)});
  const auto tokenizer = make_tokenizer(line.text("tokenizer"));
  ShardProgress progress = progress_of(plan, line, *tokenizer);
  if (plan.has_shards() && !continue_from(plan, progress, line.flag("continue"))) {
    fmt::print("{}: all shards are complete\n", plan.output);
    return 0;
  }
  const StopSignals signals;
  ProgressLine shown(plan.bytes);
  std::array<std::optional<ShardWriter>, 2> writers;
  const auto keep_progress = [&] {
    if (!plan.has_shards()) return;
    for (std::size_t i = 0; i < writers.size(); ++i) progress.positions[i] = writers[i]->position();
    write_progress(plan.progress_file(), progress);
  };
  for (const Split split : {Split::train, Split::valid}) {
    const auto index = static_cast<std::size_t>(split);
    writers[index].emplace(
        ShardWriter::Settings{.tokenizer = tokenizer->identity(),
                              .vocab = tokenizer->vocab_size(),
                              .shard_tokens = plan.shard_tokens,
                              .file = [&plan, split](std::int64_t shard) { return plan.file(split, shard); },
                              .finished =
                                  [&](const fs::path& file, std::int64_t tokens) {
                                    shown.clear();
                                    fmt::print("{}: {} tokens\n", file.string(), tokens);
                                    keep_progress();
                                  }},
        progress.positions[index]);
  }
  const auto seen = [&](const TokenizeProgress& done) {
    if (signals.received() != 0) {
      fail(ExitCode::preempted, "stopped by a signal{}",
           plan.has_shards() && !plan.reads_standard_input()
               ? "; --continue continues after the last complete shard"
               : "");
    }
    shown.show(done);
  };
  const TokenizeProgress all =
      tokenize_corpus(plan.inputs, *tokenizer, plan.settings, {&*writers[0], &*writers[1]}, seen);
  if (all.documents == 0) fail(ExitCode::bad_data, "{} contains no documents", plan.inputs.front().name());
  for (auto& writer : writers) writer->finish();
  progress.done = true;
  keep_progress();
  shown.clear();
  const double seconds = shown.seconds();
  fmt::print("{} documents, {:.1f} MB, {} tokens in {:.1f} s, {:.1f} MB/s\n",
             plan.settings.split.has_two_parts ? 1 : all.documents, static_cast<double>(all.bytes_read) / 1e6,
             all.tokens, seconds, static_cast<double>(all.bytes_read) / 1e6 / seconds);
  if (plan.settings.split.valid_fraction > 0.0 && writers[1]->num_tokens() == 0)
    say(stderr, "warning: nothing was held out for validation\n");
  return 0;
}

constexpr std::size_t most_places = 1000000;

}  // namespace

const Command tokenize_command{.name = "tokenize",
                               .arguments = "TEXT...|-",
                               .summary = "make token files from texts or JSON lines",
                               .options = options,
                               .run = run,
                               .max_arguments = most_places};

}  // namespace mylos
