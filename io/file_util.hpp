// SPDX-License-Identifier: BSD-3-Clause
// Files and directories with errors that name them, atomic replacement, and the lock of a run directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace mylos {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

/// open(2) with close-on-exec; throws ExitCode::io with the file and the reason.
FileDescriptor open_file(const std::filesystem::path& file, int flags);

/// Raises this process' limit on open files, if it may, so that it can open `count` more.
void allow_open_files(std::size_t count);

/// Reads or writes all of [offset, offset + bytes); throws ExitCode::io, also where the file ends before.
void read_fully(int fd, const std::filesystem::path& file, void* data, std::size_t bytes,
                std::int64_t offset);
void write_fully(int fd, const std::filesystem::path& file, const void* data, std::size_t bytes,
                 std::int64_t offset);

/// fsync(2) of a file or directory, which may be open.
void sync_path(const std::filesystem::path& path);
void sync_file(int fd, const std::filesystem::path& file);

/// rename(2): replaces `to`.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// The text of a file; throws ExitCode::io where it cannot be read, ExitCode::bad_data where it is longer
/// than `max_bytes`.
std::string read_text_file(const std::filesystem::path& file, std::size_t max_bytes = std::size_t{64} << 20U);

/// Replaces `file` by `text`, on disk when it returns and through no symbolic link: a reader, also after a
/// crash, sees the old or the new text.
void write_text_file(const std::filesystem::path& file, std::string_view text);

/// `wish`, or with "-2", "-3" ... behind it the first name that nothing has.
std::filesystem::path unused_name(const std::filesystem::path& wish);

/// Creates `directory` and its parents, on disk when it returns; throws ExitCode::io if that fails or it
/// cannot be written.
void make_directory(const std::filesystem::path& directory);

/// Holds <directory>/lock while it lives: a flock(2), so that one left by a killed job blocks nobody.
class RunLock {
 public:
  /// Throws ExitCode::usage naming the job that holds the directory, which `parameter` of the deck gives,
  /// ExitCode::io if the lock cannot be written.
  RunLock(const std::filesystem::path& directory, std::string_view parameter);

 private:
  FileDescriptor file_;
};

}  // namespace mylos
