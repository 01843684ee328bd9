// SPDX-License-Identifier: BSD-3-Clause
// TargetFileWriter: what an evaluation found for each target token, in an HDF5 file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/io_thread.hpp"

namespace mylos {

/// What an evaluation found for a target token.
struct TargetResult {
  std::int32_t token = 0;
  float loss = 0.0F;        ///< nats
  bool is_correct = false;  ///< whether the token has the largest logit and a finite loss
};

/// An evaluation, as its file describes it.
struct TargetFileInfo {
  std::string model;                  ///< as the user named it
  std::int64_t step = 0;              ///< of the checkpoint
  std::int64_t context = 0;           ///< largest number of inputs of a window
  std::int64_t stride = 0;            ///< tokens between the beginnings of windows
  std::string data;                   ///< TokenDataset::identity
  std::vector<std::int64_t> targets;  ///< the number of each file of the data
};

/// Writes the datasets /token (int32), /loss (float32) and /correct (uint8), with one element for each target
/// in the order of the data, and /targets (int64), the number of targets of each file; the attributes of the
/// root are `what` and the fields of TargetFileInfo. The file has a temporary name until `finish`. Used by
/// one rank.
class TargetFileWriter {
 public:
  /// Throws ExitCode::io if the file cannot be created.
  TargetFileWriter(IoThread& io, const std::filesystem::path& file, const TargetFileInfo& info);
  /// Without `finish`, removes the file.
  ~TargetFileWriter();

  /// Writes the results of the next targets. Throws ExitCode::io if that fails.
  void append(std::span<const TargetResult> results);
  /// Gives the file its name, in place of an older one. All targets must have been written.
  void finish();

 private:
  struct Impl;
  IoThread& io_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mylos
