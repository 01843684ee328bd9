// SPDX-License-Identifier: BSD-3-Clause
// Operations on files and directories, with errors that name the file; atomic replacement; the lock of a
// directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace mylos {

/// Owns an identifier of something open, which `close_function` closes. The identifier of an empty handle is
/// -1. The destructor ignores errors: if they matter, call `close`.
template <class Id, auto close_function>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Id id) : id_(id) {}
  ~Handle() { static_cast<void>(close()); }
  Handle(Handle&& other) noexcept : id_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }

  Id get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Gives up the identifier without closing it.
  Id release() { return std::exchange(id_, -1); }
  /// Returns a negative number on failure.
  [[nodiscard]] int close() { return id_ < 0 ? 0 : close_function(release()); }

 private:
  Id id_ = -1;
};

using FileDescriptor = Handle<int, ::close>;

/// Throws ExitCode::io if `result` of a system call is negative: "cannot `verb` FILE" and errno's reason.
void check_call(std::int64_t result, const char* verb, const std::filesystem::path& file);

/// open(2) with close-on-exec; throws ExitCode::io with the file and the reason.
FileDescriptor open_file(const std::filesystem::path& file, int flags);

/// Raises this process's limit on open files, as far as permitted, so that `count` files can be open besides
/// the usual ones.
void allow_open_files(std::size_t count);

/// Reads or writes all of [offset, offset + bytes). Throws ExitCode::io on failure, including when a read
/// reaches the end of the file too early.
void read_fully(int fd, const std::filesystem::path& file, void* data, std::size_t bytes,
                std::int64_t offset);
void write_fully(int fd, const std::filesystem::path& file, const void* data, std::size_t bytes,
                 std::int64_t offset);

/// fsync(2) of a file or directory.
void sync_path(const std::filesystem::path& path);
void sync_file(int fd, const std::filesystem::path& file);

/// rename(2): replaces `to`.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// The text of a file. Throws ExitCode::io if it cannot be read, ExitCode::bad_data if it is longer than
/// `max_bytes`.
std::string read_text_file(const std::filesystem::path& file, std::size_t max_bytes = std::size_t{64} << 20U);

/// Replaces `file` with a file that holds `text`; a symbolic link of that name is replaced, not followed. The
/// text is on disk on return. A reader sees the old or the new text, even after a crash.
void write_text_file(const std::filesystem::path& file, std::string_view text);

/// `wish` or, if that exists, the first unused name of `wish`-2, `wish`-3 ...
std::filesystem::path unused_name(const std::filesystem::path& wish);

/// Creates `directory` and its parents if they are missing; new ones are on disk on return. Throws
/// ExitCode::io if that fails or the directory is not writable.
void make_directory(const std::filesystem::path& directory);

/// Holds the lock <directory>/lock during its lifetime. The lock is a flock(2): the kernel releases it if the
/// job is killed.
class RunLock {
 public:
  /// Throws ExitCode::usage if another job holds the lock; the message names that job, if it is known, and
  /// `parameter`, the deck's parameter for the directory. Throws ExitCode::io if the lock file cannot be
  /// opened or written, or if locking it fails for another reason.
  RunLock(const std::filesystem::path& directory, std::string_view parameter);

 private:
  FileDescriptor file_;
};

}  // namespace mylos
