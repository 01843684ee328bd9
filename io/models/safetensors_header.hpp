// SPDX-License-Identifier: BSD-3-Clause
// The header of a safetensors file: the length of a JSON text (8 bytes, little endian), and that text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mylos {

/// A tensor of a safetensors file; its elements are little endian and row-major.
struct SafetensorsTensor {
  std::string name;
  std::string_view dtype;           ///< as in the file: "F32", "BF16", "I64"
  std::vector<std::int64_t> shape;  ///< empty for a scalar; extents may be 0
  std::int64_t begin = 0;           ///< first byte in the file
  std::int64_t end = 0;
};

/// Reads the header of `file`, which is open as `fd`. The tensors come in the order of their bytes, which
/// they cover from the header to the end of the file. Throws ExitCode::bad_data, naming the file and the
/// tensor, if the file breaks a rule of the format (https://github.com/huggingface/safetensors), ExitCode::io
/// if it cannot be read. Takes at most some 300 MiB of memory.
std::vector<SafetensorsTensor> read_safetensors_header(int fd, const std::filesystem::path& file);

/// A name from a file, for messages: in quotation marks, with escapes, and cut if it is long.
std::string in_quotes(std::string_view name);

}  // namespace mylos
