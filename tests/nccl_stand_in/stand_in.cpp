// SPDX-License-Identifier: BSD-3-Clause
#include "tests/nccl_stand_in/stand_in.hpp"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace mylos::nccl_stand_in {
namespace {

struct Message;

/// A part of an operation. Once the stream has come to the operation, `ends` is called until it returns true.
struct Task {
  std::function<bool()> ends;
  std::string text{};                        // what it waits for
  std::shared_ptr<Message> first_contact{};  // the message, if its channel is not yet connected
  bool has_ended = false;
};

/// Tasks that proceed together. The operation ends when all have ended.
using Operation = std::vector<Task>;

/// A message of one channel. An end without text has not been posted.
struct Message {
  struct End {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    ncclDataType_t type = ncclUint8;
    std::string text{};
    bool has_begun = false;
  };
  End sent, received;
  bool is_done = false;

  bool is_matched() const { return !sent.text.empty() && !received.text.empty(); }
};

struct Channel {
  std::deque<std::shared_ptr<Message>> unmatched;  // all of one side
  bool is_connected = false;
};

/// A collective that ranks have called.
struct Collective {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::size_t count = 0;
  int num_begun = 0;
  bool is_done = false;
};

struct Split {
  struct Member {
    int color, key, rank;
    ncclComm* part;
  };
  std::vector<Member> members;
};

/// The ranks of a communicator, and what they share.
struct Group {
  int size = 0;
  int num_joined = 0;
  int num_finalized = 0;
  std::map<std::pair<int, int>, Channel> channels;  // by sender and receiver
  std::vector<std::shared_ptr<Collective>> collectives;
  std::vector<std::shared_ptr<Split>> splits;
};

/// A call in progress.
struct Call {
  std::function<bool()> settles;
  std::string text{};
  int polls = 0;  // until `settles` is called, and called until it returns true
};

/// A message or collective that an open group contains. `post` makes its task.
struct Posting {
  ncclComm* comm;
  cudaStream_t stream;
  std::function<Task()> post;
};

struct Host {
  int rank = 0;
  bool has_left = false;
  std::optional<std::uint64_t> waits_since;  // the number of the last change when it began to wait
  int open_groups = 0;
  std::vector<Posting> postings;
};

}  // namespace
}  // namespace mylos::nccl_stand_in

using mylos::nccl_stand_in::Call;
using mylos::nccl_stand_in::Group;
using mylos::nccl_stand_in::Host;
using mylos::nccl_stand_in::Operation;

// NOLINTBEGIN(readability-identifier-naming)
struct CUstream_st {
  Host* host;
  std::deque<Operation> queue;
};
struct CUevent_st {
  std::shared_ptr<bool> is_reached;  // of the last record
};
struct ncclComm {
  Host* host;
  std::shared_ptr<Group> group;
  int rank = 0;
  std::size_t num_collectives = 0, num_splits = 0;
  std::optional<Call> call;
  bool is_finalized = false;
};
// NOLINTEND(readability-identifier-naming)

namespace mylos::nccl_stand_in {
namespace {

/// The state of a run. Only a thread that holds the lock calls the functions.
class Machine {
 public:
  Machine(int ranks, const Behaviour& behaviour)
      : behaviour_(behaviour), random_(behaviour.seed), hosts_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) hosts_[static_cast<std::size_t>(rank)].rank = rank;
  }

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  Host& host(int rank) { return hosts_[static_cast<std::size_t>(rank)]; }
  const Behaviour& behaviour() const { return behaviour_; }
  int number_below(int limit) { return std::uniform_int_distribution(0, limit - 1)(random_); }

  void note_change() {
    ++num_changes_;
    changed_.notify_all();
  }
  /// Ends the run, unless it has failed already.
  void report(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
    note_change();
  }
  bool has_failed() const { return !problem_.empty(); }
  const std::string& problem() const { return problem_; }

