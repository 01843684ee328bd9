// SPDX-License-Identifier: BSD-3-Clause
// The order in which training and evaluation read token files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/data_sources.hpp"
#include "io/tokens/interleaving.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"

namespace mylos {

/// Whether files that are too short for a window are used: an evaluation with a stride reads short windows.
enum class ShortFiles : std::uint8_t { skipped, read };

/// Windows of T + 1 tokens (T inputs and, shifted by one, T targets) of token files. No window crosses from
/// one file into the next. An evaluation takes its windows from EvaluationWindows.
///
/// Training takes its samples from weighted sources (Interleaving), from each in epochs of `num_windows`
/// windows. Window i of a file begins at token phase + i T, so that the inputs of an epoch do not overlap;
/// `phase` < T is drawn separately for each file and epoch. The order of the windows over all files of a
/// source is drawn separately for each epoch. It is a keyed Feistel permutation (Luby and Rackoff, 1988) on
/// the least even number of bits, at least 2, that can index the windows, iterated until the result is in
/// range (Black and Rogaway, 2002). A sample is therefore a function of (seed, running index) alone: there is
/// no state to save and no list to shuffle.
///
/// For one thread at a time.
class TokenDataset {
 public:
  struct Source {
    std::vector<TokenFile> files;
    std::int64_t weight = 1;
  };

  /// The tokenizer that produced the tokens, according to a sidecar, and the token file of that sidecar.
  struct Origin {
    TokenizerIdentity tokenizer;
    std::filesystem::path file;
  };

  /// `origin` is empty if no file has a sidecar. Throws ExitCode::bad_data if no file of a source is long
  /// enough for a window or, if short files are read, for one target.
  TokenDataset(std::vector<Source> sources, std::optional<Origin> origin, std::int64_t seq_len,
               std::uint64_t seed, std::vector<std::string> warnings = {},
               ShortFiles short_files = ShortFiles::skipped);

  std::int64_t seq_len() const { return seq_len_; }
  /// Identifies the content, whatever the files' names: by the identity of the only file, or by the number of
  /// files, the number of tokens, and a digest of all files' identities and the sources' weights.
  const std::string& identity() const { return identity_; }
  /// Identifies the content of a source likewise, but without its weight.
  std::string identity(std::size_t source) const;

  const std::optional<Origin>& origin() const { return origin_; }
  const std::vector<TokenFile>& files() const { return files_; }
  /// Lines for the user: what of the files is not read, and what hardly is as the user says.
  const std::vector<std::string>& warnings() const { return warnings_; }
  std::size_t num_sources() const { return sources_.size(); }
  std::size_t num_files() const { return files_.size(); }
  std::int64_t num_tokens() const;
  std::int64_t num_tokens(std::size_t source) const;
  /// Windows of an epoch of training.
  std::int64_t num_windows(std::size_t source = 0) const { return windows_of(sources_[source]); }
  /// The number of epochs of a source that the first `samples` samples of a run read.
  double epochs(std::size_t source, std::int64_t samples) const;

  /// Copies the window of a running sample index, counted over all epochs, to `tokens` (T + 1).
  void sample(std::int64_t running_index, std::int32_t* tokens) const;
  /// Asks the system to prefetch a sample that will be read soon.
  void advise(std::int64_t running_index) const;

  /// Copies tokens `first`, `first` + 1 ... of a file to `tokens`. Throws like `TokenFile::read`.
  void read(std::size_t file, std::int64_t first, std::span<std::int32_t> tokens) const;

 private:
  /// A source: consecutive entries of `files_`.
  struct Part {
    std::size_t first_file = 0;
    std::vector<std::int64_t> window_ends;  // training windows, cumulative over the files
    std::int64_t weight = 1;
  };
  struct Window {
    std::size_t file = 0;
    std::int64_t first = 0;  // its first token
  };

  static std::int64_t windows_of(const Part& source) { return source.window_ends.back(); }
  void add(Source source, ShortFiles short_files);
  std::string identity_now() const;
  Window window_of(std::int64_t running_index) const;

  std::int64_t seq_len_;
  std::uint64_t seed_;
  std::vector<TokenFile> files_;
  std::vector<Part> sources_;
  Interleaving interleaving_;
  std::optional<Origin> origin_;
  std::string identity_;
  std::vector<std::string> warnings_;
};

/// The windows of an evaluation, file by file in the order of the dataset. Each has up to T inputs; their
/// targets are the tokens that follow them. In each file, windows begin S tokens apart. The first counts all
/// its targets, and a later one those that no earlier window has counted.
///
/// With a given stride S, the last window of a file is cut where the file ends, so that every token of the
/// file except its first counts once. Without one, S = T, and tokens that fill no window are not read.
class EvaluationWindows {
 public:
  struct Window {
    std::size_t file = 0;
    std::int64_t first = 0;    ///< its first input
    std::int64_t inputs = 0;   ///< at most T
    std::int64_t counted = 0;  ///< of its targets, the last ones
  };

  explicit EvaluationWindows(const TokenDataset& dataset, std::optional<std::int64_t> stride = {});

  std::int64_t size() const { return ends_.back(); }
  Window operator[](std::int64_t index) const;
  std::int64_t stride() const { return stride_; }
  /// The targets of each file that are counted.
  const std::vector<std::int64_t>& targets() const { return targets_; }

 private:
  std::int64_t seq_len_;
  std::int64_t stride_;
  std::vector<std::int64_t> targets_;
  std::vector<std::int64_t> ends_;  // windows, cumulative over the files
};

/// A line for each file of the two datasets that is, by its identity or its content, also another one of
/// them: training data that counts twice, or validation data that is in the training data or counts twice.
std::vector<std::string> repeated_files(const TokenDataset* train, const TokenDataset* valid);

/// Opens the dataset of `sources` for a vocabulary of `vocab` ids. Reads at most about TokenFile::most_pages
/// pages in total, or two of each file if that is more. Throws like `files_of`, `read_sidecar`, TokenFile and
/// TokenDataset; ExitCode::usage if a sidecar has a larger vocabulary, or a tokenizer other than that of the
/// other sidecars; ExitCode::bad_data if a sidecar's number of tokens is not that of its file. `tokenizer` is
/// the one that the user says made the tokens, or "none": files without a sidecar that hardly hold its tokens
/// lead to warnings.
TokenDataset open_dataset(const std::vector<DataSource>& sources, std::int64_t vocab, std::int64_t seq_len,
                          std::uint64_t seed, std::string_view tokenizer = "none",
                          ShortFiles short_files = ShortFiles::skipped);

}  // namespace mylos
