// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/token_dataset.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <utility>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/base/rng.hpp"
#include "io/parallel_for.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// The image of `index` under a permutation of [0, count) that `key` chooses.
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key) {
  constexpr int rounds = 6;
  const unsigned bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  const unsigned half = std::max(1U, (bits + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto x = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = x >> half;
    std::uint64_t right = x & mask;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = mix64(mix64(key + static_cast<std::uint64_t>(round)) ^ right) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    x = (left << half) | right;
  } while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

std::vector<std::int64_t> weights_of(const std::vector<TokenDataset::Source>& sources) {
  std::vector<std::int64_t> weights;
  for (const TokenDataset::Source& source : sources) weights.push_back(source.weight);
  return weights;
}

/// Windows of an epoch: as many as fit at every phase. A file shorter than two contexts has one window, at
/// the phases that it allows; a file shorter than one window has none.
std::int64_t windows_in(const TokenFile& file, std::int64_t seq_len) {
  if (file.size() <= seq_len) return 0;
  return std::max<std::int64_t>(1, (file.size() - seq_len) / seq_len);
}

/// The interval of the cumulative `ends` that contains `index`, and the position of `index` in it.
std::pair<std::size_t, std::int64_t> place_in(const std::vector<std::int64_t>& ends, std::int64_t index) {
  const auto end = std::ranges::upper_bound(ends, index);
  return {static_cast<std::size_t>(end - ends.begin()), end == ends.begin() ? index : index - *(end - 1)};
}

}  // namespace

TokenDataset::TokenDataset(std::vector<Source> sources, std::optional<Origin> origin, std::int64_t seq_len,
                           std::uint64_t seed, std::vector<std::string> warnings, ShortFiles short_files)
    : seq_len_(seq_len),
      seed_(seed),
      interleaving_(weights_of(sources)),
      origin_(std::move(origin)),
      warnings_(std::move(warnings)) {
  require(seq_len > 0, "a window has at least one token");
  for (Source& source : sources) add(std::move(source), short_files);
  identity_ = identity_now();
}

void TokenDataset::add(Source source, ShortFiles short_files) {
  require(!source.files.empty(), "a source has files");
  const bool needs_window = short_files == ShortFiles::skipped;
  const std::int64_t needed = needs_window ? seq_len_ + 1 : 2;
  const auto longest = std::ranges::max_element(source.files, {}, &TokenFile::size);
  if (longest->size() < needed) {
    fail(ExitCode::bad_data, "{} has {} tokens{}; {} needs {}", longest->path().string(), longest->size(),
         source.files.size() == 1 ? "" : " and the other files of its source have no more",
         needs_window ? fmt::format("a context of {}", seq_len_) : "an evaluation", needed);
  }
  const auto is_short = [&](const TokenFile& file) { return file.size() < needed; };
  if (const auto count = std::ranges::count_if(source.files, is_short); count > 0) {
    const TokenFile& first = *std::ranges::find_if(source.files, is_short);
    const std::string others =
        count == 1 ? " is" : fmt::format(" and {} more file{} are", count - 1, count == 2 ? "" : "s");
    warnings_.push_back(fmt::format("{} with {} tokens{} shorter than a window of {} tokens and never read",
                                    first.path().string(), first.size(), others, needed));
  }
  Part part{.first_file = files_.size(), .window_ends = {}, .weight = source.weight};
  for (TokenFile& file : source.files) {
    const std::int64_t before = part.window_ends.empty() ? 0 : part.window_ends.back();
    part.window_ends.push_back(before + windows_in(file, seq_len_));
    files_.push_back(std::move(file));
  }
  sources_.push_back(std::move(part));
}

std::string TokenDataset::identity_now() const {
  if (files_.size() == 1) return files_.front().identity();
  std::string all;
  for (const Part& source : sources_) {
    all += fmt::format("weight {}\n", source.weight);
    for (std::size_t i = 0; i < source.window_ends.size(); ++i)
      all += files_[source.first_file + i].identity() + "\n";
  }
  return fmt::format("{} files, {} tokens, {}", files_.size(), num_tokens(), digest_of(all).text());
}

std::string TokenDataset::identity(std::size_t source) const {
  const Part& part = sources_[source];
  const std::size_t count = part.window_ends.size();
  if (count == 1) return files_[part.first_file].identity();
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += files_[part.first_file + i].identity() + "\n";
  return fmt::format("{} files, {}", count, digest_of(all).text());
}

std::int64_t TokenDataset::num_tokens() const {
  std::int64_t tokens = 0;
  for (const TokenFile& file : files_) tokens += file.size();
  return tokens;
}

std::int64_t TokenDataset::num_tokens(std::size_t source) const {
  const Part& part = sources_[source];
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < part.window_ends.size(); ++i) tokens += files_[part.first_file + i].size();
  return tokens;
}

