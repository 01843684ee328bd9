// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <map>
#include <optional>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/launch/stop_signals.hpp"
#include "app/train/progress_line.hpp"
#include "core/base/clock.hpp"
#include "core/base/error.hpp"
#include "core/base/say.hpp"
#include "core/base/thread_limits.hpp"
#include "core/base/what_is_at.hpp"
#include "io/file_util.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/tokens/corpus_reader.hpp"
#include "io/tokens/shard_progress.hpp"
#include "io/tokens/shard_writer.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/tokenize_corpus.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// Prints a line of the output. A signal ends the wait for a reader that does not take it.
void print_line(const std::string& text) {
  wait_until_ready(STDOUT_FILENO, POLLOUT, "standard output");
  fmt::print("{}\n", text);
}

/// Throws ExitCode::usage if an output is the same file as an input or another output, whether or not the
/// outputs exist yet.
void check_apart(const std::vector<CorpusInput>& inputs, const std::vector<fs::path>& outputs) {
  const auto refuse = [](const fs::path& a, const fs::path& b) {
    fail(ExitCode::usage,
         "{} and {} are the same file: each text, each output and its sidecar NAME.json need a file of their "
         "own",
         a.string(), b.string());
  };
  std::map<std::pair<dev_t, ino_t>, const fs::path*> existing;
  struct stat info {};
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    for (auto other = output + 1; other != outputs.end(); ++other)
      for (const char* end : {"", ".tmp", ".lock"}) {
        if (is_same_file(output->string() + end, *other) || is_same_file(*output, other->string() + end))
          refuse(*output, *other);
      }
    for (const char* end : {"", ".tmp", ".lock"}) {  // `TemporaryFile` and `OutputLock` write these
      if (::stat((output->string() + end).c_str(), &info) == 0)
        existing.emplace(std::pair(info.st_dev, info.st_ino), &*output);
    }
  }
  for (const CorpusInput& input : inputs) {
    if (input.path.empty() || ::stat(input.path.c_str(), &info) != 0) continue;
    if (const auto same = existing.find({info.st_dev, info.st_ino}); same != existing.end())
      refuse(input.path, *same->second);
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

/// Shows the progress on stderr if that is a terminal.
class ProgressDisplay {
 public:
  /// `bytes` is the size of the input; 0 if unknown.
  explicit ProgressDisplay(std::int64_t bytes) : bytes_(bytes) {}
  ~ProgressDisplay() { clear(); }
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  void show(const TokenizeProgress& progress) {
    const auto now = SteadyClock::now();
    if (!is_shown_ || now - last_ < ProgressLine::redraw_interval) return;
    last_ = now;
    const double elapsed = seconds();
    const auto read = static_cast<double>(progress.bytes_read);
    std::string text = fmt::format("{:.1f} MB", read / 1e6);
    if (bytes_ > 0) text += fmt::format(" of {:.1f} MB", static_cast<double>(bytes_) / 1e6);
    text += fmt::format("  {} documents  {:.1f}M tokens  {:.1f} MB/s", progress.documents,
                        static_cast<double>(progress.tokens) / 1e6, read / 1e6 / elapsed);
    if (bytes_ > 0) text += "  " + eta_text(elapsed, read, static_cast<double>(bytes_) - read);
    line_.draw(text);
  }
  void clear() { line_.clear(); }
  double seconds() const { return in_seconds(SteadyClock::now() - start_); }

 private:
  using SteadyClock = std::chrono::steady_clock;
  ProgressLine line_{stderr};
  const std::int64_t bytes_;
  const bool is_shown_ = line_.is_on_terminal();
  const SteadyClock::time_point start_ = SteadyClock::now();
  SteadyClock::time_point last_ = start_;
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
       "0.1 by default with --valid-output"},
      {"seed", OptionKind::integer, "seed for the choice of held-out documents", "1"},
      {"shard-tokens", OptionKind::integer,
       "write shards of this many tokens, OUTPUT_train_000001.bin ... and OUTPUT_val_000000.bin ..."},
      {"continue", OptionKind::flag, "continue the shards of an interrupted run, if there are any"},
      {.name = "format",
       .kind = OptionKind::text,
       .doc = "format of the input, text or jsonl; by default text for .txt files, jsonl for .jsonl and "
              ".ndjson files, and what the content of others suggests",
       .choices = "text|jsonl"},
      {"key", OptionKind::text, "key of the text in JSON lines", "text"},
      {.name = "eot",
       .kind = OptionKind::text,
       .doc = "place of <|endoftext|> in each document: end or, as in llm.c, begin",
       .default_value = "end",
       .choices = "end|begin"},
      {"threads", OptionKind::integer,
       "number of threads; 0 takes all cores, or as many as the CPU quota of a container or Slurm allows",
       "0"},
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
  const CorpusInput* stream = nullptr;  // the first input that can be read only once, such as standard input
  std::int64_t bytes = 0;               // of the inputs; 0 if unknown
  bool holds_out_end = false;           // of the only input
  TokenizeSettings settings;
  std::int64_t shard_tokens = 0;
  std::string output, valid_output;
  std::vector<fs::path> links;  // links that were named as outputs; their targets are written

  bool has_shards() const { return shard_tokens > 0; }
  /// Shards have llm.c's file names: validation shards are numbered from 0, training shards from 1.
  fs::path file(Split split, std::int64_t shard) const {
    const bool is_train = split == Split::train;
    if (!has_shards()) return is_train ? output : valid_output;
    return fmt::format("{}_{}_{:06}.bin", output, is_train ? "train" : "val", shard + (is_train ? 1 : 0));
  }
  fs::path progress_file() const { return output + "_tokenize.json"; }
  /// The files that are written under names known in advance.
  std::vector<fs::path> outputs() const {
    if (has_shards()) return {progress_file()};
    std::vector<fs::path> files = {output, sidecar_path(output)};
    if (!valid_output.empty()) files.insert(files.end(), {valid_output, sidecar_path(valid_output)});
    return files;
  }
};

