// SPDX-License-Identifier: BSD-3-Clause
// A library that is preloaded into a program and makes a call of the C library on some paths, or of MPI,
// fail, wait, or write fewer bytes than requested. MYLOS_FAIL=PREFIX:RANK:CALL:N:ERROR: on that rank the N-th
// call of that kind (pread, pwrite, fsync, truncate, fallocate, rename, mkdir, unlink, open, statfs, or
// MPI_Finalize, with an empty path), counted from 1, on a path that begins with PREFIX fails with errno
// ERROR; RANK * is every rank. With ERROR 0 a pwrite writes half of the bytes and a statfs reports NFS; with
// -1 this call and all later ones never return; with -2 they wait until the file that MYLOS_RELEASE names
// exists. Each such call is reported on stderr.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace {

struct Plan {
  std::string directory;
  std::string call;  // empty: nothing fails
  long n = 0;
  int error = 0;
};

Plan read_plan() {
  const char* text = std::getenv("MYLOS_FAIL");
  const char* rank = std::getenv("PMI_RANK");
  if (text == nullptr) return {};
  std::array<std::string, 5> fields;
  std::string_view rest = text;
  for (std::string& field : fields) {
    field = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
  }
  if (fields[1] != "*" && fields[1] != (rank == nullptr ? "0" : rank)) return {};
  return {fields[0], fields[2], std::atol(fields[3].c_str()), std::atoi(fields[4].c_str())};
}

std::string path_of(int fd) {
  std::array<char, 4096> path{};
  const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size() - 1);
  return n < 0 ? "" : path.data();
}

std::string path_in(int directory, const char* path) {
  return path[0] == '/' || directory == AT_FDCWD ? path : path_of(directory) + "/" + path;
}

/// Whether this call of `kind` on `path` is the one that fails; if so, sets errno. Waits if the plan says so.
bool fails(std::string_view kind, const std::string& path) {
  static const Plan plan = read_plan();
  static std::atomic<long> count{0};
  if (plan.call != kind || !path.starts_with(plan.directory)) return false;
  const long n = ++count;
  if (plan.error < 0 ? n < plan.n : n != plan.n) return false;
  dprintf(STDERR_FILENO, "failing call: %s %ld on %s\n", plan.call.c_str(), plan.n, path.c_str());
  while (plan.error == -1) pause();
  if (plan.error == -2) {
    while (access(std::getenv("MYLOS_RELEASE"), F_OK) != 0) usleep(10000);
    return false;
  }
  errno = plan.error;
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

ssize_t write_or_fail(const char* name, int fd, const void* data, size_t bytes, off_t offset) {
  using Write = ssize_t(int, const void*, size_t, off_t);
  const auto write_on = [&](size_t some) { return next<Write>(name)(fd, data, some, offset); };
  if (!fails("pwrite", path_of(fd))) return write_on(bytes);
  if (errno != 0) return -1;
  // Half of the bytes, or, if there are more than two pages, half of the pages: direct I/O needs whole pages.
  return write_on(bytes > 8192 ? bytes / 8192 * 4096 : (bytes + 1) / 2);
}

int open_or_fail(const char* name, const char* path, int flags, mode_t mode) {
  if (fails("open", path)) return -1;
  return next<int(const char*, int, mode_t)>(name)(path, flags, mode);
}

int openat_or_fail(const char* name, int directory, const char* path, int flags, mode_t mode) {
  if (fails("open", path_in(directory, path))) return -1;
  return next<int(int, const char*, int, mode_t)>(name)(directory, path, flags, mode);
}

template <class Info>
int statfs_or_fail(const char* name, const char* path, Info* info) {
  constexpr auto nfs = 0x6969;
  const int result = next<int(const char*, Info*)>(name)(path, info);
  if (!fails("statfs", path)) return result;
  if (errno != 0) return -1;
  info->f_type = nfs;
  return 0;
}

mode_t mode_of(int flags, va_list more) {
  return (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  return fails("pread", path_of(fd))
             ? -1
             : next<ssize_t(int, void*, size_t, off_t)>("pread")(fd, data, bytes, offset);
}
ssize_t pread64(int fd, void* data, size_t bytes, off64_t offset) {
  return fails("pread", path_of(fd))
             ? -1
             : next<ssize_t(int, void*, size_t, off64_t)>("pread64")(fd, data, bytes, offset);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return write_or_fail("pwrite", fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return write_or_fail("pwrite64", fd, data, bytes, offset);
}
int statfs(const char* path, struct statfs* info) noexcept {
  return statfs_or_fail("statfs", path, info);
}
int statfs64(const char* path, struct statfs64* info) noexcept {
  return statfs_or_fail("statfs64", path, info);
}
int MPI_Finalize() {
  return fails("MPI_Finalize", "") ? -1 : next<int()>("MPI_Finalize")();
}
int fsync(int fd) {
  return fails("fsync", path_of(fd)) ? -1 : next<int(int)>("fsync")(fd);
}
int ftruncate(int fd, off_t bytes) noexcept {
  return fails("truncate", path_of(fd)) ? -1 : next<int(int, off_t)>("ftruncate")(fd, bytes);
}
int ftruncate64(int fd, off64_t bytes) noexcept {
  return fails("truncate", path_of(fd)) ? -1 : next<int(int, off64_t)>("ftruncate64")(fd, bytes);
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return fails("fallocate", path_of(fd))
             ? -1
             : next<int(int, int, off_t, off_t)>("fallocate")(fd, mode, offset, bytes);
}
int rename(const char* from, const char* to) noexcept {
  return fails("rename", to) ? -1 : next<int(const char*, const char*)>("rename")(from, to);
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fails("mkdir", path) ? -1 : next<int(const char*, mode_t)>("mkdir")(path, mode);
}
int unlink(const char* path) noexcept {
  return fails("unlink", path) ? -1 : next<int(const char*)>("unlink")(path);
}
int remove(const char* path) noexcept {
  return fails("unlink", path) ? -1 : next<int(const char*)>("remove")(path);
}
int rmdir(const char* path) noexcept {
  return fails("unlink", path) ? -1 : next<int(const char*)>("rmdir")(path);
}
int unlinkat(int directory, const char* path, int flags) noexcept {
  return fails("unlink", path_in(directory, path))
             ? -1
             : next<int(int, const char*, int)>("unlinkat")(directory, path, flags);
}
int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_or_fail("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return open_or_fail("open64", path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return openat_or_fail("openat", directory, path, flags, mode);
}
int openat64(int directory, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  return openat_or_fail("openat64", directory, path, flags, mode);
}

}  // extern "C"
