// SPDX-License-Identifier: BSD-3-Clause
#include "io/file_util.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/host.hpp"
#include "core/base/watched_call.hpp"
#include "core/base/what_is_at.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

std::atomic<int> stop_descriptor{-1};

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

/// Opens and locks the file at `path`, creating it if there is none. Empty if another process holds it.
std::optional<FileDescriptor> lock_file(const fs::path& path) {
  for (;;) {
    const WatchedCall call(CallKind::io, "lock", path.native());
    FileDescriptor file = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::nullopt;
      fail(ExitCode::io, "cannot lock {}: {}", path.string(), std::strerror(errno));
    }
    // The process that held the lock may have removed or renamed the file that was opened.
    struct stat locked {};
    struct stat named {};
    check_call(::fstat(file.get(), &locked), "lock", path);
    if (::lstat(path.c_str(), &named) == 0 && locked.st_dev == named.st_dev && locked.st_ino == named.st_ino)
      return file;
  }
}

/// The process that wrote its name into a lock file.
std::string holder_of(const fs::path& lock, const char* otherwise) {
  constexpr std::size_t most_bytes = 4096;
  std::string holder;
  try {
    holder = read_text_file(lock, most_bytes);
  } catch (const Error&) {  // it has just been removed
    return otherwise;
  }
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  return holder.empty() ? otherwise : holder;
}

void write_holder(int fd, const fs::path& lock) {
  const std::string holder = own_process() + "\n";
  check_call(::ftruncate(fd, 0), "write", lock);
  write_fully(fd, lock, holder.data(), holder.size(), 0);
}

}  // namespace

void check_call(std::int64_t result, const char* verb, const fs::path& file) {
  if (result < 0) fail(ExitCode::io, "cannot {} {}: {}", verb, file.string(), std::strerror(errno));
}

FileDescriptor open_file(const fs::path& file, int flags) {
  constexpr mode_t mode = 0666;
  const WatchedCall call(CallKind::io, "open", file.native());
  FileDescriptor fd(::open(file.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) {
    const std::string reason = std::strerror(errno);
    fail(ExitCode::io, "cannot open {}: {}; there is {}", file.string(), reason, what_is_at(file));
  }
  return fd;
}

void end_waits_with(int descriptor) {
  stop_descriptor = descriptor;
}

void wait_until_ready(int fd, short events, const fs::path& file) {
  std::array<pollfd, 2> waits = {
      {{.fd = fd, .events = events, .revents = 0}, {.fd = stop_descriptor, .events = POLLIN, .revents = 0}}};
  while (::poll(waits.data(), waits.size(), -1) < 0)
    if (errno != EINTR) fail(ExitCode::io, "cannot wait for {}: {}", file.string(), std::strerror(errno));
  if (waits[0].revents == 0) fail(ExitCode::preempted, "stopped by a signal");
}

void allow_open_files(std::size_t count) {
  constexpr rlim_t others = 512;  // pipes, sockets, libraries, checkpoints
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count + others) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, count + others);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void read_fully(int fd, const fs::path& file, void* data, std::size_t bytes, std::int64_t offset) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const WatchedCall call(CallKind::io, "read", file.native(), bytes);
    const ssize_t n = ::pread(fd, to, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(ExitCode::io, "cannot read {} at offset {}: {}", file.string(), offset, std::strerror(errno));
    if (n == 0) fail(ExitCode::io, "{} ends at offset {}, {} bytes too early", file.string(), offset, bytes);
    to += n;
    bytes -= static_cast<std::size_t>(n);
    offset += n;
  }
}

void write_fully(int fd, const fs::path& file, const void* data, std::size_t bytes, std::int64_t offset) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const WatchedCall call(CallKind::io, "write", file.native(), bytes);
    const ssize_t n = ::pwrite(fd, from, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(ExitCode::io, "cannot write {} at offset {}: {}", file.string(), offset, std::strerror(errno));
    if (n == 0)
      fail(ExitCode::io, "cannot write {} at offset {}: no bytes were written", file.string(), offset);
    from += n;
    bytes -= static_cast<std::size_t>(n);
    offset += n;
  }
}

void sync_file(int fd, const fs::path& file) {
  const WatchedCall call(CallKind::io, "fsync", file.native());
  // Some file systems cannot sync a directory and return EINVAL; nothing makes their renames more durable.
  if (::fsync(fd) != 0 && errno != EINVAL)
    fail(ExitCode::io, "cannot sync {}: {}", file.string(), std::strerror(errno));
}

void sync_path(const fs::path& path) {
  sync_file(open_file(path, O_RDONLY).get(), path);
}

