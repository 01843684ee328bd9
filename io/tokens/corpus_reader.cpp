// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/corpus_reader.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <glob.h>
#include <map>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/watched_call.hpp"
#include "core/base/what_is_at.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// `text` without a byte order mark at its beginning.
std::string_view without_mark(std::string_view text) {
  return text.starts_with(utf8_mark) ? text.substr(utf8_mark.size()) : text;
}

bool is_blank(std::string_view line) {
  return without_mark(line).find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The files that match a pattern, in order.
std::vector<fs::path> matches(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  const int reason = errno;
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, ::globfree);
  if (status != 0 && status != GLOB_NOMATCH && !(status == GLOB_ABORTED && reason == ENOENT))
    fail(ExitCode::io, "cannot search for files that match {}: {}", pattern, std::strerror(reason));
  return {found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0)};
}

/// The extension of a file's name in lower case: ".txt", or "".
std::string extension_of(const fs::path& file) {
  std::string extension = file.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

std::optional<CorpusFormat> format_by_name(const fs::path& file) {
  const std::string extension = extension_of(file);
  if (extension == ".txt") return CorpusFormat::text;
  if (extension == ".jsonl" || extension == ".ndjson") return CorpusFormat::json_lines;
  return std::nullopt;
}

std::string_view format_argument(CorpusFormat format) {
  return format == CorpusFormat::text ? "--format text" : "--format jsonl";
}

/// How to read a file after it was converted: by the extension that is left without the last, as in
/// x.jsonl.gz.
CorpusFormat converted_format(const fs::path& file) {
  return format_by_name(file).value_or(format_by_name(file.stem()).value_or(CorpusFormat::text));
}

/// Throws ExitCode::bad_data for JSON that is not lines, with a command that makes them.
void check_json(std::string_view head, const CorpusInput& input) {
  const std::string name = input.name();
  std::string_view text = without_mark(head);
  const auto skip = [&] { text = text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size())); };
  skip();
  if (text.starts_with('[')) {
    text.remove_prefix(1);
    skip();
    if (text.starts_with('{') || (text.starts_with(']') && extension_of(input.path) == ".json")) {
      fail(ExitCode::bad_data,
           "{} is a JSON array, not JSON lines: jq -c '.[]' {} | mylos tokenize - --format jsonl ...; "
           "--format text takes it as a text",
           name, input.path.empty() ? "FILE" : shell_word(name));
    }
  }
  if (extension_of(input.path) != ".json" || !looks_like_json_lines(text)) return;
  std::string_view line = text.substr(0, text.find('\n'));
  line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
  if (line.size() == text.size() || line.ends_with('}')) {
    fail(
        ExitCode::bad_data,
        "{} is JSON: --format jsonl reads it as JSON lines, one object per line, and --format text as a text",
        name);
  }
  fail(ExitCode::bad_data,
       "{} is JSON, but not one object per line: jq -c . {} | mylos tokenize - --format jsonl ...; "
       "--format text takes it as a text",
       name, shell_word(name));
}

/// The format that the first bytes of `input` suggest.
CorpusFormat guessed_format(std::string_view head, const CorpusInput& input) {
  check_json(head, input);
  const bool is_blank = head.find_first_not_of(" \t\r\n") == std::string_view::npos;
  return looks_like_json_lines(head) || (input.path.empty() && is_blank) ? CorpusFormat::json_lines
                                                                         : CorpusFormat::text;
}

/// How a file came to be an input.
enum class Origin : std::uint8_t { named, matched, found };

/// Finds the files of a corpus, and says what was guessed and left out.
class CorpusSearch {
 public:
  CorpusSearch(std::optional<CorpusFormat> format, const Note& note) : format_(format), note_(note) {}