  void queue(cudaStream_t stream, Operation operation) {
    stream->queue.push_back(std::move(operation));
    note_change();
  }
  /// Advances the streams, as a host waits. If none can advance, returns after the next change.
  void wait(Host& host, std::unique_lock<std::mutex>& lock) {
    const std::uint64_t before = num_changes_;
    advance();
    if (num_changes_ != before) return;
    host.waits_since = before;
    if (std::ranges::all_of(hosts_, [&](const Host& h) { return h.has_left || h.waits_since == before; }))
      return report(waits());
    changed_.wait(lock, [&] { return num_changes_ != before; });
  }

  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::vector<std::unique_ptr<ncclComm>> comms;
  std::map<std::string, std::shared_ptr<Group>> groups;  // by NCCL's id

 private:
  void advance() {
    std::vector<CUstream_st*> order;
    for (const auto& stream : streams) order.push_back(stream.get());
    for (std::uint64_t before = num_changes_ + 1; num_changes_ != before && !has_failed();) {
      before = num_changes_;
      std::ranges::shuffle(order, random_);
      for (CUstream_st* stream : order) {
        if (stream->queue.empty()) continue;
        Operation& operation = stream->queue.front();
        for (Task& task : operation) task.has_ended = task.has_ended || task.ends();
        if (!std::ranges::all_of(operation, &Task::has_ended)) continue;
        stream->queue.pop_front();
        note_change();
      }
    }
  }

  /// What each rank waits for.
  std::string waits() const {
    std::string all;
    for (const Host& host : hosts_) {
      std::string own;
      const auto add = [&](const std::string& text) {
        if (!text.empty()) own += (own.empty() ? "" : ", ") + text;
      };
      for (const auto& stream : streams) {
        if (stream->host != &host || stream->queue.empty()) continue;
        for (const Task& task : stream->queue.front()) add(task.has_ended ? "" : task.text);
      }
      for (const auto& comm : comms) add(comm->host == &host && comm->call ? comm->call->text : "");
      if (own.empty() && !host.has_left) own = "an event";
      if (!own.empty()) all += fmt::format("{}rank {} waits for {}", all.empty() ? "" : "; ", host.rank, own);
    }
    return all;
  }

  Behaviour behaviour_;
  std::mt19937 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t num_changes_ = 0;
  std::vector<Host> hosts_;
  std::string problem_;
};

Machine* machine = nullptr;
thread_local Host* own_host = nullptr;

void remove(auto& all, const auto* one) {
  std::erase_if(all, [&](const auto& other) { return other.get() == one; });
}

const char* name_of(ncclDataType_t type) {
  static constexpr std::array<const char*, 10> names = {"", "uint8", "int32",   "", "int64",
                                                        "", "fp16",  "float32", "", "bf16"};
  return names[type];
}

std::size_t size_of(ncclDataType_t type) {
  static constexpr std::array<std::size_t, 10> sizes = {0, 1, 4, 0, 8, 0, 2, 4, 0, 2};
  return sizes[type];
}

/// Begins a call, which settles after some polls and once `settles` returns true.
ncclResult_t begin_call(ncclComm& comm, std::function<bool()> settles, std::string text) {
  if (comm.call) machine->report(fmt::format("rank {}: {} during {}", comm.rank, text, comm.call->text));
  comm.call = Call{std::move(settles), std::move(text), machine->number_below(3)};
  machine->note_change();
  return ncclInProgress;
}

