// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/flight_recorder.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "core/base/clock.hpp"
#include "core/base/error.hpp"
#include "core/base/host.hpp"

namespace mylos {

namespace {

template <std::size_t N>
std::array<char, N> fixed_text(std::string_view text) {
  std::array<char, N> result{};
  std::copy_n(text.begin(), std::min(text.size(), N - 1), result.begin());
  return result;
}

/// Keeps the end of a long name, where the names of files differ.
template <std::size_t N>
std::array<char, N> fixed_end(std::string_view text) {
  return fixed_text<N>(text.substr(text.size() - std::min(text.size(), N - 1)));
}

/// Identifies the PID namespace of this process; 0 if it is not known.
std::int64_t pid_namespace() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::int64_t>(info.st_ino) : 0;
}

/// The host and the PID namespace, within which processes agree on process IDs.
std::string own_place() {
  return fmt::format("{} {}", host_name(), pid_namespace());
}

/// Returns a file for a FlightPage, or -1 with `errno` set if it cannot be created. The file has no path, so
/// nothing is left behind however the job ends. Its memory is allocated now, because otherwise a later write,
/// with no memory left, would kill the writer with SIGBUS.
int create_file() {
  const int file = memfd_create("mylos-flight-recorder", MFD_CLOEXEC);
  if (file < 0) return -1;
  const int error = posix_fallocate(file, 0, sizeof(FlightPage));
  if (error == 0) return file;
  close(file);
  errno = error;
  return -1;
}

}  // namespace

void FlightRecorder::Unmap::operator()(FlightPage* page) const {
  munmap(page, sizeof(FlightPage));
}