  std::vector<CorpusInput> find(const std::vector<std::string>& places) {
    for (const std::string& place : places) add_place(place);
    if (inputs_.empty() && !first_own_.empty())
      fail(ExitCode::bad_data, "{}, which mylos has written, not a text", first_own_);
    if (inputs_.empty() && !first_empty_.empty()) fail(ExitCode::bad_data, "{} is empty", first_empty_);
    left_out_ = std::move(named_left_out_);
    if (const std::string left = left_out(); !left.empty()) say(left);
    for (const CorpusFormat format : {CorpusFormat::text, CorpusFormat::json_lines}) say_guesses(format);
    return std::move(inputs_);
  }

 private:
  using FileId = std::pair<dev_t, ino_t>;

  static FileId id_of(const fs::path& path) {
    struct stat info {};
    check_call(::stat(path.c_str(), &info), "read", path);
    return {info.st_dev, info.st_ino};
  }

  void add_place(const std::string& place) {
    if (place == "-") {
      if (std::exchange(has_standard_input_, true)) fail(ExitCode::usage, "standard input is named twice");
      inputs_.push_back({.path = {}, .format = format_, .is_checked = insists()});
      return;
    }
    std::error_code not_there;
    if (fs::exists(fs::symlink_status(place, not_there))) return add_path(place, Origin::named);
    const std::vector<fs::path> paths = matches(place);
    if (paths.empty()) {
      const std::string what = what_is_at(place);
      fail(ExitCode::usage, "no file matches {}{}", place, what == "nothing" ? "" : "; there is " + what);
    }
    const std::size_t before = inputs_.size();
    for (const fs::path& path : paths) add_path(path, Origin::matched);
    const std::string left = left_out();
    if (!left.empty() && inputs_.size() > before) say(fmt::format("{}: {}", place, left));
    if (inputs_.size() == before) fail(ExitCode::usage, "no file that matches {} is a text: {}", place, left);
  }

