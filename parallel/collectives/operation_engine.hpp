// SPDX-License-Identifier: BSD-3-Clause
// OperationEngine: advances operations that consist of several messages or collectives.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/communication/communicator.hpp"
#include "parallel/collectives/scratch_pool.hpp"

namespace mylos {

class EngineRequest;

/// An operation that is advanced by polling.
class PolledOperation {
 public:
  virtual ~PolledOperation() = default;
  /// Advances as far as possible without blocking. Returns whether the operation is complete; if so,
  /// `advance` is not called again.
  virtual bool advance() = 0;
};

/// The operations under way on a communicator and its splits, and the scratch of these operations. A thread
/// that waits for one operation advances all of them, because another rank may need any of them. One thread
/// at a time advances them, in the order in which they were started. If another thread is already advancing
/// them, a call to `progress` returns at once, so neither `start` nor `test` waits for a reduction in a
/// progress thread.
class OperationEngine {
 public:
  /// Scratch is charged to `ledger` (null: to no ledger).
  explicit OperationEngine(MemoryLedger* ledger = nullptr) : scratch(ledger) {}

  /// The request's test or wait rethrows an exception that `operation` threw. The engine must outlive the
  /// request.
  Request start(std::unique_ptr<PolledOperation> operation);
  void progress();

  ScratchPool scratch;

 private:
  friend class EngineRequest;

  void forget(EngineRequest* request);

  std::mutex advancing_;
  std::vector<EngineRequest*> under_way_;  // the oldest first; guarded by advancing_
  std::mutex starting_;
  std::vector<EngineRequest*> started_;  // not yet advanced; guarded by starting_
};

}  // namespace mylos
