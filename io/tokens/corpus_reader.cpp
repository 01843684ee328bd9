// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/corpus_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <glob.h>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/watched_call.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The files that match a pattern, in order.
std::vector<fs::path> matches(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, ::globfree);
  if (status != 0 && status != GLOB_NOMATCH)
    fail(ExitCode::io, "cannot search for files that match {}", pattern);
  return {found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0)};
}

/// All .txt and .jsonl files below `folder`, in order of their paths.
std::vector<fs::path> corpus_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path extension = entry.path().extension();
    if (entry.is_regular_file() && (extension == ".txt" || extension == ".jsonl"))
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::vector<CorpusInput> find_corpus(const std::vector<std::string>& places,
                                     std::optional<CorpusFormat> format) {
  std::vector<CorpusInput> inputs;
  std::set<fs::path> known;
  const auto add = [&](const fs::path& file) {
    if (!known.insert(file.empty() ? file : place_of(file)).second)
      fail(ExitCode::usage, "{} is named twice", file.empty() ? "standard input" : file.string());
    const bool is_lines = file.empty() || file.extension() == ".jsonl";
    inputs.push_back(
        {.path = file, .format = format.value_or(is_lines ? CorpusFormat::json_lines : CorpusFormat::text)});
  };
  for (const std::string& place : places) {
    if (place == "-") {
      add("");
      continue;
    }
    std::error_code not_there;
    std::vector<fs::path> paths = {place};
    if (!fs::exists(place, not_there)) paths = matches(place);
    if (paths.empty()) {
      const std::string what = what_is_at(place);
      fail(ExitCode::usage, "no file matches {}{}", place, what == "nothing" ? "" : "; there is " + what);
    }
    for (const fs::path& path : paths) {
      if (!fs::is_directory(path)) {
        add(path);
        continue;
      }
      const auto files = corpus_files(path);
      if (files.empty()) fail(ExitCode::usage, "{} holds no .txt or .jsonl file", path.string());
      std::ranges::for_each(files, add);
    }
  }
  return inputs;
}

CorpusReader::CorpusReader(const std::vector<CorpusInput>& inputs, std::string key, LastCut last_cut)
    : inputs_(inputs), last_cut_(std::move(last_cut)), json_(std::move(key)) {}

bool CorpusReader::open_next() {
  if (input_ == inputs_.size()) return false;
  const CorpusInput& input = inputs_[input_++];
  if (input.path.empty()) {
    file_ = FileDescriptor(::dup(STDIN_FILENO));
    check_call(file_.get(), "read", input.name());
  } else {
    file_ = open_file(input.path, O_RDONLY | O_NONBLOCK);  // `fill` waits for a pipe's writer
    struct stat info {};
    check_call(::fstat(file_.get(), &info), "read", input.path);
    if (S_ISDIR(info.st_mode))
      fail(ExitCode::io, "cannot read {}: there is {}", input.name(), what_is_at(input.path));
    if (S_ISREG(info.st_mode)) {
      ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
      check_call(::lseek(file_.get(), input.first, SEEK_SET), "read", input.path);
    }
  }
  left_ = input.bytes;
  at_end_ = begun_ = false;
  line_ = 1;
  return true;
}

/// Reads until the buffer has `bytes` bytes or the input ends. Returns false if the end was reached.
bool CorpusReader::fill(std::size_t bytes) {
  std::size_t size = buffer_.size();
  if (size < bytes) buffer_.resize(bytes);
  while (size < bytes && !at_end_) {
    const std::size_t wanted =
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(bytes - size), left_));
    if (wanted > 0) wait_until_ready(file_.get(), POLLIN, inputs_[input_ - 1].name());
    const WatchedCall call(CallKind::io, "read", inputs_[input_ - 1].path.native(), wanted);
    const ssize_t n = wanted == 0 ? 0 : ::read(file_.get(), buffer_.data() + size, wanted);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    check_call(n, "read", inputs_[input_ - 1].name());
    at_end_ = n == 0;
    size += static_cast<std::size_t>(n);
    left_ -= n;
    bytes_read_ += n;
  }
  buffer_.resize(size);
  return !at_end_;
}

