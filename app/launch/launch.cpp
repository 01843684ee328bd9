// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/launch.hpp"

#include <algorithm>
#include <string_view>
#include <thread>
#include <vector>

#include <mpi.h>

#include "app/launch/session.hpp"
#include "app/launch/stop_signals.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "io/agree.hpp"

namespace mylos {

void Launch::warn(const std::string& text) const {
  if (is_first()) say(stderr, "warning: {}\n", text);
}

void Launch::agree(const std::function<void()>& work) const {
  try {
    run_collectively(MPI_COMM_WORLD, work);
  } catch (const Error& error) {
    if (is_first()) say(stderr, "mylos: {}\n", error.what());
    throw AgreedEnd{static_cast<int>(error.code())};
  }
}

std::string Launch::share(const std::function<std::string()>& read) const {
  const StopSignals signals;  // on all ranks: they end together
  std::string text;
  agree([&] {
    if (is_first()) text = read();
    if (signals.received() != 0) fail(ExitCode::preempted, "stopped by a signal");
  });
  return mpi_.broadcast(text);
}

void Launch::check_same(const std::string& identity) const {
  const std::string first = mpi_.broadcast(identity);
  agree([&] {
    if (identity == first) return;
    require(identity.ends_with('\n') && first.ends_with('\n'),
            "neither identity is the beginning of the other");
    const std::vector<std::string_view> own_lines = split(identity, '\n');
    const std::vector<std::string_view> first_lines = split(first, '\n');
    const auto [own, expected] = std::ranges::mismatch(own_lines, first_lines);
    fail(ExitCode::usage, "{}, but rank 0 has {}: this must be the same on all ranks", *own, *expected);
  });
}

void Launch::adopt(Setup& setup) const {
  mpi_.set_limits(setup.config.comm.limits);
  agree([&] {
    std::string& comm = setup.config.backend.comm;
    const std::string problem = comm_problem(setup.plugins, setup.config, setup.values);
    if (problem.empty()) return;
    const DeckEntry* wanted = setup.deck.find("backend.comm");
    if (wanted != nullptr && wanted->value != "auto") {
      fail(ExitCode::usage, "{}: [backend] comm = {} cannot be used by these ranks: {}; or use auto or mpi",
           wanted->place.text, comm, problem);
    }
    warn(fmt::format("[backend] comm is mpi, not {}: {}", comm, problem));
    comm = "mpi";
    setup.values.set("backend.comm", comm);
  });
}

int Launch::run(const std::function<int()>& work, const Record& record) const {
  try {
    return work();
  } catch (const std::exception& error) {
    return end(error, record);
  }
}

int Launch::end(const std::exception& error, const Record& record) const {
  constexpr std::chrono::milliseconds head_start{300};
  constexpr int most_waits = 10;
  std::this_thread::sleep_for(head_start * std::min(mpi_.rank(), most_waits));
  const Error known = error_of(error);
  const ExitCode code = known.code();
  const std::string message = known.what();
  if (record) record(code, message);
  const bool names_rank = dynamic_cast<const AgreedError*>(&error) != nullptr;
  say(stderr, "mylos: {}\n", names_rank ? message : fmt::format("rank {}: {}", mpi_.rank(), message));
  if (mpi_.size() > 1) mpi_.watchdog().end(code);
  return static_cast<int>(code);
}

int with_launch(std::chrono::milliseconds start_timeout, const std::function<int(const Launch&)>& work) {
  return with_mpi(start_timeout, [&](const MpiRuntime& mpi) {
    try {
      return work(Launch(mpi));
    } catch (const AgreedEnd& end) {
      return end.code;
    }
  });
}

}  // namespace mylos
