// SPDX-License-Identifier: BSD-3-Clause
// Token files of both formats: any content is either read or refused as bad data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "io/tokens/token_dataset.hpp"

namespace {

using namespace mylos;

void read_all(const std::string& name, TokenFormat format, std::int64_t vocab, std::int64_t seq_len) {
  std::vector<TokenDataset::Source> sources(1);
  sources[0].files.emplace_back(name, vocab, format, 2);
  const TokenDataset data(std::move(sources), {}, seq_len, 1);
  std::vector<std::int32_t> window(static_cast<std::size_t>(seq_len + 1));
  const auto check = [&] {
    for (const std::int32_t token : window) {
      if (token < 0 || token >= vocab) std::abort();
    }
  };
  for (std::int64_t i = 0; i < 2 * data.num_windows(); ++i) {
    data.sample(i, window.data());
    check();
  }
  const EvaluationWindows windows(data);
  for (std::int64_t i = 0; i < windows.size(); ++i) {
    data.read(windows[i].file, windows[i].first, window);
    check();
  }
}

}  // namespace

/// Bytes 0 and 1: format, vocabulary and sequence length; the rest is the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static const int file = memfd_create("tokens", MFD_CLOEXEC);
  static const std::string name = "/proc/self/fd/" + std::to_string(file);
  const std::size_t bytes = size - 2;
  if (ftruncate(file, 0) != 0 || pwrite(file, data + 2, bytes, 0) != static_cast<ssize_t>(bytes))
    std::abort();
  const TokenFormat format = data[0] % 2 == 0 ? TokenFormat::llmc : TokenFormat::nanogpt;
  try {
    read_all(name, format, (std::int64_t{1} << (data[0] / 2 % 17U)) + 1, 1 + data[1] % 64);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data) std::abort();
  }
  return 0;
}
