// SPDX-License-Identifier: BSD-3-Clause
#include "io/tensorboard/event_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <fcntl.h>
#include <limits>
#include <unistd.h>

#include <fmt/core.h>

#include "core/base/error.hpp"
#include "core/base/host.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view name_begin = "events.out.tfevents.";

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = (remainder >> 1U) ^ ((remainder & 1U) != 0 ? 0x82F63B78U : 0U);
    table[byte] = remainder;
  }
  return table;
}();

template <class Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xFFU);
  return bytes;
}

std::string masked_crc(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xA282EAD8U);
}

/// A record of TensorFlow's TFRecord format.
std::string record_of(std::string_view data) {
  const std::string length = little_endian(std::uint64_t{data.size()});
  return fmt::format("{}{}{}{}", length, masked_crc(length), data, masked_crc(data));
}

// Fields in protobuf's wire format: the key (number and type of the field), then the value.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, length_delimited = 2, fixed32 = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80U; value >>= 7U) bytes += static_cast<char>((value & 0x7FU) | 0x80U);
  return bytes + static_cast<char>(value);
}

std::string key(unsigned number, Wire type) {
  return varint(number << 3U | static_cast<unsigned>(type));
}

std::string integer_field(unsigned number, std::int64_t value) {
  return key(number, Wire::varint) + varint(static_cast<std::uint64_t>(value));
}

std::string double_field(unsigned number, double value) {
  return key(number, Wire::fixed64) + little_endian(std::bit_cast<std::uint64_t>(value));
}

std::string float_field(unsigned number, float value) {
  return key(number, Wire::fixed32) + little_endian(std::bit_cast<std::uint32_t>(value));
}

/// A string or a message within a message.
std::string bytes_field(unsigned number, std::string_view bytes) {
  return fmt::format("{}{}{}", key(number, Wire::length_delimited), varint(bytes.size()), bytes);
}

/// An Event: wall_time (1), step (2) and its content.
std::string event(double time, std::int64_t step, const std::string& content) {
  return double_field(1, time) + integer_field(2, step) + content;
}

float to_float(double value) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
    return std::copysign(infinity, static_cast<float>(std::copysign(1.0, value)));
  return static_cast<float>(value);
}

/// The time in the name of an event file; 0 if it has none.
std::int64_t time_of(const fs::path& file) {
  const std::string name = file.filename();
  std::int64_t time = 0;
  std::from_chars(name.data() + name_begin.size(), name.data() + name.size(), time);
  return time;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes)
    crc = (crc >> 8U) ^ crc_table[(crc ^ static_cast<unsigned char>(byte)) & 0xFFU];
  return ~crc;
}

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().filename().native().starts_with(name_begin)) files.push_back(entry->path());
  }
  return files;
}

EventFile::EventFile(const fs::path& folder, std::int64_t first_step, double time) {
  make_directory(folder);
  auto seconds = static_cast<std::int64_t>(time);
  for (const fs::path& earlier : event_files(folder)) seconds = std::max(seconds, time_of(earlier) + 1);
  path_ = folder / fmt::format("{}{:010}.{}.{}.0", name_begin, seconds, host_name(), ::getpid());
  file_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL);
  constexpr unsigned file_version = 3, session_log = 7, status = 1;
  constexpr std::int64_t start = 1;
  append(double_field(1, time) + bytes_field(file_version, "brain.Event:2"));
  append(event(time, first_step, bytes_field(session_log, integer_field(status, start))));
}

void EventFile::append(std::string_view event) {
  const std::string record = record_of(event);
  try {
    write_fully(file_.get(), path_, record.data(), record.size(), size_);
  } catch (...) {
    // Readers take what follows a part of a record for its rest. If it cannot be cut off, they wait for more.
    static_cast<void>(::ftruncate(file_.get(), size_));
    throw;
  }
  size_ += static_cast<std::int64_t>(record.size());
}

void EventFile::scalars(std::int64_t step, double time, const MetricsRow& values) {
  constexpr unsigned summary = 5, value = 1, tag = 1, simple_value = 2;
  std::string content;
  for (const auto& [name, number] : values)
    content += bytes_field(value, bytes_field(tag, name) + float_field(simple_value, to_float(number)));
  append(event(time, step, bytes_field(summary, content)));
}

void EventFile::text(std::int64_t step, double time, std::string_view name, std::string_view text) {
  constexpr unsigned summary = 5, value = 1, tag = 1, tensor = 8, metadata = 9;
  constexpr unsigned dtype = 1, shape = 2, string_val = 8, plugin_data = 1, plugin_name = 1;
  constexpr std::int64_t dt_string = 7;
  const std::string scalar =
      integer_field(dtype, dt_string) + bytes_field(shape, "") + bytes_field(string_val, text);
  const std::string content =
      bytes_field(tag, name) + bytes_field(tensor, scalar) +
      bytes_field(metadata, bytes_field(plugin_data, bytes_field(plugin_name, "text")));
  append(event(time, step, bytes_field(summary, bytes_field(value, content))));
}

}  // namespace mylos