FlightRecorder::Mapping FlightRecorder::map(int file) {
  if (file < 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(FlightPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return Mapping(memory != MAP_FAILED ? static_cast<FlightPage*>(memory) : nullptr);
}

const RankFlight::Entry* RankFlight::open_operation(std::optional<CallKind> kind) const {
  const auto open = std::ranges::find_if(
      entries(), [&](const Entry& entry) { return !entry.done && (!kind || entry.record.kind == *kind); });
  return open == entries().end() ? nullptr : &*open;
}

FlightRecorder::FlightRecorder(int rank, const Gather& gather) : rank_(rank) {
  const int file = create_file();
  Mapping own_mapping = map(file);
  if (!own_mapping)
    fail(ExitCode::io, "rank {}: cannot create the memory of the flight recorder: {}", rank,
         std::strerror(errno));
  FlightPage& page = *new (own_mapping.get()) FlightPage;
  page.pid = getpid();
  page.pid_namespace = pid_namespace();
  page.rank = rank;

  const std::string place = own_place();
  const std::vector<std::string> places = gather(place);
  const std::vector<std::string> files = gather(fmt::format("/proc/{}/fd/{}", page.pid, file));
  for (int r = 0; r < static_cast<int>(places.size()); ++r) {
    if (r == rank) {
      own_ = node_.size();
      node_.push_back(std::move(own_mapping));
    } else if (places[static_cast<std::size_t>(r)] == place) {
      const int peer = ::open(files[static_cast<std::size_t>(r)].c_str(), O_RDWR | O_CLOEXEC);
      Mapping mapping = map(peer);
      if (peer >= 0) close(peer);
      if (mapping) node_.push_back(std::move(mapping));
    }
  }
  // After this gather, every rank has mapped the pages that it can.
  const std::vector<std::string> firsts = gather(std::to_string(node_.front()->rank));
  close(file);
  for (int r = 0; r < static_cast<int>(firsts.size()); ++r) {
    if (firsts[static_cast<std::size_t>(r)] == std::to_string(r)) leaders_.push_back(r);
  }
}

FlightPage& FlightRecorder::own() const {
  return *node_[own_];
}

namespace {

void store(FlightPage::Slot& slot, std::uint64_t number, CallKind kind, std::string_view operation,
           std::string_view object, std::uint64_t bytes) {
  const auto now = Clock::now().time_since_epoch();
  slot.record.store({number, bytes, std::chrono::nanoseconds(now).count(), kind, fixed_text<16>(operation),
                     fixed_end<object_bytes>(object)});
}

// The remainder of the number that `begin` returns: the index of the call's ring, or a computation.
constexpr std::uint64_t num_places = 4;
constexpr std::uint64_t computation_place = 3;

constexpr std::uint64_t ring_of(CallKind kind) {
  if (kind == CallKind::collective) return 0;
  return kind == CallKind::message ? 1 : 2;
}

}  // namespace

std::uint64_t FlightRecorder::begin(CallKind kind, std::string_view operation, std::string_view object,
                                    std::uint64_t bytes) {
  if (kind == CallKind::computation) {
    FlightPage::Slot& slot = own().computation;
    std::uint64_t last = slot.completed.load();
    if (!slot.begun.compare_exchange_strong(last, last + 1)) return computation_place;  // number 0: not noted
    store(slot, last + 1, kind, operation, object, bytes);
    return num_places * (last + 1) + computation_place;
  }
  const std::uint64_t index = ring_of(kind);
  FlightPage::Ring& ring = own().rings[index];
  std::uint64_t number = 0;
  FlightPage::Slot* slot = nullptr;
  for (std::size_t tries = 0; tries < ring.slots.size(); ++tries) {  // skips slots of calls under way
    number = ring.operations.fetch_add(1) + 1;
    slot = &ring.slots[number % ring.slots.size()];
    if (slot->begun.load() <= slot->completed.load()) break;
  }
  slot->begun.store(number);
  store(*slot, number, kind, operation, object, bytes);
  return num_places * number + index;
}

void FlightRecorder::complete(std::uint64_t number) {
  const std::uint64_t place = number % num_places;
  number /= num_places;
  if (place == computation_place) {
    if (number > 0) own().computation.completed.store(number);
    return;
  }
  std::atomic<std::uint64_t>& completed = own().rings[place].slots[number % FlightPage::Ring::size].completed;
  if (completed.load() < number) completed.store(number);
}

void FlightRecorder::set_phase(std::int64_t step, std::string_view text) {
  own().phase.store({step, fixed_text<56>(text)});
}

bool FlightRecorder::has_died(const FlightPage& page) const {
  return page.pid_namespace == own().pid_namespace && kill(static_cast<pid_t>(page.pid), 0) != 0 &&
         errno == ESRCH;
}

std::optional<int> FlightRecorder::dead_rank() const {
  for (const Mapping& mapping : node_)
    if (mapping->finished.load() == 0 && has_died(*mapping)) return static_cast<int>(mapping->rank);
  return std::nullopt;
}

void FlightRecorder::kill_others() const {
  for (const Mapping& mapping : node_) {
    const FlightPage& page = *mapping;
    if (&page == &own() || page.finished.load() != 0 || page.pid_namespace != own().pid_namespace) continue;
    kill(static_cast<pid_t>(page.pid), SIGKILL);
  }
}

void FlightRecorder::read_node(std::vector<RankFlight>& ranks) const {
  const auto read = [&](const FlightPage& page, bool on_other_node, RankFlight& flight) {
    flight.rank = static_cast<int>(page.rank);
    flight.pid = static_cast<int>(page.pid);
    flight.has_died = !on_other_node && has_died(page);
    flight.on_other_node = on_other_node;
    flight.finished = page.finished.load() != 0;
    flight.sees_failure = page.sees_failure.load() != 0;
    flight.heartbeats = page.heartbeats.load();
    if (const auto phase = page.phase.load()) {
      flight.step = phase->step;
      flight.phase = phase->text;
    }
    flight.num_operations = 0;
    const auto add = [&](const FlightPage::Slot& slot) {
      const auto record = slot.record.load();
      if (record && record->number > 0)
        flight.operations[flight.num_operations++] = {*record, slot.completed.load() >= record->number};
    };
    for (const FlightPage::Ring& ring : page.rings) std::ranges::for_each(ring.slots, add);
    add(page.computation);
    std::ranges::sort(std::span(flight.operations).first(flight.num_operations), {},
                      [](const RankFlight::Entry& entry) { return entry.record.begin_ns; });
  };
  const bool has_received = has_received_.load();
  ranks.resize(node_.size() + (has_received ? 1 : 0));
  for (std::size_t i = 0; i < node_.size(); ++i) read(*node_[i], false, ranks[i]);
  if (has_received) read(*received_, true, ranks.back());
}

// A page is copied word by word. A record that changes during the copy may arrive torn.
void FlightRecorder::write_message(Message& message) const {
  auto* words = reinterpret_cast<std::uint64_t*>(&own());
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = std::atomic_ref(words[i]).load();
}

void FlightRecorder::receive(const Message& message, bool is_last) {
  auto* words = reinterpret_cast<std::uint64_t*>(received_.get());
  const std::uint64_t heard = received_->heartbeats.load();
  for (std::size_t i = 0; i < message.size(); ++i) std::atomic_ref(words[i]).store(message[i]);
  receive_heartbeats(heard);
  if (is_last) received_->finished.store(1);
  has_received_.store(true);
}

void FlightRecorder::receive_heartbeats(std::uint64_t heartbeats) {
  if (heartbeats > received_->heartbeats.load()) received_->heartbeats.store(heartbeats);
}

}  // namespace mylos