/// Returns the name that the option `name` gives. Throws ExitCode::usage if it cannot be that of a token
/// file.
std::string output_option(const CommandLine& line, const std::string& name) {
  const std::string& file = line.text(name);
  if (file.empty()) fail(ExitCode::usage, "--{} is empty; name a file", name);
  if (file == "-")
    fail(ExitCode::usage, "--{}=-: token files cannot be written to standard output; name a file", name);
  return file;
}

[[noreturn]] void refuse_to_hold_out(const CorpusInput& stream) {
  fail(ExitCode::usage, "the end of {} is not known in advance: holding it out needs a file, or documents",
       stream.name());
}

/// Splits the single text of a plan into two parts, unless the second would be empty.
void hold_out_end(Plan& plan) {
  CorpusInput& text = plan.inputs.front();
  const std::int64_t split = held_out_offset(text.path, plan.bytes, plan.settings.split.valid_fraction);
  plan.settings.split.has_two_parts = true;
  if (split == plan.bytes) return;
  CorpusInput end = text;
  end.first = split;
  text.bytes = split;
  plan.inputs.push_back(end);
}

/// Adds the sizes of the inputs to the plan, or finds that one is a stream.
void measure_inputs(Plan& plan) {
  for (const CorpusInput& input : plan.inputs) {
    struct stat info {};
    if (!input.path.empty() && ::stat(input.path.c_str(), &info) != 0)
      fail(ExitCode::io, "cannot read {}: there is {}", input.name(), what_is_at(input.path));
    if (plan.stream == nullptr && !S_ISREG(info.st_mode)) plan.stream = &input;
    plan.bytes += info.st_size;
  }
  if (plan.stream != nullptr) plan.bytes = 0;
}

