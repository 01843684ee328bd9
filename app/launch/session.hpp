// SPDX-License-Identifier: BSD-3-Clause
// Session: the backends and communicators of a process, made from a checked deck.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "core/base/thread_limits.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/plugin.hpp"
#include "core/trace/traced_backend.hpp"
#include "parallel/collectives/progress_thread.hpp"
#include "parallel/health/flight_recorder.hpp"
#include "parallel/health/traced_communicator.hpp"
#include "parallel/health/traffic.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// Returns the name of the communication backend for `wanted`, which is a name or "auto".
std::string choose_comm(const PluginRegistry& plugins, const std::string& wanted, int world_size);

/// Returns the ranks and the memory of the communicator of `config`. Its backend may be "auto" or one that
/// cannot be used here; all members are 0 if that backend is not found or cannot plan.
CommunicatorPlan plan_communicator(const PluginRegistry& plugins, const RunConfig& config,
                                   const ParamValues& values);
/// Returns the compute backends of `config` in the order in which they are asked for a kernel, ending with
/// the root backend. Backends that were not found are left out.
std::vector<const PluginDescriptor*> compute_plugins(const PluginRegistry& plugins, const RunConfig& config);

/// Returns `wanted` with `auto` replaced by the chosen backends, and the number of threads by
/// `choose_threads` of `limits`, whose first is by processors. Throws ExitCode::usage if a backend or the
/// number of threads cannot be used, or if "self" is wanted for several ranks.
BackendConfig choose_backends(const PluginRegistry& plugins, const BackendConfig& wanted, int world_size,
                              std::span<const ThreadLimit> limits);

/// Returns why the ranks of this job cannot use the communication backend of `config` together; "" if they
/// can. Collective.
std::string comm_problem(const PluginRegistry& plugins, const RunConfig& config, const ParamValues& values);

/// Owns everything that computes and communicates; destroys it in reverse order of creation.
class Session {
 public:
  /// `config.backend` must name backends, not `auto`; `recorder` must outlive the session. Collective.
  Session(const PluginRegistry& plugins, const RunConfig& config, const ParamValues& values,
          FlightRecorder& recorder);

  MemoryLedger& ledger() { return ledger_; }
  ComputeBackend& compute() { return *traced_compute_; }
  /// Records the calls of `compute()`, of `world()` and of the communicators of `grid()`.
  Trace& trace() { return *trace_; }
  ProcessGrid& grid() { return *grid_; }
  Communicator& world() { return *counted_world_; }
  /// The communicator of all ranks for buffers in host memory; it does not wait for a device.
  Communicator& host_world() { return counted_bootstrap_ ? *counted_bootstrap_ : *counted_world_; }
  TrafficCounter& traffic() { return traffic_; }
  FlightRecorder& recorder() { return recorder_; }
  int rank() { return world_->rank(); }
  int size() { return world_->size(); }
  /// The value of [comm] algorithm, with "auto" replaced by the algorithms chosen.
  const std::string& algorithm() const { return algorithm_; }

  /// Returns every rank's text, in rank order, on rank 0; empty on the other ranks. Collective.
  std::vector<std::string> gather(const std::string& text);

 private:
  /// The backend without tracing, for the work of communicators within a traced call and for other threads.
  ComputeBackend& untraced_compute() { return compute_ ? *compute_ : *root_; }
  /// Makes `world_` and the layers below it from backend `comm` and `config`.
  void open_world(const PluginDescriptor& comm, CommunicatorArgs args, const CommConfig& config);

  FlightRecorder& recorder_;
  MemoryLedger ledger_;
  std::unique_ptr<ComputeBackend> root_;
  std::unique_ptr<ComputeBackend> compute_;  // empty if the root is used alone
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<TracedBackend> traced_compute_;
  std::unique_ptr<Communicator> bootstrap_;     // for host memory; exchanges ids
  std::unique_ptr<Communicator> communicator_;  // the backend's own, of this node or of all ranks
  TrafficCounter traffic_;
  TrafficCounter wire_traffic_;           // the messages of algorithms
  std::unique_ptr<Communicator> layers_;  // on top of `communicator_`; empty if none are needed
  Communicator* world_ = nullptr;         // of all ranks: the topmost layer
  std::string algorithm_;
  std::unique_ptr<TracedCommunicator> traced_world_;
  std::unique_ptr<CountedCommunicator> counted_world_;
  std::unique_ptr<CountedCommunicator> counted_bootstrap_;  // empty if `world_` works in host memory
  std::unique_ptr<ProcessGrid> grid_;
  std::unique_ptr<ProgressThread> progress_;
};

/// Measures this rank's highest rate of matrix products in `dtype`, in TFLOP/s: the peak that MFU refers to
/// if the deck names none. A host is measured with the products of a GPT-2 124M block with 1024 rows, a
/// device with larger products. Collective.
double measure_gemm_tflops(Session& session, DType dtype);

}  // namespace mylos
