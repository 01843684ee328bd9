// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/beacon.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "io/agree.hpp"

namespace mylos {

namespace {

constexpr int beacon_tag = 0;

struct Message {
  std::uint64_t is_last = 0;
  FlightRecorder::Message page{};
};

bool is_complete(MPI_Request& request) {
  int complete = 0;
  MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
  return complete != 0;
}

}  // namespace

Beacon::Beacon(FlightRecorder& recorder) : recorder_(recorder) {
  const std::vector<int>& leaders = recorder.leaders();
  if (leaders.size() == 1) return;
  const bool leads = std::ranges::find(leaders, recorder.rank()) != leaders.end();
  MPI_Comm_split(MPI_COMM_WORLD, leads ? 0 : MPI_UNDEFINED, 0, &comm_);
  if (!leads) return;
  int place = 0;
  int size = 0;
  MPI_Comm_rank(comm_, &place);
  MPI_Comm_size(comm_, &size);
  next_ = (place + 1) % size;
  previous_ = (place + size - 1) % size;
  pulse_.emplace();
  const std::vector<std::string> pulses = gather_texts(comm_, pulse_->text());
  pulse_->connect(pulses[static_cast<std::size_t>(next_)], pulses[static_cast<std::size_t>(previous_)]);
  thread_ = std::thread([this] { run(); });
}

Beacon::~Beacon() {
  stops_ = true;
  wake_.release();
  if (thread_.joinable()) thread_.join();
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

void Beacon::run() {
  constexpr std::chrono::milliseconds last_pause{1};
  Message sent;
  Message received;
  MPI_Request sending = MPI_REQUEST_NULL;
  MPI_Request receiving = MPI_REQUEST_NULL;
  const auto receive = [&] {
    MPI_Irecv(&received, sizeof received, MPI_BYTE, previous_, beacon_tag, comm_, &receiving);
  };
  bool previous_has_ended = false;
  receive();
  while (true) {
    const bool stops = stops_;
    pulse_->send(recorder_.heartbeats());
    while (const auto heartbeats = pulse_->receive()) recorder_.receive_heartbeats(*heartbeats);
    if (is_complete(sending) && sent.is_last == 0) {
      recorder_.write_message(sent.page);
      sent.is_last = stops ? 1 : 0;
      MPI_Isend(&sent, sizeof sent, MPI_BYTE, next_, beacon_tag, comm_, &sending);
    }
    while (!previous_has_ended && is_complete(receiving)) {
      previous_has_ended = received.is_last != 0;
      recorder_.receive(received.page, previous_has_ended);
      if (!previous_has_ended) receive();
    }
    if (sent.is_last != 0 && previous_has_ended && is_complete(sending)) return;
    (void)wake_.acquire_for(stops ? last_pause : interval_.load());
  }
}

}  // namespace mylos