/// Posts one side of a message.
Task message(ncclComm& comm, bool is_sent, int peer, Message::End end) {
  Channel& channel = comm.group->channels[is_sent ? std::pair(comm.rank, peer) : std::pair(peer, comm.rank)];
  Task task{.ends = {}, .text = end.text};
  const auto own_end = is_sent ? &Message::sent : &Message::received;
  std::shared_ptr<Message> own;
  if (auto& queue = channel.unmatched; !queue.empty() && ((*queue.front()).*own_end).text.empty()) {
    own = queue.front();
    queue.pop_front();
  } else {
    own = queue.emplace_back(std::make_shared<Message>());
  }
  (*own).*own_end = std::move(end);
  if (!channel.is_connected) task.first_contact = own;
  if (own->is_matched()) {
    channel.is_connected = true;
    const auto& [sent, received, is_done] = *own;
    if (sent.bytes != received.bytes || sent.type != received.type)
      machine->report(fmt::format("a {} meets a {}", sent.text, received.text));
  }
  task.ends = [own, own_end] {
    if (!((*own).*own_end).has_begun) machine->note_change();
    ((*own).*own_end).has_begun = true;
    if (!own->is_done && own->sent.has_begun && own->received.has_begun) {
      std::copy_n(own->sent.data, own->sent.bytes, own->received.data);
      own->is_done = true;
    }
    return own->is_done;
  };
  return task;
}

/// Calls the next collective of a communicator, a sum of int32.
Task sum(ncclComm& comm, const void* input, void* output, std::size_t count) {
  auto& all = comm.group->collectives;
  if (comm.num_collectives == all.size()) all.push_back(std::make_shared<Collective>());
  const std::shared_ptr<Collective> own = all[comm.num_collectives++];
  if (!own->inputs.empty() && own->count != count) machine->report("collectives of different sizes meet");
  own->count = count;
  own->inputs.push_back(input);
  own->outputs.push_back(output);
  return {.ends =
              [own, size = comm.group->size, has_begun = false]() mutable {
                if (!std::exchange(has_begun, true)) {
                  ++own->num_begun;
                  machine->note_change();
                }
                if (own->is_done || own->num_begun < size) return own->is_done;
                for (std::size_t i = 0; i < own->count; ++i) {
                  std::int32_t sum = 0;
                  for (const void* in : own->inputs) sum += static_cast<const std::int32_t*>(in)[i];
                  for (void* out : own->outputs) static_cast<std::int32_t*>(out)[i] = sum;
                }
                own->is_done = true;
                return true;
              },
          .text = "all_reduce"};
}

/// Posts an operation of a communicator, which its stream gets when the call has settled.
ncclResult_t start(ncclComm& comm, cudaStream_t stream, Operation operation) {
  std::string text;
  for (const Task& task : operation) text += (text.empty() ? "" : ", ") + task.text;
  return begin_call(
      comm,
      [stream, operation = std::move(operation)] {
        for (const Task& task : operation) {
          const bool is_new = task.first_contact && machine->behaviour().connects_in_calls;
          if (is_new && !task.first_contact->is_matched()) return false;
        }
        machine->queue(stream, operation);
        return true;
      },
      text);
}

/// Posts a message or collective, or adds it to the open group.
ncclResult_t add(ncclComm& comm, cudaStream_t stream, std::function<Task()> post) {
  if (own_host->open_groups == 0) return start(comm, stream, {post()});
  own_host->postings.push_back({&comm, stream, std::move(post)});
  return ncclSuccess;
}

ncclResult_t add_message(ncclComm& comm, cudaStream_t stream, bool is_sent, int peer, void* data,
                         std::size_t count, ncclDataType_t type) {
  const auto lock = machine->lock();
  const Message::End end{.data = static_cast<std::byte*>(data),
                         .bytes = count * size_of(type),
                         .type = type,
                         .text = fmt::format("{} of {} {} {} rank {}", is_sent ? "send" : "receive", count,
                                             name_of(type), is_sent ? "to" : "from", peer)};
  return add(comm, stream, [&comm, is_sent, peer, end] { return message(comm, is_sent, peer, end); });
}

ncclResult_t missing(const char* call) {
  const auto lock = machine->lock();
  machine->report(fmt::format("the stand-in has no {}", call));
  return ncclInvalidUsage;
}

ncclComm* make_comm() {
  machine->comms.push_back(std::make_unique<ncclComm>());
  machine->comms.back()->host = own_host;
  return machine->comms.back().get();
}

