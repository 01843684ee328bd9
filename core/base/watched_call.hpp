// SPDX-License-Identifier: BSD-3-Clause
// WatchedCall: a call to the system, the launcher, a communicator or a device that may never return, reported
// to the watchdog.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mylos {

/// What a call waits for. The watchdog has a time limit for each kind.
enum class CallKind : std::uint64_t {
  collective,   ///< a communicator, or the start or end of MPI
  io,           ///< a file system
  agreement,    ///< other ranks, which may be busy with their files
  computation,  ///< a compute backend; of the calls that overlap, only the first is noted
  message,      ///< the other end of a message, once this end waits for it
};
inline constexpr std::size_t num_call_kinds = 5;

/// Receives the watched calls of all threads.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  /// Notes the start of a call and returns its number.
  virtual std::uint64_t begin(CallKind kind, std::string_view call, std::string_view object,
                              std::uint64_t bytes) = 0;
  virtual void complete(std::uint64_t number) = 0;
};

/// Sets the observer of this process's calls; null removes it. The observer must outlive the calls that begin
/// while it is set.
void observe_calls(CallObserver* observer);

/// A call that lasts from construction to destruction.
class WatchedCall {
 public:
  /// `object` is what the call is made on: a file, a communicator.
  WatchedCall(CallKind kind, std::string_view call, std::string_view object, std::uint64_t bytes = 0);
  ~WatchedCall();
  WatchedCall(const WatchedCall&) = delete;
  WatchedCall& operator=(const WatchedCall&) = delete;

 private:
  CallObserver* observer_;
  std::uint64_t number_;
};

}  // namespace mylos