Plan plan_of(const CommandLine& line) {
  Plan plan;
  line.argument(0, "a text");
  if (!line.has("output")) fail(ExitCode::usage, "mylos tokenize needs --output FILE");
  plan.output = output_option(line, "output");
  if (line.has("valid-output")) plan.valid_output = output_option(line, "valid-output");
  plan.inputs = find_corpus(line.arguments, format_option(line),
                            [](const std::string& note) { say(stderr, "{}\n", note); });
  const auto is_text = [](const CorpusInput& input) { return input.format == CorpusFormat::text; };
  if (line.text("key") != "text" && std::ranges::all_of(plan.inputs, is_text))
    say(stderr, "warning: --key={} has no effect: no input holds JSON lines\n", line.text("key"));
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
  } else if (line.has("valid-fraction") && plan.valid_output.empty()) {
    fail(ExitCode::usage, "--valid-fraction needs --valid-output FILE: where to write what is held out");
  }
  for (std::string* file : {&plan.output, &plan.valid_output}) {
    const fs::path target = follow_links(*file);
    if (plan.has_shards() || target == *file) continue;
    plan.links.emplace_back(*file);
    *file = target;
  }
  measure_inputs(plan);
  if (line.flag("continue") && plan.stream != nullptr)
    fail(ExitCode::usage, "--continue needs files: {} cannot be read twice", plan.stream->name());
  plan.settings.key = line.text("key");
  const std::string& eot = line.text("eot");
  if (eot != "begin" && eot != "end") fail(ExitCode::usage, "--eot={} must be end or begin", eot);
  plan.settings.end_of_text_begins = eot == "begin";
  const std::int64_t threads = line.integer("threads");
  constexpr std::int64_t most_threads = 1024;
  if (threads < 0 || threads > most_threads)
    fail(ExitCode::usage, "--threads={} must lie between 0 and {}", threads, most_threads);
  plan.settings.threads = threads > 0 ? static_cast<int>(threads) : default_threads();

  const bool is_one_text = plan.inputs.size() == 1 && plan.inputs.front().format == CorpusFormat::text;
  if (is_one_text && plan.bytes == 0 && plan.stream == nullptr)
    fail(ExitCode::bad_data, "{} is empty", plan.inputs.front().name());
  const double fraction = line.has("valid-fraction") ? line.real("valid-fraction") : 0.1;
  if (!(fraction > 0.0 && fraction < 1.0))
    fail(ExitCode::usage, "--valid-fraction={} must lie between 0 and 1", fraction);
  if (line.integer("seed") < 0) fail(ExitCode::usage, "--seed={} must be 0 or more", line.integer("seed"));
  plan.settings.split.seed = static_cast<std::uint64_t>(line.integer("seed"));
  if (!plan.valid_output.empty() || (plan.has_shards() && line.has("valid-fraction"))) {
    plan.settings.split.valid_fraction = fraction;
    plan.holds_out_end = is_one_text;
  }
  if (plan.holds_out_end && plan.stream != nullptr) refuse_to_hold_out(*plan.stream);
  const bool holds_out_of_one = plan.settings.split.valid_fraction > 0.0 && plan.inputs.size() == 1;
  plan.settings.guessed = [holds_out_of_one](const CorpusInput& input, CorpusFormat format) {
    if (format != CorpusFormat::text) return;
    if (holds_out_of_one) refuse_to_hold_out(input);
    say(stderr, "{} is read as one text; --format jsonl would read JSON lines\n", input.name());
  };
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

/// A file that has the name of a shard of the plan, or of its sidecar.
struct FoundShard {
  Split split;
  std::int64_t shard;
  fs::path file;
};

