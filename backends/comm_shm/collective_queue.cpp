// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/collective_queue.hpp"

#include <algorithm>

namespace mylos::comm_shm {

namespace {

bool all_reached(const std::vector<SharedPart>& parts,
                 std::atomic<std::uint64_t>& (SharedPart::*counter)() const, std::uint64_t value) {
  return std::ranges::all_of(parts, [&](const SharedPart& part) { return (part.*counter)() >= value; });
}

int next_slot(int slot) {
  return (slot + 1) % SharedPart::num_slots;
}

}  // namespace

CollectiveQueue::CollectiveQueue(const std::vector<SharedPart>& parts, int rank, std::vector<Doorbell*> bells)
    : parts_(parts), rank_(rank), bells_(std::move(bells)) {}

void CollectiveQueue::push(Collective collective) {
  auto entry = std::make_shared<UnderWay>();
  entry->collective = std::move(collective);
  to_fill_.push_back(entry);
  to_work_.push_back(std::move(entry));
}

bool CollectiveQueue::advance() {
  bool moved = false;
  while (fill_next()) moved = true;
  moved = work_next() || moved;
  while (complete_next()) moved = true;
  return moved;
}

bool CollectiveQueue::fill_next() {
  if (to_fill_.empty()) return false;
  UnderWay& entry = *to_fill_.front();
  if (entry.collective.needs_previous && entry.filled == 0 && worked_ < filled_) return false;
  if (!entry.collective.fill) {
    entry.filled = entry.collective.tickets;
    filled_ += static_cast<std::uint64_t>(entry.collective.tickets);
  } else {
    std::uint64_t& used = slot_used_[static_cast<std::size_t>(next_slot_to_fill_)];
    if (!all_reached(parts_, &SharedPart::worked, used)) return false;
    entry.collective.fill(entry.filled++, next_slot_to_fill_);
    used = ++filled_;
    next_slot_to_fill_ = next_slot(next_slot_to_fill_);
  }
  publish(parts_[static_cast<std::size_t>(rank_)].filled(), filled_);
  if (entry.filled == entry.collective.tickets) {
    entry.last_ticket = filled_;
    to_fill_.pop_front();
  }
  return true;
}

bool CollectiveQueue::work_next() {
  if (worked_ == filled_ || !all_reached(parts_, &SharedPart::filled, worked_ + 1)) return false;
  const std::shared_ptr<UnderWay> entry = to_work_.front();
  const Collective& collective = entry->collective;
  collective.work(entry->worked++, next_slot_to_work_);
  if (collective.fill) next_slot_to_work_ = next_slot(next_slot_to_work_);
  publish(parts_[static_cast<std::size_t>(rank_)].worked(), ++worked_);
  if (entry->worked < collective.tickets) return true;
  to_work_.pop_front();
  if (collective.fill) {
    collective.completion->complete_one();
  } else {
    to_complete_.push_back(entry);
  }
  return true;
}

bool CollectiveQueue::complete_next() {
  if (to_complete_.empty() || !all_reached(parts_, &SharedPart::worked, to_complete_.front()->last_ticket)) {
    return false;
  }
  to_complete_.front()->collective.completion->complete_one();
  to_complete_.pop_front();
  return true;
}

void CollectiveQueue::publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  counter = value;
  for (Doorbell* bell : bells_) ring(*bell);
}

}  // namespace mylos::comm_shm
