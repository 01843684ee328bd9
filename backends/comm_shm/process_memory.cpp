// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/process_memory.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace mylos::comm_shm {

namespace {

constexpr int file_bits = 32;  // a key: the file descriptor in the low bits, the process id above

/// Extra bytes mapped after every file, so that two ranks' windows of 2^28 bytes do not lie 2^28 bytes apart.
/// At that distance, their corresponding lines would have equal hashes: Zen's first-level cache predicts the
/// way of a line from a hash of address bits 12 to 27 (Lipp et al., "Take A Way", 2020), and lines of a set
/// with the same hash evict each other.
constexpr std::size_t apart = 4096;

std::shared_ptr<int> owned_file(int file) {
  return {new int(file), [](const int* open) {
            close(*open);
            delete open;
          }};
}

SharedBytes map_file(int file, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes + apart, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED)
    fail(ExitCode::internal, "cannot map {} bytes of shared memory: {}", bytes, std::strerror(errno));
  return {static_cast<std::byte*>(memory), [bytes](std::byte* mapped) { munmap(mapped, bytes + apart); }};
}

}  // namespace

SharedMemory::Offer ProcessMemory::offer(std::size_t bytes) {
  const int file = memfd_create("mylos", MFD_CLOEXEC);
  if (file < 0) fail(ExitCode::internal, "cannot create shared memory: {}", std::strerror(errno));
  std::shared_ptr<int> open = owned_file(file);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    fail(ExitCode::internal, "cannot allocate {} bytes of shared memory: {}", bytes, std::strerror(errno));
  }
  return {map_file(file, bytes), (std::int64_t{getpid()} << file_bits) | file, std::move(open)};
}

SharedBytes ProcessMemory::map(std::int64_t key, std::size_t bytes) {
  const std::string path =
      fmt::format("/proc/{}/fd/{}", key >> file_bits, key & ((std::int64_t{1} << file_bits) - 1));
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    fail(ExitCode::internal, "cannot open the shared memory of another rank, {}: {}", path,
         std::strerror(errno));
  }
  const std::shared_ptr<int> open = owned_file(file);
  return map_file(file, bytes);
}

}  // namespace mylos::comm_shm