std::vector<FoundShard> find_shards(const Plan& plan) {
  std::vector<FoundShard> found;
  const fs::path folder = fs::path(plan.output).parent_path();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, error)) {
    const std::string name = entry.path().filename();
    for (const Split split : {Split::train, Split::valid}) {
      const std::string first = plan.file(split, 0).filename();
      const std::string before = first.substr(0, first.rfind('_') + 1);
      std::int64_t number = -1;
      if (!name.starts_with(before)) continue;
      std::from_chars(name.data() + before.size(), name.data() + name.size(), number);
      const std::int64_t shard = number - (split == Split::train ? 1 : 0);
      const std::string wanted = plan.file(split, shard).filename();
      if (number >= 0 && (name == wanted || name == sidecar_path(wanted)))
        found.push_back({.split = split, .shard = shard, .file = folder / name});
    }
  }
  if (error) fail(ExitCode::io, "cannot read the folder of {}: {}", plan.output, error.message());
  return found;
}

/// Reads the progress of an earlier run, if there is one, into `progress`. Returns whether shards remain to
/// be written. Throws ExitCode::usage if `may_continue` is false and there is progress or a shard, if the
/// settings have changed, or if there are shards that this progress does not lead to; ExitCode::bad_data if
/// one that it counts is missing.
bool continue_from(const Plan& plan, ShardProgress& progress, bool may_continue) {
  const fs::path file = plan.progress_file();
  const std::vector<FoundShard> found = find_shards(plan);
  const auto before = read_progress(file);
  if (!may_continue) {
    if (before || !found.empty())
      fail(ExitCode::usage, "shards named {}_* already exist: continue them with --continue, or remove them",
           plan.output);
    return true;
  }
  if (before) {
    check_same_settings(file, *before, progress);
    progress = *before;
  }
  for (const FoundShard& shard : found) {
    // A run may have been killed between a shard and the progress that counts it.
    const ShardPosition& position = progress.positions[static_cast<std::size_t>(shard.split)];
    if (shard.shard < position.shards + (progress.done ? 0 : 1)) continue;
    fail(ExitCode::usage, "{} is not of the run that {} records: remove it, or name other shards",
         shard.file.string(), file.string());
  }
  for (const Split split : {Split::train, Split::valid}) {
    for (std::int64_t i = 0; i < progress.positions[static_cast<std::size_t>(split)].shards; ++i) {
      const fs::path shard = plan.file(split, i);
      std::error_code error;
      if (!fs::is_regular_file(shard, error))
        fail(ExitCode::bad_data, "{} counts {}, but there is {}: remove {}_* and start again", file.string(),
             shard.string(), what_is_at(shard), plan.output);
    }
  }
  return !progress.done;
}

/// Removes what an earlier call left under a name that this call has not written, and says so.
void remove_stale(const fs::path& file) {
  if (remove_file(file)) say(stderr, "warning: removed {}, which is of an earlier call\n", file.string());
}

/// The locks of all outputs. Throws if one of them cannot be written, is an input or another output, or is
/// being written by another process.
std::vector<OutputLock> take_outputs(const Plan& plan) {
  check_apart(plan.inputs, plan.outputs());
  for (const fs::path& file : plan.outputs()) {
    const std::string_view own = own_kind(file);
    if (own == "run's file" || own == "checkpoint's file")
      fail(ExitCode::usage, "{} is a {}: name another output", file.string(), own);
  }
  std::ranges::for_each(plan.outputs(), try_output);
  std::vector<OutputLock> locks;
  if (plan.has_shards()) locks.emplace_back(plan.output);
  for (const fs::path& file : plan.outputs()) locks.emplace_back(file);
  return locks;
}

