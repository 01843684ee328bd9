// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/shm_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>
#include <unistd.h>

namespace mylos::comm_shm {

namespace {

constexpr int exchange_tag = 32767;  // callers' tags are below 32766

// Limits measured with 2 to 4 ranks on two cores:

/// The smallest buffer for which windows, with their two synchronisations of all ranks, are faster than a
/// copy through slots.
constexpr std::size_t smallest_in_windows = 2 << 10;
/// In an all-reduce through slots, every rank reduces the whole of a buffer of at most this size, or of any
/// buffer if there are at most `most_ranks_that_reduce_whole` ranks. Otherwise, each rank reduces only its
/// own part and gathers the others.
constexpr std::size_t largest_reduced_whole = 32 << 10;
constexpr int most_ranks_that_reduce_whole = 2;

/// Half of the bytes of the third-level cache; half of 32 MiB if the system does not report the cache's size.
/// sysconf is not used, because it may report the sum of several caches.
std::size_t streaming_limit() {
  static const std::size_t limit = [] {
    constexpr std::size_t usual = 32 << 10;
    std::size_t kibibytes = 0;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kibibytes;
    return ((kibibytes > 0 ? kibibytes : usual) << 10U) / 2;
  }();
  return limit;
}

class ShmRequest final : public RequestState {
 public:
  ShmRequest(std::shared_ptr<ProgressEngine> engine, std::shared_ptr<const Completion> completion,
             HostBuffers buffers)
      : engine_(std::move(engine)), completion_(std::move(completion)), buffers_(std::move(buffers)) {}

  void host_wait() override {
    engine_->wait(*completion_);
    buffers_.copy_back();
  }
  bool test() override {
    if (!completion_->done()) engine_->progress();
    return completion_->done();
  }

 private:
  std::shared_ptr<ProgressEngine> engine_;
  std::shared_ptr<const Completion> completion_;
  HostBuffers buffers_;
};

std::vector<SharedPart> share_parts(SharedMemory& memory, const GatherNumbers& gather,
                                    std::span<const int> members, int own) {
  const int ranks = static_cast<int>(members.size());
  std::vector<SharedPart> parts;
  for (SharedBytes& part : share(memory, gather, members, own, SharedPart::bytes(ranks)))
    parts.emplace_back(std::move(part), ranks);
  return parts;
}

int position_of(int rank, std::span<const int> members) {
  return static_cast<int>(std::ranges::find(members, rank) - members.begin());
}

std::vector<int> first_integers(std::size_t count) {
  std::vector<int> integers(count);
  std::iota(integers.begin(), integers.end(), 0);
  return integers;
}

}  // namespace

std::unique_ptr<ShmCommunicator> ShmCommunicator::create(const ShmSettings& settings,
                                                         std::span<const int> members) {
  Communicator& bootstrap = *settings.bootstrap;
  const GatherNumbers gather = [&](std::int64_t own) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(bootstrap.size()));
    bootstrap
        .all_gather(TensorRef(&own, DType::int64, {1}),
                    TensorRef(all.data(), DType::int64, {bootstrap.size()}))
        .host_wait();
    return all;
  };
  const int rank = position_of(bootstrap.rank(), members);
  std::vector<SharedPart> parts = share_parts(*settings.memory, gather, members, rank);
  auto engine = std::make_shared<ProgressEngine>(parts, rank, settings.may_spin);
  return std::unique_ptr<ShmCommunicator>(new ShmCommunicator(settings, std::move(engine), std::move(parts),
                                                              rank, first_integers(members.size())));
}

ShmCommunicator::ShmCommunicator(ShmSettings settings, std::shared_ptr<ProgressEngine> engine,
                                 std::vector<SharedPart> parts, int rank, std::vector<int> engine_ranks)
    : settings_(std::move(settings)),
      engine_(std::move(engine)),
      parts_(std::move(parts)),
      rank_(rank),
      size_(static_cast<int>(parts_.size())),
      charge_(settings_.ledger, MemoryCategory::communication, SharedPart::bytes(size_)),
      engine_ranks_(std::move(engine_ranks)),
      collectives_(parts_, rank_, bells()),
      mailbox_(*settings_.memory, settings_.ledger, parts_, rank_, bells()) {
  engine_->add(collectives_);
  engine_->add(mailbox_);
}

