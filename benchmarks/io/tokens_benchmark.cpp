// SPDX-License-Identifier: BSD-3-Clause
// Speed of GPT-2's tokenizer on a text in memory: with one thread, with several threads (their speed-up is
// compared with that of a loop in registers), and on a megabyte of one letter. benchmarks/io/tokens runs this
// benchmark and then tiktoken.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "app/deck/command_line.hpp"
#include "core/base/clock.hpp"
#include "core/base/error.hpp"
#include "core/base/rng.hpp"
#include "core/base/statistics.hpp"
#include "io/file_util.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "io/tokens/corpus_reader.hpp"

namespace mylos {
namespace {

CommandSyntax syntax() {
  const auto count = [](const char* name, const char* value, const char* doc) {
    return CommandOption{name, OptionKind::integer, doc, value};
  };
  return {.name = "tokens_benchmark",
          .help = "tokens_benchmark --help",
          .options = {{"text", OptionKind::text, "file to encode; some words if not given"},
                      {"ranks", OptionKind::text, "GPT-2's ranks; those of single bytes if not given"},
                      count("rounds", "5", "of every measurement, in turn"),
                      count("threads", "2", "of the measurement with several"),
                      {.name = "help", .doc = "this text"}}};
}

/// Seconds that `threads` threads take for work(thread).
template <class Work>
double seconds_of(std::int64_t threads, const Work& work) {
  const auto start = Clock::now();
  {
    std::vector<std::jthread> others;
    for (std::int64_t t = 1; t < threads; ++t) others.emplace_back([&work, t] { work(t); });
    work(0);
  }
  return seconds_since(start);
}

/// Ranks of the single bytes only, without merges.
BpeRanks plain_ranks() {
  constexpr std::string_view base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  for (unsigned byte = 0; byte < 256; ++byte)
    lines += fmt::format("{}{}== {}\n", base64[byte >> 2U], base64[(byte & 3U) << 4U], byte);
  return BpeRanks::parse_tiktoken(lines, "single bytes");
}

int run(const CommandLine& line) {
  const BpeTokenizer tokenizer(line.has("ranks") ? BpeRanks::read(line.text("ranks")) : plain_ranks());
  std::string text;
  if (line.has("text")) {
    text = read_text_file(line.text("text"), std::size_t{4} << 30U);
  } else {
    for (int i = 0; i < 100000; ++i) text += fmt::format("{} of the ", i);
  }
  std::vector<std::string_view> blocks;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view block = rest.substr(0, CorpusReader::block_bytes);
    const std::size_t cut = block.size() == rest.size() ? rest.size() : tokenizer.last_cut(block);
    if (cut == 0) fail(ExitCode::bad_data, "a text without places to cut");
    blocks.push_back(rest.substr(0, cut));
    rest.remove_prefix(cut);
  }
  const std::int64_t threads = line.integer("threads");
  std::vector<std::unique_ptr<Encoder>> encoders;
  std::vector<std::vector<std::uint16_t>> tokens(static_cast<std::size_t>(threads));
  for (auto& own : tokens) {
    encoders.push_back(tokenizer.encoder());
    own.reserve(2 * CorpusReader::block_bytes);
  }
  const auto encode = [&](std::int64_t count) {
    std::atomic<std::size_t> next = 0;
    return seconds_of(count, [&](std::int64_t t) {
      const auto own = static_cast<std::size_t>(t);
      for (std::size_t b = next++; b < blocks.size(); b = next++) {
        tokens[own].clear();
        encoders[own]->append(blocks[b], tokens[own]);
      }
    });
  };
  std::atomic<std::uint64_t> sink = 0;
  const auto loop = [&](std::int64_t count) {
    constexpr std::uint64_t turns = 200000000;
    return seconds_of(count, [&](std::int64_t t) {
      std::uint64_t x = static_cast<std::uint64_t>(t) + 1;
      for (std::uint64_t i = 0; i < turns / static_cast<std::uint64_t>(count); ++i) x = mix64(x);
      sink += x;
    });
  };
  const std::string letters(1000000, 'a');
  std::vector<std::uint16_t> all;
  all.reserve(text.size() + letters.size());
  std::vector<double> whole, one, several, loop_one, loop_several, letter;
  for (std::int64_t round = 0; round < line.integer("rounds"); ++round) {
    whole.push_back(seconds_of(1, [&](std::int64_t) {
      all.clear();
      encoders[0]->append(text, all);
    }));
    one.push_back(encode(1));
    several.push_back(encode(threads));
    loop_one.push_back(loop(1));
    loop_several.push_back(loop(threads));
    std::vector<std::uint16_t> of_letters;
    letter.push_back(seconds_of(1, [&](std::int64_t) { encoders[0]->append(letters, of_letters); }));
  }
  const double gain = median(one) / median(several);
  const double loop_gain = median(loop_one) / median(loop_several);
  fmt::print(
      "bytes,tokens,MB/s,gain of {} threads,gain of a loop in registers,ratio,megabyte of one letter\n",
      threads);
  fmt::print("{},{},{:.1f},{:.3f},{:.3f},{:.3f},{:.3f} s\n", text.size(), all.size(),
             static_cast<double>(text.size()) / median(whole) / 1e6, gain, loop_gain, gain / loop_gain,
             median(letter));
  return 0;
}

}  // namespace
}  // namespace mylos

int main(int argc, char** argv) {
  using namespace mylos;
  try {
    const CommandSyntax known = syntax();
    const CommandLine line = parse_words(known, {argv + 1, argv + argc});
    if (line.flag("help")) {
      fmt::print("{}", options_text("Options", known.options));
      return 0;
    }
    return run(line);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tokens_benchmark: {}\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
}
