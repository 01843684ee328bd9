// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/watchdog.hpp"

#include <algorithm>
#include <csignal>
#include <unistd.h>
#include <utility>

#include "core/base/clock.hpp"

namespace mylos {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// Avoids stdio, because a thread that is stuck while printing may hold the lock of stderr.
void write_error(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Starts a thread with all signals blocked, so that it never runs a handler, except of its own failures. The
/// kernel shows at most 15 characters of `name`.
std::thread quiet_thread(const char* name, std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int failure : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, failure);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(work));
    pthread_setname_np(thread.native_handle(), name);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace

Watchdog::Watchdog(milliseconds start_timeout, Abort abort)
    : start_timeout_(start_timeout), abort_(std::move(abort)) {
  limits_.store({});
  try {
    reporter_ = quiet_thread("watchdog-report", [this] { report(); });
    aborter_ = quiet_thread("watchdog-abort", [this] { this->abort(); });
    judge_ = quiet_thread("watchdog", [this] { judge(); });
  } catch (...) {
    stop();
    throw;
  }
}

Watchdog::~Watchdog() {
  stop();
}

void Watchdog::stop() {
  stops_ = true;
  for (Semaphore* semaphore : {&wake_, &to_report_, &to_abort_}) semaphore->release();
  for (std::thread* thread : {&judge_, &reporter_, &aborter_}) {
    if (thread->joinable()) thread->join();
  }
}

void Watchdog::set_record(Record record) {
  const std::lock_guard lock(record_mutex_);
  record_ = std::move(record);
}

void Watchdog::end(ExitCode code) {
  code_ = code;
  wake_.release();
  while (true) ::pause();
}

void Watchdog::fail(ExitCode code, std::string_view reason) noexcept {
  if (std::this_thread::get_id() == judge_.get_id()) {
    for (const std::string_view part : {std::string_view("mylos: "), reason, std::string_view("\n")})
      write_error(part);
    ::_exit(static_cast<int>(code));
  }
  const FlightRecorder* const recorder = recorder_;
  failure_line_.add("mylos: ");
  const std::size_t begin = failure_line_.view().size();
  if (recorder != nullptr) failure_line_.add("rank {}: ", recorder->rank());
  failure_line_.add("{}", reason);
  failure_ = failure_line_.view().substr(begin);
  failure_line_.add("\n");
  failure_code_ = code;
  wake_.release();
  while (true) ::pause();
}

void Watchdog::end_if_wanted() {
  if (failure_code_ != ExitCode::done) {
    blame_dead_rank();
    end_failed_job(failure_code_, failure_, failure_line_.view());
  }
  if (code_ != ExitCode::done) end_process(code_);
}

void Watchdog::blame_dead_rank() {
  // The kernel may still be ending that process.
  constexpr milliseconds pause{10};
  constexpr int looks = 20;
  const FlightRecorder* const recorder = recorder_;
  for (int i = 0; recorder != nullptr && i < looks; ++i) {
    if (const std::optional<int> dead = recorder->dead_rank()) {
      const std::string_view failure = failure_;
      const std::size_t begin = failure_line_.view().size() + sizeof "mylos: " - 1;
      failure_line_.add("mylos: dead rank {}: its process has ended; then {}\n", *dead, failure);
      failure_ = failure_line_.view().substr(begin);
      failure_.remove_suffix(1);
      failure_code_ = ExitCode::watchdog;
      return;
    }
    std::this_thread::sleep_for(pause);
  }
}

FlightRecorder* Watchdog::await_recorder() {
  constexpr int looks = 100;
  const nanoseconds pause = nanoseconds(start_timeout_) / looks;
  nanoseconds waited{0};
  for (auto last = Clock::now(); recorder_ == nullptr && !stops_;) {
    end_if_wanted();
    (void)wake_.acquire_for(pause);
    const auto now = Clock::now();
    // Each look counts at most four pauses, so that a job that was suspended does not time out.
    waited += std::min<nanoseconds>(now - last, 4 * pause);
    last = now;
    if (waited < start_timeout_) continue;
    FixedText reason(256);
    reason.add("not all ranks started within {:.1f} s (comm.start_timeout)", in_seconds(start_timeout_));
    FixedText line(256);
    line.add("mylos watchdog: {}\n", reason.view());
    end_failed_job(ExitCode::watchdog, reason.view(), line.view());
  }
  return recorder_;
}

void Watchdog::judge() {
  FlightRecorder* const recorder = await_recorder();
  if (recorder == nullptr) return;
  WatchdogLimits limits;
  FailureDetector detector(recorder->rank(), limits, recorder->leaders().size() > 1);
  std::vector<RankFlight> ranks;
  for (; !stops_; (void)wake_.acquire_for(limits.heartbeat())) {
    end_if_wanted();
    if (const auto newest = limits_.load()) limits = *newest;
    detector.set_limits(limits);
    recorder->beat();
    recorder->read_node(ranks);
    const bool reports = detector.look(ranks, Clock::now());
    recorder->set_sees_failure(detector.sees_failure());
    if (reports) end_failed_job(detector.code(), detector.reason(), detector.report());
  }
}

void Watchdog::end_failed_job(ExitCode code, std::string_view reason, std::string_view report) {
  constexpr milliseconds longest_report{5000};
  code_ = code;
  reason_ = reason;
  report_ = report;
  to_report_.release();
  await(reported_, longest_report);
  end_process(code);
}

void Watchdog::await(Semaphore& event, milliseconds longest) {
  constexpr milliseconds pause{10};
  for (milliseconds waited{0}; waited < longest && !event.acquire_for(pause); waited += pause) {
    if (FlightRecorder* recorder = recorder_) recorder->beat();
  }
}

void Watchdog::end_process(ExitCode code) {
  constexpr milliseconds longest_abort{2000};
  to_abort_.release();
  await(never_, longest_abort);
  if (const FlightRecorder* recorder = recorder_) recorder->kill_others();
  ::_exit(static_cast<int>(code));
}

void Watchdog::report() {
  to_report_.acquire();
  if (stops_) return;
  write_error(report_);
  const std::lock_guard lock(record_mutex_);
  if (record_) record_(code_, std::string(reason_));
  reported_.release();
}

void Watchdog::abort() {
  to_abort_.acquire();
  if (stops_) return;
  // When a rank aborts, the launcher drops any output that it has not yet read.
  constexpr milliseconds reading_time{150};
  std::this_thread::sleep_for(reading_time);
  abort_(code_);
}

}  // namespace mylos
