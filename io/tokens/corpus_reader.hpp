// SPDX-License-Identifier: BSD-3-Clause
// CorpusReader: documents from text files and JSON lines, in blocks that threads can encode independently.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_util.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/tokens/json_text.hpp"

namespace mylos {

enum class CorpusFormat : std::uint8_t {
  text,        ///< an input is a document
  json_lines,  ///< a line is an object with a document under one key; blank lines are skipped
};

/// A file, or part of one.
struct CorpusInput {
  std::filesystem::path path;          ///< empty for standard input
  std::optional<CorpusFormat> format;  ///< empty if its first bytes decide, when they are read
  bool is_checked = false;             ///< its content was looked at, or the user insists that it is a text
  std::int64_t first = 0;              ///< byte of the file at which it begins
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();  ///< at most; the file may end earlier

  bool is_whole() const { return first == 0 && bytes == std::numeric_limits<std::int64_t>::max(); }
  std::string name() const { return path.empty() ? std::string(standard_input_name) : path.string(); }
};

using Note = std::function<void(const std::string&)>;

/// The files that `places` name: files, folders (all files below them that end in .txt, .jsonl or .ndjson, in
/// any case, in order of their paths), patterns of glob(7), or "-" for standard input. In folders, links are
/// followed, each folder and file is taken once, and names that begin with a point are left out. Files that
/// mylos itself writes are left out of folders and patterns.
///
/// Without `format`, files that end in .jsonl or .ndjson hold JSON lines, in .txt text; the content of others
/// decides, that of a stream when it is read. Calls `note` with a line for what was guessed, what looks
/// unlike its name, and what was left out.
///
/// Throws ExitCode::usage if a place names no file or a file is named twice; ExitCode::bad_data if a file is
/// not a text, unless `format` is text; ExitCode::io if a file or folder cannot be read or a link is dead.
std::vector<CorpusInput> find_corpus(const std::vector<std::string>& places,
                                     std::optional<CorpusFormat> format, const Note& note = {});

/// Part of a document's text, or whole JSON lines.
struct CorpusBlock {
  const CorpusInput* input = nullptr;
  bool is_lines = false;
  std::string bytes;
  std::int64_t document = 0;  ///< index of the first document, counted over all inputs
  std::int64_t line = 0;      ///< for lines: number of the first line, from 1
  bool begins = true;         ///< for text: whether the document begins with this block
  bool ends = true;           ///< for text: whether the document ends with this block
  std::int64_t offset = -1;   ///< for a part of a text file: its first byte in the file
};

/// For one thread at a time.
class CorpusReader {
 public:
  /// Where a longer text may be cut; see Tokenizer::last_cut.
  using LastCut = std::function<std::size_t(std::string_view)>;
  /// Called with an input that has no format, and the one that its first bytes suggest.
  using Guessed = std::function<void(const CorpusInput&, CorpusFormat)>;

  /// `inputs` must outlive this.
  CorpusReader(const std::vector<CorpusInput>& inputs, std::string key, LastCut last_cut,
               Guessed guessed = {});

  /// A block has at most about this many bytes, unless a line is longer or the text has no place to cut.
  static constexpr std::size_t block_bytes = std::size_t{256} << 10U;
  /// A longer line is not kept in memory as a whole: its text is returned as blocks of one document.
  static constexpr std::size_t most_line_bytes = std::size_t{1} << 20U;

  /// The next block; empty at the end of all inputs. Throws ExitCode::io, and ExitCode::bad_data for an input
  /// that is not a text, and for a line of more than most_line_bytes that JsonText refuses.
  std::optional<CorpusBlock> next();

  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  bool fill(std::size_t bytes);
  bool open_next();
  void look_at_beginning();
  std::optional<CorpusBlock> next_of_text(std::string& text, bool is_whole);
  std::optional<CorpusBlock> next_of_lines();
  std::optional<CorpusBlock> next_of_long_line();

  const std::vector<CorpusInput>& inputs_;
  LastCut last_cut_;
  Guessed guessed_;
  std::size_t input_ = 0;  // index of the open input, plus one
  FileDescriptor file_;
  std::int64_t left_ = 0;  // bytes of the input that remain to be read
  bool at_end_ = true;
  CorpusFormat format_ = CorpusFormat::text;  // of the open input
  std::string buffer_;                        // bytes of the input that are not yet in a block
  std::int64_t position_ = 0;                 // of the buffer in the file
  std::int64_t document_ = 0;
  std::int64_t line_ = 1;
  bool begun_ = false;      // whether a block of the document was returned
  bool is_stream_ = false;  // not a regular file
  bool in_long_line_ = false;
  JsonText json_;
  std::string long_text_;  // text of the long line that is not yet in a block
  std::int64_t bytes_read_ = 0;
};

/// Calls work(text, document) for the document of each line in a block of lines; `text` is valid only during
/// the call. Throws ExitCode::bad_data with file and line if JsonText refuses a line.
void for_each_document(const CorpusBlock& block, const std::string& key,
                       const std::function<void(const std::string& text, std::int64_t document)>& work);

}  // namespace mylos