  void add_path(const fs::path& path, Origin origin) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) refuse_missing(path);
    if (!fs::is_directory(status)) return add_file(path, origin);
    if (const std::string_view own = own_kind(path); !own.empty()) {
      if (origin == Origin::matched) return leave_out(own);
      if (first_own_.empty()) first_own_ = fmt::format("{} is a {}", path.string(), own);
      ++named_left_out_[std::string(own)];
      return;
    }
    const std::size_t before = inputs_.size();
    auto of_pattern = std::exchange(left_out_, {});
    for (const fs::path& file : files_below(path)) add_file(file, Origin::found);
    const std::string left = left_out();
    if (!left.empty() && inputs_.size() > before) say(fmt::format("{}: {}", path.string(), left));
    left_out_ = std::move(of_pattern);
    if (inputs_.size() == before) {
      fail(ExitCode::usage, "{} holds no .txt, .jsonl or .ndjson file{}{}", path.string(),
           left.empty() ? "" : "; ", left);
    }
  }

  [[noreturn]] static void refuse_missing(const fs::path& path) {
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(path, error))) {
      check_call(::access(path.c_str(), F_OK), "read", path);
      fail(ExitCode::io, "cannot read {}", path.string());
    }
    fail(ExitCode::io, "{} is a link to {}, which does not exist or cannot be reached", path.string(),
         fs::read_symlink(path, error).string());
  }

  /// The files below `folder` that a corpus takes, in order of their paths. A link that leads to a folder or
  /// file which was already seen adds nothing.
  std::vector<fs::path> files_below(const fs::path& folder) {
    std::vector<fs::path> files;
    std::set<FileId> seen;
    std::vector<fs::path> folders = {folder};
    while (!folders.empty()) {
      const fs::path place = folders.back();
      folders.pop_back();
      if (!seen.insert(id_of(place)).second) continue;
      std::error_code error;
      fs::directory_iterator entry(place, error);
      if (error) fail(ExitCode::io, "cannot read {}: {}", place.string(), error.message());
      for (; entry != fs::directory_iterator(); entry.increment(error)) {
        const fs::path& path = entry->path();
        if (path.filename().native().starts_with('.')) {
          leave_out("hidden");
          continue;
        }
        const fs::file_status status = fs::status(path, error);
        if (fs::is_directory(status)) {
          folders.push_back(path);
        } else if (!fs::exists(status)) {
          refuse_missing(path);
        } else if (!fs::is_regular_file(status)) {
          leave_out("not a regular file");
        } else if (!format_by_name(path)) {
          const std::string extension = extension_of(path);
          leave_out(extension.empty() ? "without an extension" : extension);
        } else {
          files.push_back(path);
        }
        error.clear();
      }
      if (error) fail(ExitCode::io, "cannot read {}: {}", place.string(), error.message());
    }
    std::ranges::sort(files);
    std::erase_if(files, [&](const fs::path& file) {
      const bool is_second = !seen.insert(id_of(file)).second;
      if (is_second) leave_out("linked twice");
      return is_second;
    });
    return files;
  }

  void add_file(const fs::path& file, Origin origin) {
    CorpusInput input{.path = file, .format = format_, .is_checked = insists()};
    if (!fs::is_regular_file(file)) {  // a stream: it is looked at when it is read
      if (!format_) input.format = format_by_name(file);
      inputs_.push_back(input);
      return;
    }
    if (const std::string_view own = own_kind(file);
        !own.empty() && !(insists() && origin == Origin::named)) {
      if (first_own_.empty()) first_own_ = fmt::format("{} is a {}", file.string(), own);
      ++(origin == Origin::named ? named_left_out_ : left_out_)[std::string(own)];
      return;
    }
    if (fs::file_size(file) == 0) {
      if (origin != Origin::named) return leave_out("empty");
      if (first_empty_.empty()) first_empty_ = file.string();
      ++named_left_out_["empty"];
      return;
    }
    if (!insists()) {
      const std::string head = content_head(file);
      if (origin == Origin::found && known_format(head).name == merge_ranks_kind)
        return leave_out("merge ranks");
      look_at(head, input);
    }
    if (!known_.insert(id_of(file)).second) fail(ExitCode::usage, "{} is named twice", file.string());
    inputs_.push_back(input);
  }

  bool insists() const { return format_ == CorpusFormat::text; }

  /// Checks the first bytes of a file, and decides its format.
  void look_at(std::string_view head, CorpusInput& input) {
    input.is_checked = true;
    check_is_text(head, input.name(), format_argument(format_.value_or(converted_format(input.path))));
    if (format_) return;
    input.format = format_by_name(input.path);
    if (!input.format) {
      input.format = guessed_format(head, input);
      guesses_[*input.format].push_back(input.name());
    } else if (input.format == CorpusFormat::text && looks_like_json_lines(head)) {
      say(fmt::format("warning: {} is read as a text, but looks like JSON lines, which --format jsonl reads",
                      input.name()));
    }
  }

  void leave_out(std::string_view what) { ++left_out_[std::string(what)]; }

  /// Says what was left out, or ""; forgets it.
  std::string left_out() {
    std::vector<std::string> parts;
    for (const auto& [what, count] : std::exchange(left_out_, {})) parts.push_back(counted_kind(count, what));
    return parts.empty() ? "" : "left out: " + join(parts, ", ");
  }

  void say_guesses(CorpusFormat format) {
    const std::vector<std::string>& names = guesses_[format];
    if (names.empty()) return;
    const bool is_text = format == CorpusFormat::text;
    constexpr std::size_t most = 3;
    const std::vector<std::string> shown(
        names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size())));
    say(fmt::format("read as {}: {}{}; {} would read {} as {}", is_text ? "text" : "JSON lines",
                    join(shown, ", "),
                    names.size() > most ? fmt::format(" and {} more", names.size() - most) : "",
                    format_argument(is_text ? CorpusFormat::json_lines : CorpusFormat::text),
                    names.size() > 1 ? "them" : "it", is_text ? "JSON lines" : "text"));
  }

  void say(const std::string& line) const {
    if (note_) note_(line);
  }

  std::optional<CorpusFormat> format_;
  const Note& note_;
  std::vector<CorpusInput> inputs_;
  std::set<FileId> known_;
  bool has_standard_input_ = false;
  using Counts = std::map<std::string, std::int64_t>;  // by extension or kind; extensions come first
  Counts left_out_;                                    // of the folder or pattern
  Counts named_left_out_;
  std::string first_own_;  // the first file that mylos has written
  std::string first_empty_;
  std::map<CorpusFormat, std::vector<std::string>> guesses_;
};

}  // namespace