void rename_file(const fs::path& from, const fs::path& to) {
  const WatchedCall call(CallKind::io, "rename", to.native());
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail(ExitCode::io, "cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
}

bool remove_file(const fs::path& file) {
  const WatchedCall call(CallKind::io, "unlink", file.native());
  if (::unlink(file.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  const std::string reason = std::strerror(errno);
  fail(ExitCode::io, "cannot remove {}: {}; there is {}", file.string(), reason, what_is_at(file));
}

std::string read_text_file(const fs::path& file, std::size_t max_bytes) {
  const FileDescriptor fd = open_file(file, O_RDONLY | O_NONBLOCK);  // does not wait for a pipe's writer
  struct stat info {};
  check_call(::fstat(fd.get(), &info), "read", file);
  if (S_ISDIR(info.st_mode))
    fail(ExitCode::io, "cannot read {}: there is {}", file.string(), what_is_at(file));
  if (std::cmp_greater(info.st_size, max_bytes)) {
    fail(ExitCode::bad_data, "{} has {} bytes; at most {} are expected", file.string(), info.st_size,
         max_bytes);
  }
  if (S_ISREG(info.st_mode)) {
    std::string text(static_cast<std::size_t>(info.st_size), '\0');
    read_fully(fd.get(), file, text.data(), text.size(), 0);
    return text;
  }
  return read_stream(fd.get(), file, max_bytes);
}

std::string read_stream(int fd, const fs::path& name, std::size_t max_bytes) {
  std::string text;
  for (;;) {
    std::array<char, 65536> part{};
    wait_until_ready(fd, POLLIN, name);
    const ssize_t n = ::read(fd, part.data(), part.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    check_call(n, "read", name);
    if (n == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(n));
    if (text.size() > max_bytes)
      fail(ExitCode::bad_data, "{} has more than the {} bytes that are expected", name.string(), max_bytes);
  }
}

TemporaryFile::TemporaryFile(fs::path file) : file_(std::move(file)) {
  for (int number = 1; !open_; ++number) {
    path_ = file_.string() + (number == 1 ? ".tmp" : fmt::format("-{}.tmp", number));
    if (auto locked = lock_file(path_)) open_ = *std::move(locked);
  }
  struct stat before {};
  check_call(::ftruncate(open_.get(), 0), "write", path_);
  if (::lstat(file_.c_str(), &before) == 0 && S_ISREG(before.st_mode))
    ::fchmod(open_.get(), before.st_mode & 0777U);
}

TemporaryFile::~TemporaryFile() {
  if (open_) ::unlink(path_.c_str());
}

void TemporaryFile::commit() {
  sync_file(open_.get(), path_);
  rename_file(path_, file_);
  check_call(open_.close(), "close", file_);
  sync_path(folder_of(file_));
}

void write_text_file(const fs::path& file, std::string_view text) {
  TemporaryFile temporary(file);
  write_fully(temporary.fd(), temporary.path(), text.data(), text.size(), 0);
  temporary.commit();
}

void write_output(const fs::path& file, std::string_view text) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return write_text_file(file, text);
  const FileDescriptor stream(::open(file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (!stream) {
    const std::string reason = errno == ENXIO ? "nobody reads it" : std::strerror(errno);
    fail(ExitCode::io, "cannot write {}: {}; there is {}", file.string(), reason, what_is_at(file));
  }
  while (!text.empty()) {
    wait_until_ready(stream.get(), POLLOUT, file);
    const WatchedCall call(CallKind::io, "write", file.native(), text.size());
    const ssize_t n = ::write(stream.get(), text.data(), text.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    check_call(n, "write", file);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

fs::path follow_links(fs::path path) {
  constexpr int most_links = 40;  // as the kernel follows
  std::error_code error;
  for (int i = 0; fs::is_symlink(path, error); ++i) {
    const fs::file_type type = fs::status(path, error).type();
    if (type != fs::file_type::regular && type != fs::file_type::not_found) return path;  // /dev/stdout
    if (i == most_links) return path;
    const fs::path target = fs::read_symlink(path, error);
    path = path.parent_path() / target;  // only the target if that is absolute
  }
  return path;
}

void try_output(const fs::path& path) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode))
    fail(ExitCode::io, "cannot write {}: there is {}", path.string(), what_is_at(path));
  if (exists && ::access(path.c_str(), W_OK) != 0)
    fail(ExitCode::io, "cannot write {}: there is a file without the right to write", path.string());
  const TemporaryFile created(path);
}

fs::path place_of(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error);
  const fs::path place = fs::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : place;
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return place_of(a) == place_of(b) || fs::equivalent(a, b, error);
}

fs::path unused_name(const fs::path& wish) {
  fs::path name = wish;
  for (int i = 2; fs::exists(fs::symlink_status(name)); ++i) name = wish.string() + fmt::format("-{}", i);
  return name;
}

void make_directory(const fs::path& directory) {
  const WatchedCall call(CallKind::io, "mkdir", directory.native());
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path path = directory; !path.empty() && !fs::exists(path, error); path = path.parent_path())
    missing.push_back(path);
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    fs::create_directory(*path, error);
    if (error) fail(ExitCode::io, "cannot create {}: {}", path->string(), error.message());
    sync_path(folder_of(*path));
  }
  if (!fs::is_directory(directory, error))
    fail(ExitCode::io, "cannot create {}: there is a file of that name", directory.string());
  check_call(::access(directory.c_str(), W_OK | X_OK), "write in", directory);
}

RunLock::RunLock(const fs::path& directory, std::string_view parameter) {
  const fs::path lock = directory / "lock";
  if (auto file = lock_file(lock)) {
    file_ = *std::move(file);
    write_holder(file_.get(), lock);
    return;
  }
  fail(ExitCode::usage, "{} is in use by {}; wait for it, or give another {}", directory.string(),
       holder_of(lock, "another job"), parameter);
}

std::string run_lock_holder(const fs::path& directory) {
  const fs::path lock = directory / "lock";
  const FileDescriptor file(::open(lock.c_str(), O_RDONLY | O_CLOEXEC));
  const bool is_held = file && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return is_held ? holder_of(lock, "another job") : "";
}

OutputLock::OutputLock(const fs::path& output) : path_(output.string() + ".lock") {
  auto file = lock_file(path_);
  if (!file) {
    fail(ExitCode::usage, "{} is being written by {}; wait for it, or name another file", output.string(),
         holder_of(path_, "another process"));
  }
  file_ = *std::move(file);
  try {
    write_holder(file_.get(), path_);
  } catch (...) {  // no destructor will run
    ::unlink(path_.c_str());
    throw;
  }
}

OutputLock::~OutputLock() {
  if (file_) ::unlink(path_.c_str());
}

}  // namespace mylos