ShmCommunicator::~ShmCommunicator() {
  engine_->remove(collectives_);
  engine_->remove(mailbox_);
}

std::vector<Doorbell*> ShmCommunicator::bells() const {
  std::vector<Doorbell*> bells;
  for (const int rank : engine_ranks_) bells.push_back(&engine_->bell(rank));
  return bells;
}

HostBuffers ShmCommunicator::start() const {
  if (settings_.compute != nullptr) settings_.compute->synchronize();
  return HostBuffers(settings_.compute);
}

Request ShmCommunicator::post(HostBuffers buffers, std::span<Collective> collectives) {
  auto completion = std::make_shared<Completion>(static_cast<int>(collectives.size()));
  engine_->post([&] {
    for (Collective& collective : collectives) {
      collective.completion = completion;
      collectives_.push(std::move(collective));
    }
  });
  return Request(std::make_unique<ShmRequest>(engine_, std::move(completion), std::move(buffers)));
}

std::optional<WindowGroup> ShmCommunicator::find_window_group(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  if (bytes < smallest_in_windows) return std::nullopt;
  const auto own = static_cast<std::size_t>(rank_);
  for (const std::weak_ptr<const SharedWindow>& each : windows_) {
    const std::shared_ptr<const SharedWindow> window = each.lock();
    if (!window) continue;
    const std::byte* memory = window->parts[own].get();
    if (std::less<>()(begin, memory) || !std::less<>()(begin, memory + window->bytes)) continue;
    const auto offset = static_cast<std::size_t>(begin - memory);
    require(offset + bytes <= window->bytes, "a buffer lies within its window");
    Places places;
    for (const SharedBytes& part : window->parts) places.push_back(part.get() + offset);
    const bool exceeds_caches = bytes * static_cast<std::size_t>(size_) > streaming_limit();
    return WindowGroup{rank_, std::move(places), exceeds_caches ? Stores::streaming : Stores::cached};
  }
  return std::nullopt;
}

Request ShmCommunicator::all_reduce(TensorRef buffer, ReduceOp op) {
  const std::size_t bytes = buffer.bytes();
  if (size_ == 1 || bytes == 0) return {};
  HostBuffers buffers = start();
  std::byte* data = buffers.read_write(buffer);
  if (const auto group = find_window_group(data, bytes)) {
    const Division division = Division::in_lines(data, bytes, size_);
    return post(std::move(buffers), reduce_in_windows(*group, division, buffer.dtype, op, group->places, 0));
  }
  if (size_ <= most_ranks_that_reduce_whole || bytes <= largest_reduced_whole) {
    return post(std::move(buffers), reduce_whole(staged(), data, bytes, buffer.dtype, op, std::nullopt));
  }
  const Division division = Division::in_lines(nullptr, bytes, size_);
  std::byte* own = data + division.piece(rank_, 0, 0).begin;
  std::array<Collective, 2> both{reduce_parts(staged(), data, own, division, buffer.dtype, op),
                                 gather_parts(staged(), own, data, division)};
  both[1].needs_previous = true;
  return post(std::move(buffers), both);
}

Request ShmCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) {
  require(input.dtype == output.dtype && input.size() == output.size() * size_,
          "input is output times ranks");
  if (input.bytes() == 0) return {};
  HostBuffers buffers = start();
  const Division division{input.bytes(), output.bytes()};
  const std::size_t own = static_cast<std::size_t>(rank_) * division.part;
  const bool in_place = output.data == static_cast<std::byte*>(input.data) + own;
  const std::byte* in = buffers.read(input);
  std::byte* out = buffers.write(output, !in_place && overlap(input, output));
  if (size_ == 1) {
    if (out != in) copy_bytes(out, in, division.total, Stores::cached);
    return post(std::move(buffers), std::span<Collective>());
  }
  if (const auto group = find_window_group(in, division.total)) {
    return post(std::move(buffers), reduce_in_windows(*group, division, input.dtype, op, {out}, own));
  }
  return post(std::move(buffers), reduce_parts(staged(), in, out, division, input.dtype, op));
}

