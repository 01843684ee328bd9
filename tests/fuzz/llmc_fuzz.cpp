// SPDX-License-Identifier: BSD-3-Clause
// Model files of llm.c: any content is either read, as finite values, or refused as bad data.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "io/models/llmc_file.hpp"

namespace {

using namespace mylos;

/// A file of the right size for the shape in the first bytes, filled with the rest again and again.
std::string generated_file(std::string_view bytes) {
  constexpr std::size_t shape_bytes = 7;
  if (bytes.size() <= shape_bytes) return {};
  const auto small = [&](std::size_t i, int most) { return 1 + static_cast<unsigned char>(bytes[i]) % most; };
  LlmcHeader header{};
  const int heads = small(3, 3);
  header[0] = llmc_model_magic;
  header[1] = bytes[0] % 2 == 0 ? llmc_fp32_version : llmc_bf16_version;
  header[2] = small(1, 4);
  header[3] = 1 + small(2, 7);
  header[4] = small(4, 3);
  header[5] = heads;
  header[6] = heads * small(5, 3);
  header[7] = header[3] + small(6, 4) - 1;
  const ModelConfig model = {.layers = header[4], .heads = heads, .width = header[6], .context = header[2]};
  std::size_t size = 0;
  for (const LlmcTensor& tensor : llmc_tensors(model, header[7]))
    size += static_cast<std::size_t>(tensor.size()) * (bytes[0] % 2 == 0 ? 4 : 2);
  std::string file(reinterpret_cast<const char*>(header.data()), sizeof header);
  const std::string_view values = bytes.substr(shape_bytes);
  while (file.size() < sizeof header + size)
    file += values.substr(0, std::min(values.size(), sizeof header + size - file.size()));
  return file;
}

void read_all(const std::string& name) {
  const auto file = open_llmc_file(name);
  const ModelConfig& model = file->description().model;
  for (const LlmcTensor& stored : llmc_tensors(model, model.vocab)) {
    TensorInfo tensor{stored.name, {stored.rows, stored.columns}};
    if (stored.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
    const bool is_embedding = stored.name.starts_with("w");
    if (!stored.transposed && !is_embedding) tensor.shape = {stored.columns};
    std::vector<float> values(static_cast<std::size_t>(tensor.size()));
    TensorPart part{.box = Box::whole(tensor.shape), .data = values.data(), .stride = {1}};
    if (tensor.shape.size() == 2) part.stride.insert(part.stride.begin(), tensor.shape[1]);
    file->read(tensor, {part});
    for (const float value : values)
      if (!std::isfinite(value)) std::abort();
  }
}

}  // namespace

/// Byte 0 says whether the rest is a file, or what a file is made from.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  static const int file = memfd_create("llmc", MFD_CLOEXEC);
  static const std::string name = "/proc/self/fd/" + std::to_string(file);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string content = data[0] % 4 == 0 ? std::string(rest) : generated_file(rest);
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size()))
    std::abort();
  try {
    read_all(name);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data) std::abort();
  }
  return 0;
}
