// SPDX-License-Identifier: BSD-3-Clause
// Watchdog: threads in every process that find stopped ranks and stalled operations, and end the job.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/error.hpp"
#include "core/base/semaphore.hpp"
#include "parallel/health/failure_detector.hpp"
#include "parallel/health/fixed_text.hpp"
#include "parallel/health/flight_recorder.hpp"

namespace mylos {

/// Sends heartbeats for this rank, however long its other threads compute, and watches the ranks that the
/// recorder shows. Until there is a recorder, the watchdog watches the launch. The rank whose turn it is
/// (FailureDetector) prints the last operations of these ranks to stderr, records the reason and ends the
/// job.
///
/// Once the ranks are known, the thread that judges touches no file, takes no lock and allocates nothing. A
/// second thread reports and records; the first waits for it for at most five seconds. A third thread ends
/// the job; after two seconds, the first kills the node's remaining ranks (FlightRecorder::kill_others) and
/// ends its own process.
class Watchdog {
 public:
  /// Ends the job with an exit code; may return if that is not possible.
  using Abort = std::function<void(ExitCode)>;
  /// Stores the exit code and the reason where the user looks for them.
  using Record = std::function<void(ExitCode, const std::string& reason)>;

  Watchdog(std::chrono::milliseconds start_timeout, Abort abort);
  /// Stops the threads.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Switches from watching the launch to watching the ranks. `recorder` must outlive this object.
  void watch(FlightRecorder& recorder) { recorder_.store(&recorder); }
  void set_limits(const WatchdogLimits& limits) { limits_.store(limits); }
  void set_record(Record record);
  /// Ends the job with `code`. The caller has already reported the reason. Any thread may call it.
  [[noreturn]] void end(ExitCode code);
  /// Prints and records `reason`, then ends the job with `code`. Only one thread may call it, at most once. A
  /// signal handler may call it.
  [[noreturn]] void fail(ExitCode code, std::string_view reason) noexcept;

 private:
  void stop();
  /// Ends the job if `end` or `fail` wants it.
  void end_if_wanted();
  /// A library fails if the process is gone whose memory it reads: then that is the reason, with the
  /// watchdog's code.
  void blame_dead_rank();
  void judge();
  /// Null if the watchdog stops before there is a recorder.
  FlightRecorder* await_recorder();
  [[noreturn]] void end_failed_job(ExitCode code, std::string_view reason, std::string_view report);
  [[noreturn]] void end_process(ExitCode code);
  /// Waits for `event`, at most for `longest`. Heartbeats continue, so that no other rank considers this one
  /// stopped and reports too.
  void await(Semaphore& event, std::chrono::milliseconds longest);
  void report();
  void abort();

  static constexpr std::size_t failure_bytes = 2048;

  std::chrono::milliseconds start_timeout_;
  Abort abort_;
  std::atomic<FlightRecorder*> recorder_{nullptr};
  SharedValue<WatchdogLimits> limits_;
  std::mutex record_mutex_;  // guards record_
  Record record_;
  std::string_view reason_, report_;
  FixedText failure_line_{failure_bytes};
  std::string_view failure_;                            // the part of the line after "mylos: "
  std::atomic<ExitCode> failure_code_{ExitCode::done};  // not `done` if `fail` was called
  std::atomic<ExitCode> code_{ExitCode::done};          // not `done` if the job is to end
  std::atomic<bool> stops_{false};
  Semaphore wake_, to_report_, reported_, to_abort_, never_;
  std::thread reporter_, aborter_, judge_;
};

}  // namespace mylos
