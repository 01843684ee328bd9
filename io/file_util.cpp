// SPDX-License-Identifier: BSD-3-Clause
#include "io/file_util.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"

namespace mylos {

namespace fs = std::filesystem;

void check_call(std::int64_t result, const char* verb, const fs::path& file) {
  if (result < 0) fail(ExitCode::io, "cannot {} {}: {}", verb, file.string(), std::strerror(errno));
}

FileDescriptor open_file(const fs::path& file, int flags) {
  constexpr mode_t mode = 0666;
  const WatchedCall call(CallKind::io, "open", file.native());
  FileDescriptor fd(::open(file.c_str(), flags | O_CLOEXEC, mode));
  check_call(fd.get(), "open", file);
  return fd;
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

std::string read_text_file(const fs::path& file, std::size_t max_bytes) {
  const FileDescriptor fd = open_file(file, O_RDONLY | O_NONBLOCK);  // does not wait for a pipe's writer
  struct stat info {};
  check_call(::fstat(fd.get(), &info), "read", file);
  if (!S_ISREG(info.st_mode)) fail(ExitCode::io, "cannot read {}: not a regular file", file.string());
  if (static_cast<std::size_t>(info.st_size) > max_bytes) {
    fail(ExitCode::bad_data, "{} has {} bytes; at most {} are expected", file.string(), info.st_size,
         max_bytes);
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  read_fully(fd.get(), file, text.data(), text.size(), 0);
  return text;
}

void write_text_file(const fs::path& file, std::string_view text) {
  const fs::path temporary = file.string() + ".tmp";
  {
    const FileDescriptor fd = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    write_fully(fd.get(), temporary, text.data(), text.size(), 0);
  }
  sync_path(temporary);
  rename_file(temporary, file);
  sync_path(file.has_parent_path() ? file.parent_path() : fs::path("."));
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
    sync_path(path->has_parent_path() ? path->parent_path() : fs::path("."));
  }
  if (!fs::is_directory(directory, error))
    fail(ExitCode::io, "cannot create {}: there is a file of that name", directory.string());
  check_call(::access(directory.c_str(), W_OK | X_OK), "write in", directory);
}

RunLock::RunLock(const fs::path& directory, std::string_view parameter) {
  const fs::path lock = directory / "lock";
  const WatchedCall call(CallKind::io, "lock", lock.native());
  file_ = open_file(lock, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail(ExitCode::io, "cannot lock {}: {}", lock.string(), std::strerror(errno));
    std::string holder = read_text_file(lock, 4096);
    while (!holder.empty() && holder.back() == '\n') holder.pop_back();
    fail(ExitCode::usage, "{} is in use by {}; wait for it, or give another {}", directory.string(),
         holder.empty() ? "another job" : holder, parameter);
  }
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string holder = fmt::format("process {} on {}\n", ::getpid(), host.data());
  check_call(::ftruncate(file_.get(), 0), "write", lock);
  write_fully(file_.get(), lock, holder.data(), holder.size(), 0);
}

}  // namespace mylos
