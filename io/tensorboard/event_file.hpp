// SPDX-License-Identifier: BSD-3-Clause
// EventFile: TensorBoard's event file, a sequence of TFRecords that each hold an Event in protobuf's wire
// format (tensorflow/core/util/event.proto, framework/summary.proto). Of the messages, only the fields that
// scalars and texts need are encoded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/file_util.hpp"
#include "io/metrics/metrics.hpp"

namespace mylos {

/// CRC-32C (Castagnoli; polynomial 0x1EDC6F41, reflected): that of "123456789" is 0xE3069283.
std::uint32_t crc32c(std::string_view bytes);

/// Writes a new event file. A reader sees whole records only, also while the file grows or after a kill.
class EventFile {
 public:
  /// Creates events.out.tfevents.<unix seconds>.<host>.<pid>.0 in `folder`, with a time after those of the
  /// files that are there: readers take files in the order of their names. Its first events are the format's
  /// version and SessionLog START at `first_step`, at which readers drop what earlier files have of that step
  /// and later ones. Times are in seconds since 1970. Throws ExitCode::io.
  EventFile(const std::filesystem::path& folder, std::int64_t first_step, double time);

  /// Appends an event with a scalar per element of `values`, of which the names are the tags. Numbers become
  /// fp32, infinite if they are larger. Throws ExitCode::io; the file then still ends with a whole record.
  void scalars(std::int64_t step, double time, const MetricsRow& values);
  /// Appends a text, which TensorBoard shows as Markdown. Throws like `scalars`.
  void text(std::int64_t step, double time, std::string_view tag, std::string_view text);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(std::string_view event);

  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t size_ = 0;  // bytes of whole records
};

/// The event files in `folder`; none if it does not exist.
std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder);

}  // namespace mylos
