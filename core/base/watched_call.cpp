// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/watched_call.hpp"

#include <atomic>

namespace mylos {

namespace {

std::atomic<CallObserver*> current_observer{nullptr};

}  // namespace

void observe_calls(CallObserver* observer) {
  current_observer.store(observer);
}

WatchedCall::WatchedCall(CallKind kind, std::string_view call, std::string_view object, std::uint64_t bytes)
    : observer_(current_observer.load()),
      number_(observer_ != nullptr ? observer_->begin(kind, call, object, bytes) : 0) {}

WatchedCall::~WatchedCall() {
  if (observer_ != nullptr) observer_->complete(number_);
}

}  // namespace mylos