/// Divides the members of a split, of which this is the last.
void divide(std::vector<Split::Member>& members) {
  std::ranges::sort(members, {}, [](const Split::Member& m) { return std::tuple(m.color, m.key, m.rank); });
  for (const Split::Member& member : members) {
    const bool is_first = &member == &members.front() || (&member - 1)->color != member.color;
    member.part->group = is_first ? std::make_shared<Group>() : (&member - 1)->part->group;
    member.part->rank = member.part->group->size++;
  }
}

}  // namespace

std::string run_on_threads(int ranks, const Behaviour& behaviour, const std::function<void(int)>& body) {
  Machine run(ranks, behaviour);
  machine = &run;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      own_host = &run.host(rank);
      try {
        body(rank);
      } catch (const std::exception& exception) {
        report(fmt::format("rank {}: {}", rank, exception.what()));
      }
      const auto lock = run.lock();
      own_host->has_left = true;
      run.note_change();
    });
  }
  threads.clear();
  machine = nullptr;
  if (!run.has_failed() && !(run.streams.empty() && run.events.empty() && run.comms.empty()))
    return "a stream, an event or a communicator was not destroyed";
  return run.problem();
}

void report(const std::string& problem) {
  const auto lock = machine->lock();
  machine->report(problem);
}

void launch(cudaStream_t stream, std::function<std::string()> kernel) {
  const auto lock = machine->lock();
  machine->queue(stream, {{.ends = [kernel = std::move(kernel)] {
                   const std::string problem = kernel();
                   if (!problem.empty()) machine->report(problem);
                   return true;
                 }}});
}

}  // namespace mylos::nccl_stand_in

using namespace mylos::nccl_stand_in;