int run_until_stopped(const CommandLine& line, const StopSignals& signals, Plan& plan) {
  const std::vector<OutputLock> locks = take_outputs(plan);
  const auto tokenizer = make_tokenizer(line.text("tokenizer"));
  if (plan.holds_out_end) hold_out_end(plan);
  ShardProgress progress = progress_of(plan, line, *tokenizer);
  if (plan.has_shards() && !continue_from(plan, progress, line.flag("continue"))) {
    print_line(fmt::format("{}: all shards are complete", plan.output));
    return 0;
  }
  ProgressDisplay shown(plan.bytes);
  std::array<std::optional<ShardWriter>, 2> writers;
  const auto keep_progress = [&] {
    if (!plan.has_shards()) return;
    for (std::size_t i = 0; i < writers.size(); ++i) progress.positions[i] = writers[i]->position();
    write_progress(plan.progress_file(), progress);
  };
  for (const Split split : {Split::train, Split::valid}) {
    const auto index = static_cast<std::size_t>(split);
    if (plan.has_shards()) {
      const fs::path next = plan.file(split, progress.positions[index].shards);
      try_output(next);
      try_output(sidecar_path(next));
    }
    writers[index].emplace(
        ShardWriter::Settings{.tokenizer = tokenizer->identity(),
                              .vocab = tokenizer->vocab_size(),
                              .shard_tokens = plan.shard_tokens,
                              .file = [&plan, split](std::int64_t shard) { return plan.file(split, shard); },
                              .finished =
                                  [&](const fs::path& file, std::int64_t tokens) {
                                    keep_progress();
                                    shown.clear();
                                    print_line(fmt::format("{}: {} tokens", file.string(), tokens));
                                  }},
        progress.positions[index]);
  }
  const auto seen = [&](const TokenizeProgress& done) {
    if (signals.received() != 0) fail(ExitCode::preempted, "stopped by a signal");
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
  print_line(fmt::format("{} documents, {:.1f} MB, {} tokens in {:.1f} s, {:.1f} MB/s",
                         plan.settings.split.has_two_parts ? 1 : all.documents,
                         static_cast<double>(all.bytes_read) / 1e6, all.tokens, seconds,
                         static_cast<double>(all.bytes_read) / 1e6 / seconds));
  const auto note_empty = [&](Split split, const char* what) {
    if (writers[static_cast<std::size_t>(split)]->num_tokens() > 0) return;
    say(stderr, "warning: nothing was {}\n", what);
    if (plan.has_shards()) return;
    remove_stale(sidecar_path(plan.file(split, 0)));
    remove_stale(plan.file(split, 0));
  };
  note_empty(Split::train, "left for training: all documents were held out for validation");
  if (plan.settings.split.valid_fraction > 0.0) note_empty(Split::valid, "held out for validation");
  for (const fs::path& link : plan.links) {  // the sidecar is next to the target
    const fs::path sidecar = sidecar_path(link);
    if (!is_same_file(sidecar, sidecar_path(follow_links(link)))) remove_stale(sidecar);
  }
  if (const MalformedBytes& bad = all.malformed; bad.count > 0) {
    say(stderr,
        "warning: {} byte{} of {} file{} {} NUL or not UTF-8, the first at {}; they have tokens like all "
        "others. iconv -f LATIN1 -t UTF-8 converts Latin-1\n",
        bad.count, bad.count == 1 ? "" : "s", bad.files, bad.files == 1 ? "" : "s",
        bad.count == 1 ? "is" : "are", bad.first);
  }
  return 0;
}

int run(const CommandLine& line) {
  const StopSignals signals;
  Plan plan = plan_of(line);
  try {
    return run_until_stopped(line, signals, plan);
  } catch (const Error& error) {
    if (error.code() != ExitCode::preempted || !plan.has_shards() || plan.stream != nullptr) throw;
    fail(ExitCode::preempted, "{}; --continue continues after the last complete shard", error.what());
  }
}

constexpr std::size_t most_places = 1000000;

}  // namespace

const Command tokenize_command{.name = "tokenize",
                               .arguments = "TEXT...|-",
                               .summary = "make token files from texts or JSON lines",
                               .options = options,
                               .run = run,
                               .max_arguments = most_places,
                               .processes = Processes::only};

}  // namespace mylos