double TokenDataset::epochs(std::size_t source, std::int64_t samples) const {
  return static_cast<double>(interleaving_.count(source, samples)) / static_cast<double>(num_windows(source));
}

TokenDataset::Window TokenDataset::window_of(std::int64_t running_index) const {
  require(running_index >= 0, "samples count from 0");
  const Interleaving::Place place = interleaving_.at(running_index);
  const Part& source = sources_[place.source];
  const std::int64_t windows = windows_of(source);
  const PhiloxKey stream = stream_key(seed_, "shuffle");
  std::uint64_t source_key = (static_cast<std::uint64_t>(stream.k1) << 32U) | stream.k0;
  if (place.source > 0) source_key = mix64(source_key ^ mix64(place.source));
  const std::uint64_t key = mix64(source_key + static_cast<std::uint64_t>(place.index / windows));
  const auto [part, window] = place_in(source.window_ends, permuted(place.index % windows, windows, key));
  const TokenFile& file = files_[source.first_file + part];
  const std::int64_t phases = std::min(seq_len_, file.size() - windows_in(file, seq_len_) * seq_len_);
  const auto phase = static_cast<std::int64_t>(mix64(~key + part) % static_cast<std::uint64_t>(phases));
  return {.file = source.first_file + part, .first = phase + window * seq_len_};
}

void TokenDataset::sample(std::int64_t running_index, std::int32_t* tokens) const {
  const Window window = window_of(running_index);
  read(window.file, window.first, {tokens, static_cast<std::size_t>(seq_len_ + 1)});
}

void TokenDataset::advise(std::int64_t running_index) const {
  const Window window = window_of(running_index);
  files_[window.file].advise(window.first, seq_len_ + 1);
}

void TokenDataset::read(std::size_t file, std::int64_t first, std::span<std::int32_t> tokens) const {
  std::vector<std::uint16_t> narrow(tokens.size());
  files_[file].read(first, narrow);
  std::ranges::copy(narrow, tokens.begin());
}

EvaluationWindows::EvaluationWindows(const TokenDataset& dataset, std::optional<std::int64_t> stride)
    : seq_len_(dataset.seq_len()), stride_(stride.value_or(seq_len_)) {
  require(stride_ >= 1 && stride_ <= seq_len_, "windows leave out no target");
  for (const TokenFile& file : dataset.files()) {
    std::int64_t targets = std::max<std::int64_t>(0, file.size() - 1);
    if (!stride) targets -= targets % seq_len_;
    const std::int64_t later = std::max<std::int64_t>(0, targets - seq_len_);
    const std::int64_t windows = targets == 0 ? 0 : 1 + (later + stride_ - 1) / stride_;
    targets_.push_back(targets);
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + windows);
  }
}

EvaluationWindows::Window EvaluationWindows::operator[](std::int64_t index) const {
  require(index >= 0 && index < size(), "the index of an existing window");
  const auto [file, number] = place_in(ends_, index);
  const std::int64_t first = number * stride_;
  const std::int64_t end = std::min(first + seq_len_, targets_[file]);
  const std::int64_t counted_before = number == 0 ? 0 : first - stride_ + seq_len_;
  return {.file = file, .first = first, .inputs = end - first, .counted = end - counted_before};
}

namespace {

/// Says why a file without a sidecar hardly holds tokens of `tokenizer` with ids below `vocab`; "" if it may.
std::string doubt_of(const TokenFile& file, std::int64_t vocab, std::string_view tokenizer) {
  constexpr std::int64_t fewest = 64;  // tokens that allow a judgement
  const TokenStatistics& seen = file.statistics();
  if (seen.tokens < fewest) return "";
  if (seen.least == seen.most) return fmt::format("every id is {}: is it a token file?", seen.most);
  if (seen.odd_zeros == seen.tokens / 2)
    return "every second id is 0: it seems to hold ids of 32 or 64 bits, but they are read as 16";
  if (seen.most <= 256 && vocab > 1024) {
    return fmt::format("no id is above {}, but the vocabulary has {}: it seems to hold bytes or characters",
                       seen.most, vocab);
  }
  if (tokenizer == "bytes" && 20 * seen.controls > seen.tokens) {
    return fmt::format(
        "{} of {} ids are control characters: with [data] tokenizer = bytes, ids are bytes of a text",
        seen.controls, seen.tokens);
  }
  return "";
}

/// Whether two files with the same `ends` hold the same tokens, as far as TokenFile::most_pages show.
bool has_same_content(const TokenFile& a, const TokenFile& b) {
  const auto identity = [](const TokenFile& file) {
    return TokenFile(file.path(), TokenFile::most_ids, file.format()).identity();
  };
  return identity(a) == identity(b);
}

}  // namespace

