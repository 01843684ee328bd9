// SPDX-License-Identifier: BSD-3-Clause
// Headers of safetensors files: any content either gives tensors that cover the file, or is refused as bad
// data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "io/models/safetensors_header.hpp"

namespace {

using namespace mylos;

std::string file_of(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + header + std::string(data, 'x');
}

/// A header whose tensors have names, types, shapes and offsets from the bytes.
std::string generated_header(std::string_view bytes) {
  const auto take = [&]() -> unsigned {
    if (bytes.empty()) return 0;
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    return byte;
  };
  const auto number = [&]() -> std::uint64_t {
    const unsigned byte = take();
    return byte < 250 ? byte % 16 : (std::uint64_t{1} << (57 + byte - 250)) + take() % 3 - 1;  // to 2^62 + 1
  };
  constexpr const char* types[] = {"F32", "BF16", "U8", "F4", "I64", "X"};
  std::string header = "{";
  std::uint64_t end = 0;
  while (!bytes.empty()) {
    const unsigned name = take();
    const unsigned type = take() % std::size(types);
    std::string shape;
    for (unsigned rank = take() % 4; rank > 0; --rank)
      shape += fmt::format("{}{}", shape.empty() ? "" : ",", number());
    const std::uint64_t begin = take() % 4 == 0 ? number() : end;
    end = begin + number();
    header += fmt::format(R"({}"\u00{:02x}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() == 1 ? "" : ",", name, types[type], shape, begin, end);
  }
  return header + "}";
}

void check(int file) {
  const std::vector<SafetensorsTensor> tensors = read_safetensors_header(file, "x");
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].begin != tensors[i - 1].end) std::abort();
  for (const SafetensorsTensor& tensor : tensors)
    if (tensor.begin > tensor.end || tensor.dtype.empty() || tensor.shape.size() > 8) std::abort();
  if (!tensors.empty() && tensors.back().end != lseek(file, 0, SEEK_END)) std::abort();
}

}  // namespace

/// Byte 0 says what the rest is: a file, the text of a header after its brace, or numbers for a header. Byte
/// 1 is the number of bytes after a header.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static const int file = memfd_create("safetensors", MFD_CLOEXEC);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::string content(rest);
  if (data[0] % 3 == 1) content = file_of("{" + content, data[1]);
  if (data[0] % 3 == 2) content = file_of(generated_header(rest), data[1]);
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size()))
    std::abort();
  try {
    check(file);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data) std::abort();
    if (std::string_view(error.what()).size() > 4000) std::abort();  // names are cut
  }
  return 0;
}
