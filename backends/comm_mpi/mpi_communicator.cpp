// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_mpi/mpi_communicator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <unistd.h>
#include <vector>

#include "backends/comm_mpi/mpi_reduce_ops.hpp"
#include "core/base/polling.hpp"
#include "core/memory/host_buffers.hpp"

namespace mylos::comm_mpi {

namespace {

constexpr int exchange_tag = 32767;  // the largest tag that every MPI accepts; callers' tags are smaller
constexpr int progress_tag = 32766;  // `progress` probes for it; no message carries it

std::string failure(int result, const char* call) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  return fmt::format("{} failed: {}", call, text.data());
}

/// For calls that make a communicator: throws ExitCode::internal if one failed.
void require_success(int result, const char* call) {
  if (result != MPI_SUCCESS) fail(ExitCode::internal, "{}", failure(result, call));
}

}  // namespace

/// The MPI requests of one operation and the host memory of its buffers.
class MpiRequest final : public RequestState {
 public:
  /// If `on_host` is set and the host cannot access the buffers, MPI reads and writes stand-ins in host
  /// memory.
  MpiRequest(MpiCommunicator& owner, bool on_host)
      : owner_(owner), buffers_(on_host ? owner.settings_.compute : nullptr) {}

  HostBuffers& buffers() { return buffers_; }
  /// Storage for the request of the next MPI call; valid until `next` is called again.
  MPI_Request* next() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  void host_wait() override {
    poll_until([&] { return test(); });
    buffers_.copy_back();
  }
  bool test() override {
    int done = 0;
    owner_.check(
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    return done != 0;
  }

 private:
  MpiCommunicator& owner_;
  HostBuffers buffers_;
  std::vector<MPI_Request> requests_;
};

bool mpi_is_running() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

MpiCommunicator::MpiCommunicator(MPI_Comm comm, const MpiSettings& settings)
    : comm_(comm), settings_(settings) {
  require_success(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  require_success(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  require_success(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
}

MpiCommunicator::~MpiCommunicator() {
  if (mpi_is_running()) MPI_Comm_free(&comm_);
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::duplicate(MPI_Comm comm, const MpiSettings& settings) {
  MPI_Comm copy = MPI_COMM_NULL;
  require_success(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  return std::unique_ptr<MpiCommunicator>(new MpiCommunicator(copy, settings));
}

void MpiCommunicator::check(int result, const char* call) {
  if (result != MPI_SUCCESS)
    abort(ExitCode::internal, fmt::format("rank {}: {}", rank_, failure(result, call)));
}

std::unique_ptr<MpiRequest> MpiCommunicator::start(bool on_host) {
  if (settings_.compute != nullptr) settings_.compute->synchronize();
  return std::make_unique<MpiRequest>(*this, on_host || !settings_.gpu_aware);
}

template <class Post>
void MpiCommunicator::for_pieces(DType dtype, std::int64_t size, Post&& post) const {
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t first = 0; first < size; first += settings_.max_count) {
    post(first * width, static_cast<int>(std::min<std::int64_t>(settings_.max_count, size - first)));
  }
}

void MpiCommunicator::exchange(MpiRequest& request, int peer, DType dtype, const std::byte* send_part,
                               std::int64_t send_count, std::byte* recv_part, std::int64_t recv_count) {
  for_pieces(dtype, recv_count, [&](std::int64_t offset, int count) {
    check(MPI_Irecv(recv_part + offset, count, mpi_type(dtype), peer, exchange_tag, comm_, request.next()),
          "MPI_Irecv");
  });
  for_pieces(dtype, send_count, [&](std::int64_t offset, int count) {
    check(MPI_Isend(send_part + offset, count, mpi_type(dtype), peer, exchange_tag, comm_, request.next()),
          "MPI_Isend");
  });
}

Request MpiCommunicator::all_reduce(TensorRef buffer, ReduceOp op) {
  auto request = start(runs_on_host(buffer.dtype, op));
  std::byte* data = request->buffers().read_write(buffer);
  for_pieces(buffer.dtype, buffer.size(), [&](std::int64_t offset, int count) {
    check(MPI_Iallreduce(MPI_IN_PLACE, data + offset, count, mpi_type(buffer.dtype), mpi_op(buffer.dtype, op),
                         comm_, request->next()),
          "MPI_Iallreduce");
  });
  return Request(std::move(request));
}

Request MpiCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) {
  require(input.dtype == output.dtype && input.size() == output.size() * size_,
          "input is output times ranks");
  const bool within = overlap(input, output);
  auto request = start(within || runs_on_host(output.dtype, op));
  const std::byte* in = request->buffers().read(input);
  std::byte* out = request->buffers().write(output, within);
  const MPI_Datatype type = mpi_type(output.dtype);
  const MPI_Op reduction = mpi_op(output.dtype, op);
  if (output.size() <= settings_.max_count) {
    check(MPI_Ireduce_scatter_block(in, out, static_cast<int>(output.size()), type, reduction, comm_,
                                    request->next()),
          "MPI_Ireduce_scatter_block");
    return Request(std::move(request));
  }
  for (int root = 0; root < size_; ++root, in += output.bytes()) {
    for_pieces(output.dtype, output.size(), [&](std::int64_t offset, int count) {
      check(MPI_Ireduce(in + offset, out + offset, count, type, reduction, root, comm_, request->next()),
            "MPI_Ireduce");
    });
  }
  return Request(std::move(request));
}

Request MpiCommunicator::all_gather(TensorRef input, TensorRef output) {
  require(input.dtype == output.dtype && output.size() == input.size() * size_,
          "output is input times ranks");
  auto request = start();
  const auto part_bytes = static_cast<std::int64_t>(input.bytes());
  const std::byte* in = request->buffers().read(input);
  std::byte* out = request->buffers().write(output);
  const bool in_place = in == out + rank_ * part_bytes;
  if (input.size() <= settings_.max_count) {
    const int count = static_cast<int>(input.size());
    const MPI_Datatype type = mpi_type(input.dtype);
    check(MPI_Iallgather(in_place ? MPI_IN_PLACE : static_cast<const void*>(in), count, type, out, count,
                         type, comm_, request->next()),
          "MPI_Iallgather");
    return Request(std::move(request));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ && in_place) continue;
    exchange(*request, peer, input.dtype, in, input.size(), out + peer * part_bytes, input.size());
  }
  return Request(std::move(request));
}

Request MpiCommunicator::broadcast(TensorRef buffer, int root) {
  auto request = start();
  std::byte* data = rank_ == root ? request->buffers().read_write(buffer) : request->buffers().write(buffer);
  for_pieces(buffer.dtype, buffer.size(), [&](std::int64_t offset, int count) {
    check(MPI_Ibcast(data + offset, count, mpi_type(buffer.dtype), root, comm_, request->next()),
          "MPI_Ibcast");
  });
  return Request(std::move(request));
}

Request MpiCommunicator::reduce(TensorRef buffer, ReduceOp op, int root) {
  auto request = start(runs_on_host(buffer.dtype, op));
  std::byte* result = rank_ == root ? request->buffers().read_write(buffer) : nullptr;
  const std::byte* operand = rank_ == root ? nullptr : request->buffers().read(buffer);
  for_pieces(buffer.dtype, buffer.size(), [&](std::int64_t offset, int count) {
    const void* send_part = rank_ == root ? MPI_IN_PLACE : operand + offset;
    void* recv_part = rank_ == root ? result + offset : nullptr;
    check(MPI_Ireduce(send_part, recv_part, count, mpi_type(buffer.dtype), mpi_op(buffer.dtype, op), root,
                      comm_, request->next()),
          "MPI_Ireduce");
  });
  return Request(std::move(request));
}

Request MpiCommunicator::all_to_all(TensorRef input, TensorRef output) {
  require(input.dtype == output.dtype && input.size() == output.size() && input.size() % size_ == 0,
          "input and output have one part for each rank");
  auto request = start();
  const std::byte* in = request->buffers().read(input);
  std::byte* out = request->buffers().write(output);
  const std::int64_t part = input.size() / size_;
  if (part <= settings_.max_count) {
    const int count = static_cast<int>(part);
    const MPI_Datatype type = mpi_type(input.dtype);
    check(MPI_Ialltoall(in, count, type, out, count, type, comm_, request->next()), "MPI_Ialltoall");
    return Request(std::move(request));
  }
  const std::int64_t part_bytes = part * static_cast<std::int64_t>(size_of(input.dtype));
  for (int peer = 0; peer < size_; ++peer) {
    exchange(*request, peer, input.dtype, in + peer * part_bytes, part, out + peer * part_bytes, part);
  }
  return Request(std::move(request));
}

Request MpiCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                      TensorRef output, std::span<const std::int64_t> recv_counts) {
  const auto ranks = static_cast<std::size_t>(size_);
  require(send_counts.size() == ranks && recv_counts.size() == ranks, "one count for each rank");
  require(input.dtype == output.dtype, "input and output have the same type");
  auto request = start();
  const std::byte* in =
      request->buffers().read(input.flat(0, std::reduce(send_counts.begin(), send_counts.end())));
  std::byte* out =
      request->buffers().write(output.flat(0, std::reduce(recv_counts.begin(), recv_counts.end())));
  const auto width = static_cast<std::int64_t>(size_of(input.dtype));
  // Always point to point: MPI_Ialltoallv takes displacements of at most INT_MAX, and a rank does not know
  // whether the displacements of the other ranks fit.
  for (int peer = 0; peer < size_; ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    exchange(*request, peer, input.dtype, in, send_counts[p], out, recv_counts[p]);
    in += send_counts[p] * width;
    out += recv_counts[p] * width;
  }
  return Request(std::move(request));
}

Request MpiCommunicator::send(TensorRef buffer, int peer, int tag) {
  require(tag >= 0 && tag < progress_tag, "tag is 0 to 32765");
  auto request = start();
  const std::byte* data = request->buffers().read(buffer);
  for_pieces(buffer.dtype, buffer.size(), [&](std::int64_t offset, int count) {
    check(MPI_Isend(data + offset, count, mpi_type(buffer.dtype), peer, tag, comm_, request->next()),
          "MPI_Isend");
  });
  return Request(std::move(request));
}

Request MpiCommunicator::recv(TensorRef buffer, int peer, int tag) {
  require(tag >= 0 && tag < progress_tag, "tag is 0 to 32765");
  auto request = start();
  std::byte* data = request->buffers().write(buffer);
  for_pieces(buffer.dtype, buffer.size(), [&](std::int64_t offset, int count) {
    check(MPI_Irecv(data + offset, count, mpi_type(buffer.dtype), peer, tag, comm_, request->next()),
          "MPI_Irecv");
  });
  return Request(std::move(request));
}

void MpiCommunicator::barrier() {
  MpiRequest request(*this, false);
  check(MPI_Ibarrier(comm_, request.next()), "MPI_Ibarrier");
  request.host_wait();
}

void MpiCommunicator::progress() {
  int any = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, progress_tag, comm_, &any, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  require(color >= 0, "a colour is not negative");
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
  return std::unique_ptr<Communicator>(new MpiCommunicator(part, settings_));
}

void MpiCommunicator::abort(ExitCode code, const std::string& message) {
  // The watchdog thread and the compute thread may both abort; the first one prints its message.
  static std::atomic_flag aborting;
  while (aborting.test_and_set()) pause();
  std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(stderr);
  // MPICH's mpiexec receives an abort and the output on different sockets, and drops output that it reads
  // after the abort.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

}  // namespace mylos::comm_mpi
