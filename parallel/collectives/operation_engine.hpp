// SPDX-License-Identifier: BSD-3-Clause
// OperationEngine: advances operations that are made of several messages or collectives.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/communicator.hpp"

namespace mylos {

class EngineRequest;

/// An operation that is advanced by polling.
class PolledOperation {
 public:
  virtual ~PolledOperation() = default;
  /// Goes as far as it can without blocking; whether the operation is complete, after which it is not called
  /// again.
  virtual bool advance() = 0;
};

/// The operations under way of a communicator and its splits. Whoever waits for one advances all, because
/// another rank may need any of them. One thread at a time advances them, in the order in which they were
/// started; a thread that finds another at it goes on, so neither `start` nor `test` waits for a reduction
/// that a progress thread is busy with.
class OperationEngine {
 public:
  /// What `operation` throws is thrown by the request's test or wait. The engine must outlive the request.
  Request start(std::unique_ptr<PolledOperation> operation);
  void progress();

 private:
  friend class EngineRequest;

  void forget(EngineRequest* request);

  std::mutex advancing_;
  std::vector<EngineRequest*> under_way_;  // the oldest first; under advancing_
  std::mutex starting_;
  std::vector<EngineRequest*> started_;  // not yet advanced; under starting_
};

}  // namespace mylos
