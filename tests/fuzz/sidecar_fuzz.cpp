// SPDX-License-Identifier: BSD-3-Clause
// Sidecars: any text is either a sidecar or refused as bad data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "io/tokens/sidecar.hpp"

namespace {

/// The name of a token file whose sidecar is a link to `file`.
std::string make_linked_sidecar(int file) {
  std::string folder = (std::filesystem::temp_directory_path() / "mylos-fuzz-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) std::abort();
  const std::string name = folder + "/tokens.bin";
  std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(file), mylos::sidecar_path(name));
  static const struct Cleaner {
    std::string folder;
    ~Cleaner() { std::filesystem::remove_all(folder); }
  } cleaner{folder};
  return name;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mylos;
  static const int file = memfd_create("sidecar", MFD_CLOEXEC);
  static const std::string name = make_linked_sidecar(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  try {
    if (!read_sidecar(name)) std::abort();
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data) std::abort();
  }
  return 0;
}
