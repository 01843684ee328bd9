// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_nccl/nccl_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>
#include <utility>

namespace mylos::comm_nccl {

namespace {

ncclDataType_t type_of(DType dtype) {
  constexpr std::array<ncclDataType_t, num_dtypes> types = {ncclFloat32, ncclBfloat16, ncclFloat16,
                                                            ncclInt32,   ncclInt64,    ncclUint8};
  return types[static_cast<std::size_t>(dtype)];
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::max ? ncclMax : (op == ReduceOp::min ? ncclMin : ncclSum);
}

std::size_t count_of(const TensorRef& tensor) {
  require(tensor.contiguous(), "a contiguous buffer");
  return static_cast<std::size_t>(tensor.size());
}

constexpr ncclConfig_t not_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/// Polls until the last call on `comm` is no longer in progress; returns the result of that call.
ncclResult_t wait_until_settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (const ncclResult_t result = ncclCommGetAsyncError(comm, &state); result != ncclSuccess) return result;
    if (state == ncclInProgress) std::this_thread::yield();
  }
  return state;
}

void wait_until_made(ncclComm_t comm, const char* call) {
  const ncclResult_t state = wait_until_settled(comm);
  if (state != ncclSuccess) fail(ExitCode::internal, "{}: {}", call, ncclGetErrorString(state));
}

}  // namespace

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  if (free_.empty()) {
    cudaEvent_t event = nullptr;
    const cudaError_t status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (status != cudaSuccess) {
      fail(ExitCode::internal, "cudaEventCreateWithFlags: {}", cudaGetErrorString(status));
    }
    return event;
  }
  const cudaEvent_t event = free_.back();
  free_.pop_back();
  return event;
}

/// Holds the event that marks the end of an operation.
class NcclRequest final : public RequestState {
 public:
  explicit NcclRequest(NcclCommunicator& communicator)
      : communicator_(communicator), end_(communicator.events_.take()) {}
  ~NcclRequest() override { communicator_.events_.give_back(end_); }

  void wait() override {
    require_posted();
    const auto waiting = static_cast<cudaStream_t>(communicator_.compute_.native_stream());
    communicator_.check(cudaStreamWaitEvent(waiting, end_, 0), "cudaStreamWaitEvent");
  }
  void host_wait() override {
    while (!test()) std::this_thread::yield();
  }
  bool test() override {
    require_posted();
    communicator_.wait_until_enqueued("NCCL");
    const cudaError_t status = cudaEventQuery(end_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // clears the status, so that no later check reports it as an error
      return false;
    }
    communicator_.check(status, "cudaEventQuery");
    return true;
  }

  cudaEvent_t end() const { return end_; }

 private:
  /// Until its group ends, the event marks the beginning of a message.
  void require_posted() const {
    require(std::ranges::find(communicator_.posted_, end_) == communicator_.posted_.end(),
            "messages that are posted together are awaited after end_messages");
  }

  NcclCommunicator& communicator_;
  cudaEvent_t end_;
};

std::unique_ptr<NcclCommunicator> NcclCommunicator::create(Communicator& bootstrap, ComputeBackend& compute) {
  ncclUniqueId id{};
  if (bootstrap.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) fail(ExitCode::internal, "ncclGetUniqueId: {}", ncclGetLastError(nullptr));
  }
  bootstrap.broadcast(TensorRef(&id, DType::uint8, {sizeof(id)}), 0).host_wait();
  ncclComm_t comm = nullptr;
  ncclConfig_t config = not_blocking();
  const ncclResult_t result = ncclCommInitRankConfig(&comm, bootstrap.size(), id, bootstrap.rank(), &config);
  if (result != ncclSuccess && result != ncclInProgress) {
    fail(ExitCode::internal, "ncclCommInitRankConfig: {}", ncclGetLastError(nullptr));
  }
  wait_until_made(comm, "ncclCommInitRankConfig");
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(comm, bootstrap, compute));
}

