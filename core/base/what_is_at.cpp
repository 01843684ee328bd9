// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/what_is_at.hpp"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/core.h>

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// What `path` stands for, without regard to links on the way.
std::string kind_of(const fs::path& path, const struct stat& info) {
  const auto with_right = [&](const std::string& kind, int right) {
    return ::access(path.c_str(), right) == 0 ? kind : kind + " without the right to read";
  };
  switch (info.st_mode & S_IFMT) {
    case S_IFREG:
      return with_right("a file", R_OK);
    case S_IFDIR:
      return with_right("a folder", R_OK | X_OK);
    case S_IFIFO:
      return with_right("a pipe", R_OK);
    case S_IFSOCK:
      return "a socket";
    default:
      return with_right("a device", R_OK);
  }
}

/// "nothing", and from where on nothing is there.
std::string why_nothing(const fs::path& path, int error) {
  if (error != ENOENT && error != ENOTDIR)
    return fmt::format("nothing to be seen ({})", std::strerror(error));
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  struct stat info {};
  const bool is_there = folder == path || ::stat(folder.c_str(), &info) == 0;
  if (is_there && (folder == path || S_ISDIR(info.st_mode))) return "nothing";
  if (!is_there) return fmt::format("nothing, since {} does not exist", folder.string());
  return fmt::format("nothing, since {} is {}", folder.string(), what_is_at(folder));
}

}  // namespace

std::string what_is_at(const fs::path& path) {
  struct stat info {};
  if (path.empty()) return "no name";
  if (::lstat(path.c_str(), &info) != 0) return why_nothing(path, errno);
  if (!S_ISLNK(info.st_mode)) return kind_of(path, info);
  std::error_code ignored;
  const fs::path target = fs::read_symlink(path, ignored);
  if (::stat(path.c_str(), &info) == 0)
    return fmt::format("a link to {}, {}", target.string(), kind_of(path, info));
  if (errno == ENOENT) return fmt::format("a link to {}, which does not exist", target.string());
  if (errno == ELOOP) return fmt::format("a link to {}, which leads in a circle", target.string());
  return fmt::format("a link to {}, which cannot be reached ({})", target.string(), std::strerror(errno));
}

}  // namespace mylos