std::optional<CorpusBlock> CorpusReader::next() {
  for (;;) {
    if (at_end_ && buffer_.empty() && !in_long_line_ && !open_next()) return std::nullopt;
    if (inputs_[input_ - 1].format == CorpusFormat::json_lines) {
      if (auto block = next_of_lines()) return block;
    } else {
      for (std::size_t wanted = block_bytes;; wanted = 2 * buffer_.size()) {
        const bool is_whole = !fill(wanted);
        if (auto block = next_of_text(buffer_, is_whole)) return block;
      }
    }
  }
}

/// Moves a block out of `text`, which is the next part of the document. `is_whole`: `text` reaches the
/// document's end.
std::optional<CorpusBlock> CorpusReader::next_of_text(std::string& text, bool is_whole) {
  const std::size_t size = is_whole ? text.size() : last_cut_(text);
  if (size == 0 && !is_whole) return std::nullopt;
  CorpusBlock block{.input = &inputs_[input_ - 1],
                    .bytes = text.substr(0, size),
                    .document = document_,
                    .begins = !begun_,
                    .ends = is_whole};
  text.erase(0, size);
  begun_ = !is_whole;
  if (is_whole) ++document_;
  return block;
}

std::optional<CorpusBlock> CorpusReader::next_of_lines() {
  if (in_long_line_) return next_of_long_line();
  bool has_more = fill(block_bytes);
  std::size_t end = buffer_.rfind('\n');
  if (end == std::string::npos && has_more) {
    has_more = fill(most_line_bytes);
    end = buffer_.rfind('\n');
    in_long_line_ = end == std::string::npos && has_more;
  }
  if (in_long_line_ || buffer_.empty()) return std::nullopt;
  const std::size_t size = has_more ? end + 1 : buffer_.size();
  CorpusBlock block{.input = &inputs_[input_ - 1],
                    .is_lines = true,
                    .bytes = buffer_.substr(0, size),
                    .document = document_,
                    .line = line_};
  buffer_.erase(0, size);
  const std::vector<std::string_view> lines = lines_of(block.bytes);
  line_ += std::ssize(lines);
  document_ += std::ssize(lines) - std::ranges::count_if(lines, is_blank);
  return block;
}

std::optional<CorpusBlock> CorpusReader::next_of_long_line() {
  const std::string place = fmt::format("{}:{}", inputs_[input_ - 1].name(), line_);
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    at_place(place, [&] { json_.take(std::string_view(buffer_).substr(0, end), long_text_); });
    buffer_.erase(0, end == std::string::npos ? end : end + 1);
    const bool is_whole = end != std::string::npos || (!fill(block_bytes) && buffer_.empty());
    if (is_whole) {
      in_long_line_ = false;
      const bool has_document = at_place(place, [&] { return json_.end(); });
      ++line_;
      return has_document ? next_of_text(long_text_, true) : std::nullopt;
    }
    if (long_text_.size() < block_bytes) continue;
    if (auto block = next_of_text(long_text_, false)) return block;
  }
}

void for_each_document(const CorpusBlock& block, const std::string& key,
                       const std::function<void(const std::string& text, std::int64_t document)>& work) {
  JsonText json(key);
  std::string text;
  std::int64_t document = block.document;
  std::int64_t number = block.line;
  for (const std::string_view line : lines_of(block.bytes)) {
    text.clear();
    bool has_document = false;
    try {
      json.take(line, text);
      has_document = json.end();
    } catch (const Error& error) {
      fail(ExitCode::bad_data, "{}:{}: {}", block.input->name(), number, error.what());
    }
    ++number;
    if (has_document) work(text, document++);
  }
}

}  // namespace mylos
