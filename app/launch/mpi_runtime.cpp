// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/mpi_runtime.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/core.h>
#include <mpi.h>

#include "app/launch/environment.hpp"
#include "app/launch/last_resort.hpp"
#include "app/launch/launcher.hpp"
#include "core/base/clock.hpp"
#include "core/base/error.hpp"
#include "core/base/host.hpp"
#include "core/base/processors.hpp"
#include "core/base/say.hpp"
#include "core/base/watched_call.hpp"
#include "io/agree.hpp"
#include "io/node_sharing.hpp"
#include "parallel/health/exit_timer.hpp"

namespace mylos {

namespace {

/// Checks what must hold before any thread starts.
std::chrono::milliseconds checked(std::chrono::milliseconds start_timeout) {
  try {
    check_variables();
    check_limits();
  } catch (const Error& error) {
    // Rank 0 may have another environment, and then nothing to report.
    if (launched_rank() > 0) {
      constexpr std::chrono::milliseconds head_start{300};
      constexpr int most_waits = 10;
      std::this_thread::sleep_for(head_start * std::min(launched_rank(), most_waits));
      say(stderr, "mylos: rank {}: {}\n", launched_rank(), error.what());
    }
    throw;
  }
  return start_timeout;
}

/// Higher ranks wait a little longer, so that the lowest rank able to report an error does so first.
std::chrono::milliseconds own_start_timeout(std::chrono::milliseconds timeout) {
  constexpr int most_turns = 10;
  return timeout + timeout * std::min(launched_rank(), most_turns) / 100;
}

void abort_mpi(ExitCode code) {
  int is_initialised = 0;
  int is_finalised = 0;
  MPI_Initialized(&is_initialised);
  MPI_Finalized(&is_finalised);
  int size = 0;
  if (is_initialised != 0 && is_finalised == 0) MPI_Comm_size(MPI_COMM_WORLD, &size);
  // MPICH's launcher may lose the code of an abort.
  if (is_initialised == 0 || size == 1) _exit(static_cast<int>(code));
  if (is_finalised != 0) return;
  expect_exit();
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
}

}  // namespace

MpiRuntime::MpiRuntime(std::chrono::milliseconds start_timeout)
    : watchdog_(std::make_unique<Watchdog>(own_start_timeout(checked(start_timeout)), abort_mpi)),
      failures_(std::in_place, *watchdog_) {
  int provided = MPI_THREAD_SINGLE;
  note_start_of_mpi(true);
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  note_start_of_mpi(false);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  check_launch(size_);  // after a wrong launch, MPI_Finalize may hang
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    fail(ExitCode::usage, "this MPI library does not provide MPI_THREAD_MULTIPLE, which mylos needs");
  }
  if (rank_ == 0 && *Clock::driver() != '\0')
    say(stderr, "mylos: MYLOS_CLOCK={} is set: times and limits follow that file\n", Clock::driver());
  const auto gather = [](const std::string& text) { return gather_texts(MPI_COMM_WORLD, text); };
  recorder_ = std::make_unique<FlightRecorder>(rank_, gather);
  observe_calls(recorder_.get());
  watchdog_->watch(*recorder_);
  const WatchedCall start(CallKind::collective, "start", "launcher");
  beacon_ = std::make_unique<Beacon>(*recorder_);
  share_cores();
}

void MpiRuntime::share_cores() {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
  Sharing sharing = sharing_on(node);
  int place = 0;
  MPI_Comm_rank(node, &place);
  const int ranks_here = sharing.node;
  const int is_elsewhere = rank_ % ranks_here == place ? 0 : 1;
  std::array<int, 3> most = {ranks_here, -ranks_here, is_elsewhere};
  MPI_Allreduce(MPI_IN_PLACE, most.data(), most.size(), MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  ranks_per_node_ = most[0] == -most[1] && most[2] == 0 ? ranks_here : 0;
  MPI_Comm_free(&node);
  hosts_ = gather_texts(MPI_COMM_WORLD, place == 0 ? host_name() : "");
  std::erase(hosts_, "");
  thread_limits_ = own_thread_limits(sharing);
  // A binding that the user has decided on with a variable of OpenMP or libgomp takes precedence.
  const bool is_decided =
      std::ranges::any_of(std::array{"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"},
                          [](const char* variable) { return std::getenv(variable) != nullptr; });
  const Processors own = own_processors();
  if (sharing.processors == 1 || std::ssize(own) < sharing.processors || is_decided) return;
  const Processors share = even_share(own, sharing.index, sharing.processors);
  if (const int error = bind_thread(share); error == 0) {
    sharing.processors = 1;
    thread_limits_ = own_thread_limits(sharing);
  } else {
    say(stderr, "mylos: rank {} cannot be bound to cores {} ({}) and shares cores {}\n", rank_,
        text_of(share), std::strerror(error), text_of(own));
  }
}

MpiRuntime::~MpiRuntime() {
  // No watchdog remains to see the last calls end, so the kernel kills a process that does not end within
  // `most_alone` of the last exchange below. The watchdog stays until every rank has this timer.
  constexpr std::chrono::milliseconds most_alone{20000};
  constexpr std::chrono::milliseconds pause{1};
  {
    const WatchedCall end(CallKind::collective, "finalize", "launcher");
    MPI_Barrier(MPI_COMM_WORLD);
    kill_unless_ended_within(most_alone);
    MPI_Request all_have_timers = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &all_have_timers);
    const auto is_complete = [&] {
      int complete = 0;
      MPI_Test(&all_have_timers, &complete, MPI_STATUS_IGNORE);
      return complete != 0;
    };
    while (!is_complete()) {
      std::this_thread::sleep_for(pause);
      kill_unless_ended_within(most_alone);
    }
  }
  // The command is complete on all ranks. MPI_Finalize may hang, as MPICH's does over TCP.
  constexpr std::chrono::milliseconds most_of_finalize{3000};
  recorder_->finish();
  if (code_) exit_unless_ended_within(most_of_finalize, *code_);
  failures_.reset();
  watchdog_.reset();
  beacon_.reset();
  observe_calls(nullptr);
  MPI_Finalize();
  leave_launcher();
}

int with_mpi(std::chrono::milliseconds start_timeout, const std::function<int(const MpiRuntime&)>& work) {
  MpiRuntime mpi(start_timeout);
  const int code = work(mpi);
  mpi.code_ = code;
  return code;
}

void MpiRuntime::set_limits(const WatchdogLimits& limits) const {
  watchdog_->set_limits(limits);
  beacon_->set_interval(limits.heartbeat());
}

std::string MpiRuntime::broadcast(std::string text) const {
  const WatchedCall call(CallKind::agreement, "broadcast", "launcher");
  std::int64_t size = static_cast<std::int64_t>(text.size());
  MPI_Bcast(&size, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  text.resize(static_cast<std::size_t>(size));
  MPI_Bcast(text.data(), static_cast<int>(size), MPI_CHAR, 0, MPI_COMM_WORLD);
  return text;
}

}  // namespace mylos
