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
#include "io/tokens/json_text.hpp"

namespace mylos {

enum class CorpusFormat : std::uint8_t {
  text,        ///< an input is a document
  json_lines,  ///< a line is an object with a document under one key; blank lines are skipped
};

/// A file, or part of one.
struct CorpusInput {
  std::filesystem::path path;  ///< empty for standard input
  CorpusFormat format = CorpusFormat::text;
  std::int64_t first = 0;                                         ///< byte of the file at which it begins
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();  ///< at most; the file may end earlier

  std::string name() const { return path.empty() ? "standard input" : path.string(); }
};

/// The files that `places` name: files, folders (all .txt and .jsonl files below them, in order of their
/// paths), patterns of glob(7), or "-" for standard input. Without `format`, a .jsonl file and standard input
/// hold JSON lines, other files text. Throws ExitCode::usage if a place names no file or a file is named
/// twice.
std::vector<CorpusInput> find_corpus(const std::vector<std::string>& places,
                                     std::optional<CorpusFormat> format);

/// Part of a document's text, or whole JSON lines.
struct CorpusBlock {
  const CorpusInput* input = nullptr;
  bool is_lines = false;
  std::string bytes;
  std::int64_t document = 0;  ///< index of the first document, counted over all inputs
  std::int64_t line = 0;      ///< for lines: number of the first line, from 1
  bool begins = true;         ///< for text: whether the document begins with this block
  bool ends = true;           ///< for text: whether the document ends with this block
};

/// For one thread at a time.
class CorpusReader {
 public:
  /// Where a longer text may be cut; see Tokenizer::last_cut.
  using LastCut = std::function<std::size_t(std::string_view)>;

  /// `inputs` must outlive this.
  CorpusReader(const std::vector<CorpusInput>& inputs, std::string key, LastCut last_cut);

  /// A block has at most about this many bytes, unless a line is longer or the text has no place to cut.
  static constexpr std::size_t block_bytes = std::size_t{256} << 10U;
  /// A longer line is not kept in memory as a whole: its text is returned as blocks of one document.
  static constexpr std::size_t most_line_bytes = std::size_t{1} << 20U;

  /// The next block; empty at the end of all inputs. Throws ExitCode::io, and ExitCode::bad_data for a line
  /// of more than most_line_bytes that JsonText refuses.
  std::optional<CorpusBlock> next();

  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  bool fill(std::size_t bytes);
  bool open_next();
  std::optional<CorpusBlock> next_of_text(std::string& text, bool is_whole);
  std::optional<CorpusBlock> next_of_lines();
  std::optional<CorpusBlock> next_of_long_line();

  const std::vector<CorpusInput>& inputs_;
  LastCut last_cut_;
  std::size_t input_ = 0;  // index of the open input, plus one
  FileDescriptor file_;
  std::int64_t left_ = 0;  // bytes of the input that remain to be read
  bool at_end_ = true;
  std::string buffer_;  // bytes of the input that are not yet in a block
  std::int64_t document_ = 0;
  std::int64_t line_ = 1;
  bool begun_ = false;  // whether a block of the document was returned
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
