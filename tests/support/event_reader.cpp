// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/event_reader.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

namespace mylos::test {

namespace {

/// By its definition, bit by bit.
std::uint32_t masked_crc_of(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? (crc >> 1U) ^ 0x82F63B78U : crc >> 1U;
  }
  crc = ~crc;
  return ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U;
}

template <class T>
T taken(std::string_view& bytes) {
  T value{};
  if (bytes.size() < sizeof value) throw std::runtime_error("a field is cut");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::uint64_t taken_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = taken<unsigned char>(bytes);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if ((byte & 0x80U) == 0) return value;
  }
}

/// The fields of a protobuf message: number and raw value; that of a varint as 8 bytes.
std::multimap<std::uint64_t, std::string> fields_of(std::string_view message) {
  std::multimap<std::uint64_t, std::string> fields;
  while (!message.empty()) {
    const std::uint64_t key = taken_varint(message);
    std::string value;
    if ((key & 7U) == 0) {
      const std::uint64_t number = taken_varint(message);
      value.assign(reinterpret_cast<const char*>(&number), sizeof number);
    } else {
      const std::uint64_t size = (key & 7U) == 1 ? 8 : (key & 7U) == 5 ? 4 : taken_varint(message);
      if (size > message.size()) throw std::runtime_error("a field is cut");
      value = message.substr(0, size);
      message.remove_prefix(size);
    }
    fields.emplace(key >> 3U, value);
  }
  return fields;
}

template <class T>
T number_of(const std::multimap<std::uint64_t, std::string>& fields, std::uint64_t field) {
  const auto found = fields.find(field);
  if (found == fields.end()) return {};
  std::string_view bytes = found->second;
  return taken<T>(bytes);
}

std::string bytes_of(const std::multimap<std::uint64_t, std::string>& fields, std::uint64_t field) {
  const auto found = fields.find(field);
  return found == fields.end() ? "" : found->second;
}

void read_event(std::string_view record, bool is_first, ReadEvents& events) {
  const auto event = fields_of(record);
  if (is_first != (bytes_of(event, 3) == "brain.Event:2")) throw std::runtime_error("version");
  const auto step = number_of<std::int64_t>(event, 2);
  const auto time = number_of<double>(event, 1);
  if (event.contains(7) && number_of<std::int64_t>(fields_of(bytes_of(event, 7)), 1) == 1) {
    events.starts.push_back(step);
    for (auto& [tag, points] : events.scalars)
      std::erase_if(points, [&](const auto& p) { return p.step >= step; });
    for (auto& [tag, texts] : events.texts)
      std::erase_if(texts, [&](const auto& t) { return t.first >= step; });
  }
  const auto summary = fields_of(bytes_of(event, 5));
  for (const auto& [number, bytes] : summary) {
    const auto value = fields_of(bytes);
    const std::string tag = bytes_of(value, 1);
    if (!value.contains(8)) {
      events.scalars[tag].push_back({step, number_of<float>(value, 2), time});
      continue;
    }
    const auto tensor = fields_of(bytes_of(value, 8));
    const auto plugin = fields_of(bytes_of(fields_of(bytes_of(value, 9)), 1));
    if (number_of<std::int64_t>(tensor, 1) != 7 || bytes_of(plugin, 1) != "text")
      throw std::runtime_error("a tensor that is no text");
    events.texts[tag].emplace_back(step, bytes_of(tensor, 8));
  }
}

}  // namespace

ReadEvents read_events(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::ranges::sort(files);
  ReadEvents events;
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(in), {}};
    std::string_view rest = content;
    for (bool is_first = true; rest.size() >= 12; is_first = false) {
      std::string_view next = rest;
      const auto length = taken<std::uint64_t>(next);
      if (taken<std::uint32_t>(next) != masked_crc_of(rest.substr(0, 8))) throw std::runtime_error("length");
      if (next.size() < length + 4) break;
      const std::string_view record = next.substr(0, length);
      next.remove_prefix(length);
      if (taken<std::uint32_t>(next) != masked_crc_of(record)) throw std::runtime_error("record");
      read_event(record, is_first, events);
      rest = next;
    }
    events.torn_bytes += static_cast<std::int64_t>(rest.size());
  }
  return events;
}

}  // namespace mylos::test
