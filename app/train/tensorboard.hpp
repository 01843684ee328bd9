// SPDX-License-Identifier: BSD-3-Clause
// TensorBoard: a run's metrics as events that TensorBoard shows, while it runs and afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "app/launch/run_directory.hpp"
#include "io/io_thread.hpp"
#include "io/metrics/metrics.hpp"
#include "io/tensorboard/event_file.hpp"

namespace mylos {

/// Where a launch begins: the steps of the first row that it adds to `steps`, and to `eval` and `choices`.
struct FirstSteps {
  std::int64_t training = 1;
  std::int64_t evaluation = 1;
};

/// Writes each row of the tables `steps`, `eval` and `choices` as an event of RUN/tensorboard/train or
/// RUN/tensorboard/eval. Used by one rank. Rows are queued on the I/O thread. If an event cannot be written,
/// for example because the disk is full, the rest of the launch is left out, with one warning through `warn`
/// from that thread.
class TensorBoard {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// Begins the files of a launch; `deck` is the text of the resolved deck. Events of the steps before come
  /// from earlier launches, if all wrote them (the column `tensorboard` of the table `launches`); otherwise,
  /// and for evaluations in any case, they are made from the metrics: some readers know a restart only by a
  /// step that comes again, and the next evaluation may be far away.
  TensorBoard(IoThread& io, const RunPaths& paths, FirstSteps first, const std::string& deck, Warn warn);
  /// Waits for all queued rows.
  ~TensorBoard();
  TensorBoard(const TensorBoard&) = delete;
  TensorBoard& operator=(const TensorBoard&) = delete;

  void append(const std::string& table, const MetricsRow& row);

 private:
  /// Runs `work` on the I/O thread, unless an earlier one has failed.
  void queue(std::function<void()> work);

  IoThread& io_;
  std::filesystem::path folder_;
  FirstSteps first_;
  Warn warn_;
  std::optional<EventFile> train_, eval_;  // used on the I/O thread only
  bool has_failed_ = false;                // likewise
};

/// Writes the events of all metrics of the run at `paths` into `folder`, and removes those that were there if
/// it is the run's own. The time of a step is that of its launch plus the times of the launch's steps up to
/// it. Returns the new files. Throws ExitCode::io; the earlier files are then as before.
std::vector<std::filesystem::path> write_events(IoThread& io, const RunPaths& paths,
                                                const std::filesystem::path& folder);

}  // namespace mylos
