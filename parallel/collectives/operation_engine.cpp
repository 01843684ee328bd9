// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/operation_engine.hpp"

#include <atomic>
#include <exception>
#include <utility>

#include "core/base/polling.hpp"

namespace mylos {

class EngineRequest final : public RequestState {
 public:
  EngineRequest(OperationEngine& engine, std::unique_ptr<PolledOperation> operation)
      : engine_(engine), operation_(std::move(operation)) {}
  ~EngineRequest() override {
    if (!done_.load(std::memory_order_acquire)) engine_.forget(this);
  }
  EngineRequest(const EngineRequest&) = delete;
  EngineRequest& operator=(const EngineRequest&) = delete;

  /// Called by the engine. Returns whether the operation is done; if so, the engine does not touch this
  /// request again.
  bool advance() {
    bool done = true;
    try {
      done = operation_->advance();
    } catch (...) {
      error_ = std::current_exception();
    }
    done_.store(done, std::memory_order_release);
    return done;
  }

  bool test() override {
    if (!done_.load(std::memory_order_acquire)) engine_.progress();
    if (!done_.load(std::memory_order_acquire)) return false;
    if (error_) std::rethrow_exception(error_);
    return true;
  }
  void host_wait() override {
    poll_until([&] { return test(); });
  }

 private:
  OperationEngine& engine_;
  std::unique_ptr<PolledOperation> operation_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
};

Request OperationEngine::start(std::unique_ptr<PolledOperation> operation) {
  auto request = std::make_unique<EngineRequest>(*this, std::move(operation));
  {
    const std::lock_guard lock(starting_);
    started_.push_back(request.get());
  }
  progress();
  return Request(std::move(request));
}

void OperationEngine::progress() {
  const std::unique_lock lock(advancing_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  {
    const std::lock_guard starting(starting_);
    under_way_.insert(under_way_.end(), started_.begin(), started_.end());
    started_.clear();
  }
  std::erase_if(under_way_, [](EngineRequest* request) { return request->advance(); });
}

void OperationEngine::forget(EngineRequest* request) {
  const std::lock_guard lock(advancing_);
  const std::lock_guard starting(starting_);
  std::erase(under_way_, request);
  std::erase(started_, request);
}

}  // namespace mylos