Request ShmCommunicator::all_gather(TensorRef input, TensorRef output) {
  require(input.dtype == output.dtype && output.size() == input.size() * size_,
          "output is input times ranks");
  if (output.bytes() == 0) return {};
  HostBuffers buffers = start();
  const Division division{output.bytes(), input.bytes()};
  const std::byte* in = buffers.read(input);
  std::byte* out = buffers.write(output);
  if (const auto group = find_window_group(out, division.total)) {
    std::byte* own = out + static_cast<std::size_t>(rank_) * division.part;
    if (own != in) copy_to_other_core(own, in, division.part);
    return post(std::move(buffers), gather_in_windows(*group, division.part));
  }
  return post(std::move(buffers), gather_parts(staged(), in, out, division));
}

Request ShmCommunicator::broadcast(TensorRef buffer, int root) {
  const std::size_t bytes = buffer.bytes();
  require(root >= 0 && root < size_, "root is a rank of the group");
  if (size_ == 1 || bytes == 0) return {};
  HostBuffers buffers = start();
  std::byte* data = rank_ == root ? buffers.read_write(buffer) : buffers.write(buffer);
  if (const auto group = find_window_group(data, bytes))
    return post(std::move(buffers), broadcast_in_windows(*group, bytes, root));
  return post(std::move(buffers), broadcast_staged(staged(), data, bytes, root));
}

Request ShmCommunicator::reduce(TensorRef buffer, ReduceOp op, int root) {
  const std::size_t bytes = buffer.bytes();
  require(root >= 0 && root < size_, "root is a rank of the group");
  if (size_ == 1 || bytes == 0) return {};
  HostBuffers buffers = start();
  std::byte* data = buffers.read_write(buffer);
  if (const auto group = find_window_group(data, bytes)) {
    const Division division = Division::in_lines(data, bytes, size_);
    return post(std::move(buffers), reduce_in_windows(*group, division, buffer.dtype, op,
                                                      {group->places[static_cast<std::size_t>(root)]}, 0));
  }
  return post(std::move(buffers), reduce_whole(staged(), data, bytes, buffer.dtype, op, root));
}

Request ShmCommunicator::all_to_all(TensorRef input, TensorRef output) {
  require(input.dtype == output.dtype && input.size() == output.size() && input.size() % size_ == 0,
          "input and output have one part for each rank");
  if (input.bytes() == 0) return {};
  HostBuffers buffers = start();
  const Division division{input.bytes(), input.bytes() / static_cast<std::size_t>(size_)};
  const std::byte* in = buffers.read(input);
  std::byte* out = buffers.write(output);
  if (const auto group = find_window_group(in, division.total))
    return post(std::move(buffers), exchange_in_windows(*group, out, division.part));
  return post(std::move(buffers), exchange_parts(staged(), in, out, division));
}

Request ShmCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                      TensorRef output, std::span<const std::int64_t> recv_counts) {
  const auto ranks = static_cast<std::size_t>(size_);
  require(send_counts.size() == ranks && recv_counts.size() == ranks, "one count for each rank");
  require(input.dtype == output.dtype, "input and output have the same type");
  HostBuffers buffers = start();
  const std::byte* in = buffers.read(input.flat(0, std::reduce(send_counts.begin(), send_counts.end())));
  std::byte* out = buffers.write(output.flat(0, std::reduce(recv_counts.begin(), recv_counts.end())));
  auto completion = std::make_shared<Completion>(2 * size_);
  engine_->post([&] {
    for (int peer = 0; peer < size_; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      const std::size_t sent = static_cast<std::size_t>(send_counts[p]) * size_of(input.dtype);
      const std::size_t received = static_cast<std::size_t>(recv_counts[p]) * size_of(input.dtype);
      mailbox_.push_recv(peer, exchange_tag, out, received, completion);
      mailbox_.push_send(peer, exchange_tag, in, sent, completion);
      in += sent;
      out += received;
    }
  });
  return Request(std::make_unique<ShmRequest>(engine_, std::move(completion), std::move(buffers)));
}

