// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/flight_recorder.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace mylos {

namespace {

/// What a rank tells the others about its page.
struct Card {
  std::array<char, 256> host{};
  std::array<char, 256> path{};
};

template <std::size_t N>
std::array<char, N> fixed_text(std::string_view text) {
  std::array<char, N> result{};
  std::copy_n(text.begin(), std::min(text.size(), N - 1), result.begin());
  return result;
}

/// Makes and sizes the file; blocks are reserved, because a full file system would end the writer with
/// SIGBUS.
int create_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return -1;
  const int error = posix_fallocate(file, 0, sizeof(FlightPage));
  if (error == 0) return file;
  close(file);
  unlink(path.c_str());
  errno = error;
  return -1;
}

}  // namespace

/// Owns the mapping of one page.
class FlightRecorder::Mapping {
 public:
  /// Maps the file and closes it; null page where that fails.
  explicit Mapping(int file) {
    if (file < 0) return;
    void* memory = mmap(nullptr, sizeof(FlightPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) page_ = static_cast<FlightPage*>(memory);
    close(file);
  }
  Mapping(Mapping&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(page_, other.page_);
    return *this;
  }
  ~Mapping() {
    if (page_ != nullptr) munmap(page_, sizeof(FlightPage));
  }

  FlightPage* page() const { return page_; }

 private:
  FlightPage* page_ = nullptr;
};

const RankFlight::Entry* RankFlight::open_operation() const {
  const auto open =
      std::find_if(operations.begin(), operations.end(), [](const Entry& e) { return !e.done; });
  return open == operations.end() ? nullptr : &*open;
}

std::unique_ptr<FlightRecorder> FlightRecorder::open(Communicator& world) {
  std::int64_t job =
      std::chrono::system_clock::now().time_since_epoch().count() ^ (std::int64_t{getpid()} << 40);
  world.broadcast(TensorRef(&job, DType::int64, {1}), 0).host_wait();

  Card own_card;
  gethostname(own_card.host.data(), own_card.host.size() - 1);
  int file = -1;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    const std::string path =
        fmt::format("{}/mylos-{:x}-{}", folder, static_cast<std::uint64_t>(job), world.rank());
    file = create_file(path);
    if (file < 0) continue;
    own_card.path = fixed_text<256>(path);
    break;
  }
  if (file < 0) {
    fail(ExitCode::io, "rank {}: no room for the flight recorder in /dev/shm or /tmp: {}", world.rank(),
         std::strerror(errno));
  }
  Mapping own_mapping(file);
  if (own_mapping.page() == nullptr)
    fail(ExitCode::io, "rank {}: cannot map {}", world.rank(), own_card.path.data());
  FlightPage& page = *new (own_mapping.page()) FlightPage;
  page.pid = getpid();
  page.rank = world.rank();

  std::vector<Card> cards(static_cast<std::size_t>(world.size()));
  constexpr auto width = static_cast<std::int64_t>(sizeof(Card));
  world
      .all_gather(TensorRef(&own_card, DType::uint8, {width}),
                  TensorRef(cards.data(), DType::uint8, {width * world.size()}))
      .host_wait();

  std::vector<Mapping> node;
  const auto map_peers = [&](int first, int end) {
    for (int r = first; r < end; ++r) {
      const Card& card = cards[static_cast<std::size_t>(r)];
      if (card.host != own_card.host) continue;
      Mapping peer(::open(card.path.data(), O_RDWR | O_CLOEXEC));
      if (peer.page() != nullptr) node.push_back(std::move(peer));
    }
  };
  map_peers(0, world.rank());
  const std::size_t own = node.size();
  node.push_back(std::move(own_mapping));
  map_peers(world.rank() + 1, world.size());
  world.barrier();
  unlink(own_card.path.data());
  return std::unique_ptr<FlightRecorder>(new FlightRecorder(world.rank(), std::move(node), own));
}

FlightRecorder::FlightRecorder(int rank, std::vector<Mapping> node, std::size_t own)
    : rank_(rank), node_(std::move(node)), own_(own) {}

FlightRecorder::~FlightRecorder() {
  finish();
}

FlightPage& FlightRecorder::own() {
  return *node_[own_].page();
}

std::uint64_t FlightRecorder::begin(std::string_view operation, std::string_view axis, std::uint64_t bytes) {
  const std::uint64_t number = own().operations.fetch_add(1) + 1;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  own().slots[number % FlightPage::num_operations].record.store(
      {number, bytes, std::chrono::nanoseconds(now).count(), fixed_text<16>(operation),
       fixed_text<24>(axis)});
  return number;
}

void FlightRecorder::complete(std::uint64_t number) {
  std::atomic<std::uint64_t>& completed = own().slots[number % FlightPage::num_operations].completed;
  if (completed.load() < number) completed.store(number);
}

void FlightRecorder::set_phase(std::int64_t step, std::string_view text) {
  own().phase.store({step, fixed_text<56>(text)});
}

std::vector<RankFlight> FlightRecorder::read_node() const {
  std::vector<RankFlight> ranks;
  for (const Mapping& mapping : node_) {
    const FlightPage& page = *mapping.page();
    RankFlight flight;
    flight.rank = static_cast<int>(page.rank);
    flight.pid = static_cast<int>(page.pid);
    flight.finished = page.finished.load();
    flight.heartbeats = page.heartbeats.load();
    if (const auto phase = page.phase.load()) {
      flight.step = phase->step;
      flight.phase = phase->text.data();
    }
    for (const FlightPage::Slot& slot : page.slots) {
      const auto record = slot.record.load();
      if (record && record->number > 0)
        flight.operations.push_back({*record, slot.completed.load() >= record->number});
    }
    std::sort(flight.operations.begin(), flight.operations.end(),
              [](const auto& a, const auto& b) { return a.record.number < b.record.number; });
    ranks.push_back(std::move(flight));
  }
  return ranks;
}

}  // namespace mylos
