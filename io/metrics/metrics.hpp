// SPDX-License-Identifier: BSD-3-Clause
// Metrics: named columns of numbers that grow row by row in metrics.h5 and can be read during the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/io_thread.hpp"

namespace mylos {

/// A row of a table: column names and values. A table has the columns of all its rows; a row that lacks a
/// column has NaN there.
using MetricsRow = std::vector<std::pair<std::string, double>>;

/// A table that was read: columns of equal length.
using MetricsTable = std::map<std::string, std::vector<double>>;

/// Appends to the tables of metrics.h5, in a run /steps, /eval, /checkpoints and /launches (default HDF5
/// format, float64 columns chunked by 4096 rows; `/<table>/num_rows` is a dataset of one int64). Used by one
/// rank. Appends are queued on the I/O thread and flushed.
class MetricsWriter {
 public:
  /// Creates the file or opens an existing one. A damaged file is renamed to metrics.h5.damaged or, if that
  /// exists, metrics.h5.damaged-2 ..., with a warning through `warn`: damaged metrics must not end a run.
  MetricsWriter(IoThread& io, const std::filesystem::path& file,
                const std::function<void(const std::string&)>& warn);
  ~MetricsWriter();

  /// Queues a row; columns that the table lacks are added to it. Throws the error of an earlier row that
  /// could not be written.
  void append(const std::string& table, const MetricsRow& row);
  /// Drops the rows of /steps and /checkpoints whose "step" is larger than `step`, and the rows of /eval
  /// whose "step" is larger than `evaluation`. A run calls it before it appends.
  void truncate_after(std::int64_t step, std::int64_t evaluation);
  /// Waits for all queued rows. Throws like `append`.
  void flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a table of a metrics file, also while its job runs. Empty if the table does not exist.
MetricsTable read_metrics(IoThread& io, const std::filesystem::path& file, const std::string& table);

/// A table as CSV: a line with the columns' names, "step" first and the others by name, then a line per row.
/// Numbers are the shortest that read back as the same doubles; those that a row lacks (NaN) are empty.
std::string csv_of(const MetricsTable& table);

/// The tables of a metrics file and their numbers of rows.
std::map<std::string, std::int64_t> metrics_tables(IoThread& io, const std::filesystem::path& file);

}  // namespace mylos