Request ShmCommunicator::send(TensorRef buffer, int peer, int tag) {
  require(peer >= 0 && peer < size_, "peer is a rank of the group");
  require(tag >= 0 && tag < exchange_tag - 1, "tag is 0 to 32765");
  HostBuffers buffers = start();
  const std::byte* data = buffers.read(buffer);
  auto completion = std::make_shared<Completion>(1);
  engine_->post([&] { mailbox_.push_send(peer, tag, data, buffer.bytes(), completion); });
  return Request(std::make_unique<ShmRequest>(engine_, std::move(completion), std::move(buffers)));
}

Request ShmCommunicator::recv(TensorRef buffer, int peer, int tag) {
  require(peer >= 0 && peer < size_, "peer is a rank of the group");
  require(tag >= 0 && tag < exchange_tag - 1, "tag is 0 to 32765");
  HostBuffers buffers = start();
  std::byte* data = buffers.write(buffer);
  auto completion = std::make_shared<Completion>(1);
  engine_->post([&] { mailbox_.push_recv(peer, tag, data, buffer.bytes(), completion); });
  return Request(std::make_unique<ShmRequest>(engine_, std::move(completion), std::move(buffers)));
}

void ShmCommunicator::barrier() {
  post(HostBuffers(nullptr), meet()).host_wait();
}

// A rank may free a window before the other ranks do: each rank has its own mappings, and an operation in
// windows is complete only after every rank has worked the operation's last ticket.
Window ShmCommunicator::allocate(std::size_t bytes) {
  if (bytes == 0 || (settings_.compute != nullptr && !settings_.compute->host_accessible())) return {};
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t size = (bytes + page - 1) / page * page;
  const GatherNumbers gather = [this](std::int64_t own) { return gather_numbers(own); };
  const std::vector<int> members = first_integers(parts_.size());
  const auto window = std::make_shared<const SharedWindow>(
      SharedWindow{share(*settings_.memory, gather, members, rank_, size), size});
  std::erase_if(windows_, [](const auto& each) { return each.expired(); });
  windows_.push_back(window);
  // The pointer to this rank's memory owns this rank's mappings of all ranks' memory.
  return {window, window->parts[static_cast<std::size_t>(rank_)].get()};
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, int key) {
  require(color >= 0, "a colour is not negative");
  const GatherNumbers gather = [this](std::int64_t own) { return gather_numbers(own); };
  const std::vector<std::int64_t> colors = gather(color);
  const std::vector<std::int64_t> keys = gather(key);
  std::vector<int> members;
  for (const int member : first_integers(parts_.size())) {
    if (colors[static_cast<std::size_t>(member)] == color) members.push_back(member);
  }
  std::ranges::stable_sort(members, {}, [&](int member) { return keys[static_cast<std::size_t>(member)]; });
  const int rank = position_of(rank_, members);
  std::vector<SharedPart> parts = share_parts(*settings_.memory, gather, members, rank);
  std::vector<int> engine_ranks;
  for (const int member : members) engine_ranks.push_back(engine_ranks_[static_cast<std::size_t>(member)]);
  return std::unique_ptr<Communicator>(
      new ShmCommunicator(settings_, engine_, std::move(parts), rank, std::move(engine_ranks)));
}

std::vector<std::int64_t> ShmCommunicator::gather_numbers(std::int64_t own) {
  std::vector<std::int64_t> all(parts_.size());
  const Division division{all.size() * sizeof own, sizeof own};
  post(HostBuffers(nullptr), gather_parts(staged(), reinterpret_cast<const std::byte*>(&own),
                                          reinterpret_cast<std::byte*>(all.data()), division))
      .host_wait();
  return all;
}

void ShmCommunicator::abort(ExitCode code, const std::string& message) {
  settings_.bootstrap->abort(code, message);
  std::abort();  // not reached; the compiler ignores [[noreturn]] on a virtual call
}

}  // namespace mylos::comm_shm