std::vector<CorpusInput> find_corpus(const std::vector<std::string>& places,
                                     std::optional<CorpusFormat> format, const Note& note) {
  return CorpusSearch(format, note).find(places);
}

CorpusReader::CorpusReader(const std::vector<CorpusInput>& inputs, std::string key, LastCut last_cut,
                           Guessed guessed)
    : inputs_(inputs), last_cut_(std::move(last_cut)), guessed_(std::move(guessed)), json_(std::move(key)) {}

bool CorpusReader::open_next() {
  if (input_ == inputs_.size()) return false;
  const CorpusInput& input = inputs_[input_++];
  bool is_regular = false;
  if (input.path.empty()) {
    file_ = FileDescriptor(::dup(STDIN_FILENO));
    check_call(file_.get(), "read", input.name());
  } else {
    file_ = open_file(input.path, O_RDONLY | O_NONBLOCK);  // `fill` waits for a pipe's writer
    struct stat info {};
    check_call(::fstat(file_.get(), &info), "read", input.path);
    if (S_ISDIR(info.st_mode))
      fail(ExitCode::io, "cannot read {}: there is {}", input.name(), what_is_at(input.path));
    is_regular = S_ISREG(info.st_mode);
    if (is_regular) {
      ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
      check_call(::lseek(file_.get(), input.first, SEEK_SET), "read", input.path);
    }
  }
  is_stream_ = !is_regular;
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

/// Decides the format of the open input by its first bytes, of which those of a stream are seen only now, and
/// skips a byte order mark.
void CorpusReader::look_at_beginning() {
  const CorpusInput& input = inputs_[input_ - 1];
  fill(content_head_bytes);
  const std::string_view head = std::string_view(buffer_).substr(0, content_head_bytes);
  if (!input.is_checked && input.first == 0)
    check_is_text(head, input.name(), format_argument(input.format.value_or(converted_format(input.path))));
  format_ = input.format ? *input.format : guessed_format(head, input);
  if (!input.format && guessed_) guessed_(input, format_);
  position_ = input.first;
  if (format_ == CorpusFormat::text && input.first == 0 && head.starts_with(utf8_mark)) {
    buffer_.erase(0, utf8_mark.size());
    position_ += std::ssize(utf8_mark);
  }
}

std::optional<CorpusBlock> CorpusReader::next() {
  for (;;) {
    if (at_end_ && buffer_.empty() && !in_long_line_) {
      if (!open_next()) return std::nullopt;
      look_at_beginning();
      const CorpusInput& input = inputs_[input_ - 1];
      const bool is_empty = at_end_ && buffer_.empty() && input.is_whole();
      // A pipe without a byte is that of a command which has failed.
      if (is_empty && is_stream_) fail(ExitCode::bad_data, "{} is empty", input.name());
      if (is_empty) continue;  // a byte order mark alone is no document
    }
    if (format_ == CorpusFormat::json_lines) {
      if (auto block = next_of_lines()) return block;
    } else {
      for (std::size_t wanted = block_bytes;; wanted = 2 * buffer_.size()) {
        const bool is_whole = !fill(wanted);
        if (auto block = next_of_text(buffer_, is_whole)) {
          block->offset = position_;
          position_ += std::ssize(block->bytes);
          return block;
        }
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
    if (in_long_line_ && buffer_.starts_with(utf8_mark)) buffer_.erase(0, utf8_mark.size());
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
      json.take(without_mark(line), text);
      has_document = json.end();
    } catch (const Error& error) {
      fail(ExitCode::bad_data, "{}:{}: {}", block.input->name(), number, error.what());
    }
    ++number;
    if (has_document) work(text, document++);
  }
}

}  // namespace mylos