std::vector<std::string> repeated_files(const TokenDataset* train, const TokenDataset* valid) {
  struct Known {
    const TokenFile* file;
    bool is_valid;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Known> by_id;
  std::map<std::string, Known> by_ends;
  std::vector<std::string> lines;
  const auto add = [&](const TokenFile& file, bool is_valid) {
    if (file.size() == 0) return;
    const auto describe = [&](const Known& other, const std::string& how) {
      const char* where = !is_valid        ? "counts twice in the training data"
                          : other.is_valid ? "counts twice in the validation data"
                                           : "is both training and validation data";
      lines.push_back(fmt::format("{} {}{}", file.path().string(), where, how));
    };
    const auto [same, is_new] = by_id.try_emplace(file.id(), Known{&file, is_valid});
    if (!is_new) {
      const fs::path& other = same->second.file->path();
      return describe(same->second,
                      other == file.path() ? "" : fmt::format(": it is the same file as {}", other.string()));
    }
    const auto [like, is_first] = by_ends.try_emplace(file.ends(), Known{&file, is_valid});
    if (!is_first && has_same_content(*like->second.file, file))
      describe(like->second, fmt::format(": {} has the same content", like->second.file->path().string()));
  };
  for (const TokenDataset* data : {train, valid}) {
    if (data == nullptr) continue;
    for (const TokenFile& file : data->files()) add(file, data == valid);
  }
  constexpr std::size_t most = 8;
  if (lines.size() > most) {
    const std::size_t more = lines.size() - most;
    lines.resize(most);
    lines.back() += fmt::format(" (and {} more like these)", more);
  }
  return lines;
}

TokenDataset open_dataset(const std::vector<DataSource>& sources, std::int64_t vocab, std::int64_t seq_len,
                          std::uint64_t seed, std::string_view tokenizer, ShortFiles short_files) {
  constexpr int threads = 8;  // they mostly wait for the file system
  std::vector<std::string> warnings;
  std::vector<DataFile> names;
  std::vector<std::size_t> ends;  // end of each source in `names`
  for (const DataSource& source : sources) {
    const std::vector<DataFile> more = files_of(source, &warnings);
    names.insert(names.end(), more.begin(), more.end());
    ends.push_back(names.size());
  }
  allow_open_files(names.size());
  const std::int64_t pages = std::max<std::int64_t>(2, TokenFile::most_pages / std::ssize(names));
  std::vector<std::optional<Sidecar>> sidecars(names.size());
  parallel_for(names.size(), threads, [&](std::size_t i) { sidecars[i] = read_sidecar(names[i].path); });
  std::optional<TokenDataset::Origin> origin;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!sidecars[i]) continue;
    const Sidecar& sidecar = *sidecars[i];
    if (!origin) origin = {sidecar.tokenizer, names[i].path};
    check_tokenizer(names[i].path, sidecar, origin->tokenizer, origin->file);
    if (sidecar.vocab <= vocab) continue;
    fail(ExitCode::usage, "[model] vocab = {}, but {} holds tokens of {}, which has a vocabulary of {}",
         vocab, names[i].path.string(), sidecar.tokenizer.text(), sidecar.vocab);
  }
  std::vector<std::optional<TokenFile>> files(names.size());
  parallel_for(names.size(), threads, [&](std::size_t i) {
    const auto& [path, format] = names[i];
    files[i].emplace(path, vocab, format, pages);
    if (!sidecars[i] || sidecars[i]->tokens == files[i]->size()) return;
    fail(ExitCode::bad_data, "{} describes {} tokens, but {} has {}: they do not belong together",
         sidecar_path(path).string(), sidecars[i]->tokens, path.string(), files[i]->size());
  });
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (sidecars[i]) continue;
    if (const std::string doubt = doubt_of(*files[i], vocab, tokenizer); !doubt.empty())
      warnings.push_back(fmt::format("{}: {}", names[i].path.string(), doubt));
  }
  std::vector<TokenDataset::Source> opened;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    TokenDataset::Source& source = opened.emplace_back();
    source.weight = sources[s].weight;
    for (std::size_t i = s == 0 ? 0 : ends[s - 1]; i < ends[s]; ++i)
      source.files.push_back(*std::move(files[i]));
  }
  return {std::move(opened), std::move(origin), seq_len, seed, std::move(warnings), short_files};
}

}  // namespace mylos
