// SPDX-License-Identifier: BSD-3-Clause
// Operations on files and directories, with errors that name the file and say what is there; waits that a
// signal ends; atomic replacement; locks of directories and outputs.
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
    if (this != &other) {
      static_cast<void>(close());
      id_ = other.release();
    }
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

/// open(2) with close-on-exec; throws ExitCode::io with the file, the reason and what is there.
FileDescriptor open_file(const std::filesystem::path& file, int flags);

/// Makes `wait_until_ready` throw, instead of waiting, once `descriptor` can be read. -1 ends that.
void end_waits_with(int descriptor);
/// Waits until `fd` is ready for the `events` of poll(2), POLLIN or POLLOUT. Throws ExitCode::preempted if a
/// signal asks the process to stop before (`end_waits_with`), ExitCode::io if that fails.
void wait_until_ready(int fd, short events, const std::filesystem::path& file);

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

/// unlink(2); returns whether there was a file. Throws ExitCode::io if it cannot be removed.
bool remove_file(const std::filesystem::path& file);

/// The text of a file, or of a pipe until its writers have closed it. Throws ExitCode::io if it cannot be
/// read, ExitCode::bad_data if it is longer than `max_bytes`, ExitCode::preempted as `wait_until_ready`.
std::string read_text_file(const std::filesystem::path& file, std::size_t max_bytes = std::size_t{64} << 20U);
/// Reads `fd` to its end; `name` is for messages. Throws ExitCode::bad_data beyond `max_bytes`,
/// ExitCode::preempted if a signal ends the wait (`wait_until_ready`).
std::string read_stream(int fd, const std::filesystem::path& name, std::size_t max_bytes);

/// A file under a temporary name, which `commit` renames to `file`. The name is `file`.tmp or, if another
/// process is writing a file of that name, `file`-2.tmp ...: the file is locked as long as this object lives,
/// so what a killed process left there is known as such, and is overwritten. A new file gets the permissions
/// of the one that it replaces.
class TemporaryFile {
 public:
  /// Throws ExitCode::io if the file cannot be created or locked, or if a symbolic link has its name.
  explicit TemporaryFile(std::filesystem::path file);
  /// Removes the file unless it was committed.
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int fd() const { return open_.get(); }
  const std::filesystem::path& path() const { return path_; }
  /// Replaces `file`, a link of that name included. On return, the content and the name are on disk.
  void commit();

 private:
  std::filesystem::path file_, path_;
  FileDescriptor open_;
};

/// Replaces `file` with a file that holds `text`; a symbolic link of that name is replaced, not followed. The
/// text is on disk on return. A reader sees the old or the new text, even after a crash; of several writers
/// at the same time, each writes a whole text.
void write_text_file(const std::filesystem::path& file, std::string_view text);

/// The same for a file that a user named; a device or a pipe is written into.
void write_output(const std::filesystem::path& file, std::string_view text);

/// The file that a user means by `path`: if that is a symbolic link, its target, a file that may not exist
/// yet. Links to anything else are returned as they are.
std::filesystem::path follow_links(std::filesystem::path path);

/// Throws ExitCode::io if no file can be created under the name `path`, or the one that is there cannot be
/// replaced: the folder is missing or not writable, or `path` is a folder, a device, a pipe or a file without
/// the right to write.
void try_output(const std::filesystem::path& path);

/// The absolute name of a file, with links resolved as far as it exists. If the system knows no such name (a
/// process substitution), only "." and ".." are removed.
std::filesystem::path place_of(const std::filesystem::path& path);

/// Whether both names stand for the same file, or would if it existed.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b);

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

/// The job that holds the RunLock of `directory`, as the lock file names it; "" if there is none.
std::string run_lock_holder(const std::filesystem::path& directory);

/// Holds the lock <output>.lock during its lifetime, like RunLock, and then removes it. A lock file that a
/// killed process left is taken over.
class OutputLock {
 public:
  /// Throws ExitCode::usage if another process holds the lock; the message names that process. Throws
  /// ExitCode::io like RunLock.
  explicit OutputLock(const std::filesystem::path& output);
  ~OutputLock();
  OutputLock(OutputLock&& other) noexcept = default;
  OutputLock& operator=(OutputLock&& other) = delete;
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace mylos