NcclCommunicator::NcclCommunicator(ncclComm_t comm, Communicator& bootstrap, ComputeBackend& compute)
    : comm_(comm), bootstrap_(bootstrap), compute_(compute) {
  check(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
  check(ncclCommCount(comm_, &size_), "ncclCommCount");
  check(cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaMalloc(&barrier_word_, sizeof(std::int32_t)), "cudaMalloc");
  check(cudaMemset(barrier_word_, 0, sizeof(std::int32_t)), "cudaMemset");
}

NcclCommunicator::~NcclCommunicator() {
  // All ranks must destroy the communicator.
  cudaStreamSynchronize(own_stream_);
  ncclCommFinalize(comm_);
  wait_until_settled(comm_);
  ncclCommDestroy(comm_);
  cudaFree(barrier_word_);
  cudaStreamDestroy(own_stream_);
}

void NcclCommunicator::check(ncclResult_t result, std::string_view call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  abort(ExitCode::internal,
        fmt::format("NCCL {}: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(comm_)));
}

void NcclCommunicator::check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    abort(ExitCode::internal, fmt::format("{}: {}", call, cudaGetErrorString(status)));
  }
}

void NcclCommunicator::wait_until_enqueued(std::string_view call) {
  check(wait_until_settled(comm_), call);
}

Request NcclCommunicator::start(const CommCall& call) {
  auto request = std::make_unique<NcclRequest>(*this);
  const auto callers = static_cast<cudaStream_t>(compute_.native_stream());
  // The event first marks the work that the operation waits for, and later the end of the operation.
  check(cudaEventRecord(request->end(), callers), "cudaEventRecord");
  check(cudaStreamWaitEvent(own_stream_, request->end(), 0), "cudaStreamWaitEvent");
  check(post(call), name_of(call.operation));
  if (posts_together_) {
    posted_.push_back(request->end());
    return Request(std::move(request));
  }
  wait_until_enqueued(name_of(call.operation));
  check(cudaEventRecord(request->end(), own_stream_), "cudaEventRecord");
  return Request(std::move(request));
}

void NcclCommunicator::begin_messages() {
  check(ncclGroupStart(), "ncclGroupStart");
  posts_together_ = true;
}

void NcclCommunicator::end_messages() {
  posts_together_ = false;
  check(ncclGroupEnd(), "ncclGroupEnd");
  wait_until_enqueued("ncclGroupEnd");
  for (const cudaEvent_t end : posted_) check(cudaEventRecord(end, own_stream_), "cudaEventRecord");
  posted_.clear();
}

ncclResult_t NcclCommunicator::post(const CommCall& call) {
  const TensorRef& in = call.input;
  const TensorRef& out = call.output;
  const ncclDataType_t type = type_of(in.dtype);
  const ncclRedOp_t op = op_of(call.reduction);
  switch (call.operation) {
    case CommOperation::all_reduce:
      return ncclAllReduce(in.data, out.data, count_of(in), type, op, comm_, own_stream_);
    case CommOperation::reduce_scatter:
      require(in.size() == out.size() * size_ && in.dtype == out.dtype, "reduce_scatter's shapes");
      return ncclReduceScatter(in.data, out.data, count_of(out), type, op, comm_, own_stream_);
    case CommOperation::all_gather:
      require(out.size() == in.size() * size_ && in.dtype == out.dtype, "all_gather's shapes");
      return ncclAllGather(in.data, out.data, count_of(in), type, comm_, own_stream_);
    case CommOperation::broadcast:
      return ncclBroadcast(in.data, out.data, count_of(in), type, call.peer, comm_, own_stream_);
    case CommOperation::reduce:
      return ncclReduce(in.data, out.data, count_of(in), type, op, call.peer, comm_, own_stream_);
    case CommOperation::all_to_all: {
      require(in.size() == out.size() && in.size() % size_ == 0, "all_to_all's shapes");
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), in.size() / size_);
      return exchange(call, counts, counts);
    }
    case CommOperation::all_to_all_v:
      return exchange(call, call.send_counts, call.recv_counts);
    // NCCL has no tags: messages between two ranks arrive in the order in which they were sent.
    case CommOperation::send:
      return ncclSend(in.data, count_of(in), type, call.peer, comm_, own_stream_);
    case CommOperation::recv:
      return ncclRecv(out.data, count_of(out), type, call.peer, comm_, own_stream_);
    case CommOperation::barrier:
      break;
  }
  fail(ExitCode::internal, "a barrier is not a call");
}

ncclResult_t NcclCommunicator::exchange(const CommCall& call, std::span<const std::int64_t> send_counts,
                                        std::span<const std::int64_t> recv_counts) {
  require(send_counts.size() == static_cast<std::size_t>(size_) && recv_counts.size() == send_counts.size() &&
              call.input.dtype == call.output.dtype,
          "one count for each rank");
  const std::size_t element = size_of(call.input.dtype);
  const ncclDataType_t type = type_of(call.input.dtype);
  auto* from = static_cast<std::byte*>(call.input.data);
  auto* to = static_cast<std::byte*>(call.output.data);
  check(ncclGroupStart(), "ncclGroupStart");
  for (int peer = 0; peer < size_; ++peer) {
    const auto sent = static_cast<std::size_t>(send_counts[static_cast<std::size_t>(peer)]);
    const auto received = static_cast<std::size_t>(recv_counts[static_cast<std::size_t>(peer)]);
    if (sent > 0) check(ncclSend(from, sent, type, peer, comm_, own_stream_), "ncclSend");
    if (received > 0) check(ncclRecv(to, received, type, peer, comm_, own_stream_), "ncclRecv");
    from += sent * element;
    to += received * element;
  }
  return ncclGroupEnd();
}

void NcclCommunicator::barrier() {
  all_reduce(TensorRef(barrier_word_, DType::int32, {1}), ReduceOp::sum).host_wait();
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  require(!posts_together_, "ranks are divided before begin_messages or after end_messages");
  ncclComm_t part = nullptr;
  ncclConfig_t config = not_blocking();
  check(ncclCommSplit(comm_, color, key, &part, &config), "ncclCommSplit");
  wait_until_enqueued("ncclCommSplit");
  wait_until_made(part, "ncclCommSplit");
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(part, bootstrap_, compute_));
}

void NcclCommunicator::abort(ExitCode code, const std::string& message) {
  ncclCommAbort(comm_);
  bootstrap_.abort(code, message);
  std::abort();  // not reached; the compiler ignores [[noreturn]] on a virtual call
}

}  // namespace mylos::comm_nccl