const char* cudaGetErrorString(cudaError_t /*status*/) {
  return "the run has failed";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);  // NOLINT(cppcoreguidelines-no-malloc)
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc)
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  const auto lock = machine->lock();
  machine->streams.push_back(std::make_unique<CUstream_st>());
  *stream = machine->streams.back().get();
  (*stream)->host = own_host;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const auto lock = machine->lock();
  if (!stream->queue.empty()) machine->report("a stream is destroyed before its work is done");
  remove(machine->streams, stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  auto lock = machine->lock();
  while (!stream->queue.empty() && !machine->has_failed()) machine->wait(*own_host, lock);
  return machine->has_failed() ? cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const auto lock = machine->lock();
  if (event->is_reached)
    machine->queue(stream, {{.ends = [is_reached = event->is_reached] { return *is_reached; }}});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  const auto lock = machine->lock();
  machine->events.push_back(std::make_unique<CUevent_st>());
  *event = machine->events.back().get();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const auto lock = machine->lock();
  remove(machine->events, event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto lock = machine->lock();
  event->is_reached = std::make_shared<bool>(false);
  machine->queue(stream, {{.ends = [is_reached = event->is_reached] { return *is_reached = true; }}});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto lock = machine->lock();
  if (machine->has_failed()) return cudaErrorUnknown;
  if (!event->is_reached || *event->is_reached) return cudaSuccess;
  machine->wait(*own_host, lock);
  return cudaErrorNotReady;
}

const char* ncclGetErrorString(ncclResult_t /*result*/) {
  return "the run has failed";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const auto lock = machine->lock();
  const std::string text = fmt::format("group {}", machine->groups.size());
  machine->groups[text] = std::make_shared<Group>();
  text.copy(static_cast<char*>(id->internal), sizeof(id->internal) - 1);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* /*config*/) {
  const auto lock = machine->lock();
  *comm = make_comm();
  (*comm)->group = machine->groups.at(static_cast<const char*>(id.internal));
  (*comm)->rank = rank;
  Group& group = *(*comm)->group;
  group.size = ranks;
  group.num_joined += 1;
  return begin_call(
      **comm, [&group] { return group.num_joined == group.size; }, "ncclCommInitRankConfig");
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* /*config*/) {
  const auto lock = machine->lock();
  if (own_host->open_groups > 0) machine->report("ncclCommSplit while a group is open");
  *part = make_comm();
  auto& splits = comm->group->splits;
  if (comm->num_splits == splits.size()) splits.push_back(std::make_shared<Split>());
  auto& members = splits[comm->num_splits++]->members;
  members.push_back({color, key, comm->rank, *part});
  if (std::ssize(members) == comm->group->size) divide(members);
  const auto is_made = [part = *part] { return part->group != nullptr; };
  begin_call(**part, is_made, "ncclCommSplit");
  return begin_call(*comm, is_made, "");
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const auto lock = machine->lock();
  if (machine->has_failed()) return ncclSystemError;
  Group& group = *comm->group;
  comm->is_finalized = true;
  group.num_finalized += 1;
  return begin_call(
      *comm, [&group] { return group.num_finalized == group.size; }, "ncclCommFinalize");
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const auto lock = machine->lock();
  if (machine->has_failed()) return ncclSystemError;
  if (!comm->is_finalized || comm->call) machine->report("a communicator is destroyed before its end");
  remove(machine->comms, comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t /*comm*/) {
  const auto lock = machine->lock();
  machine->report("ncclCommAbort");
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  auto lock = machine->lock();
  *state = machine->has_failed() ? ncclSystemError : ncclSuccess;
  if (machine->has_failed() || !comm->call) return ncclSuccess;
  *state = ncclInProgress;
  if (comm->call->polls > 0) {
    --comm->call->polls;
  } else if (!comm->call->settles()) {
    machine->wait(*own_host, lock);
  } else {
    comm->call.reset();
    machine->note_change();
    *state = ncclSuccess;
  }
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->group->size;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++own_host->open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const auto lock = machine->lock();
  if (--own_host->open_groups > 0) return ncclSuccess;
  if (own_host->open_groups < 0) machine->report("ncclGroupEnd without ncclGroupStart");
  auto postings = std::exchange(own_host->postings, {});
  while (!postings.empty()) {  // those of one communicator are one operation
    ncclComm* const comm = postings.front().comm;
    const cudaStream_t stream = postings.front().stream;
    Operation operation;
    for (const auto& posting : postings) {
      if (posting.comm == comm) operation.push_back(posting.post());
    }
    std::erase_if(postings, [&](const auto& posting) { return posting.comm == comm; });
    start(*comm, stream, std::move(operation));
  }
  return ncclInProgress;
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_message(*comm, stream, true, peer, const_cast<void*>(data), count, type);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_message(*comm, stream, false, peer, data, count, type);
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclInt32 || op != ncclSum) return missing("such ncclAllReduce");
  const auto lock = machine->lock();
  return add(*comm, stream, [=] { return sum(*comm, in, out, count); });
}
ncclResult_t ncclReduceScatter(const void* /*in*/, void* /*out*/, std::size_t /*count*/,
                               ncclDataType_t /*type*/, ncclRedOp_t /*op*/, ncclComm_t /*comm*/,
                               cudaStream_t /*stream*/) {
  return missing("ncclReduceScatter");
}
ncclResult_t ncclAllGather(const void* /*in*/, void* /*out*/, std::size_t /*count*/, ncclDataType_t /*type*/,
                           ncclComm_t /*comm*/, cudaStream_t /*stream*/) {
  return missing("ncclAllGather");
}
ncclResult_t ncclBroadcast(const void* /*in*/, void* /*out*/, std::size_t /*count*/, ncclDataType_t /*type*/,
                           int /*root*/, ncclComm_t /*comm*/, cudaStream_t /*stream*/) {
  return missing("ncclBroadcast");
}
ncclResult_t ncclReduce(const void* /*in*/, void* /*out*/, std::size_t /*count*/, ncclDataType_t /*type*/,
                        ncclRedOp_t /*op*/, int /*root*/, ncclComm_t /*comm*/, cudaStream_t /*stream*/) {
  return missing("ncclReduce");
}
