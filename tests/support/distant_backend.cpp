// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/distant_backend.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <utility>

namespace mylos {

DistantDevice::~DistantDevice() {
  wait_for_all();
}

void DistantDevice::forbid_while_capturing(const char* what) const {
  if (recorded_ != nullptr) fail(ExitCode::internal, "{} while a graph is recorded", what);
}

Allocation DistantDevice::allocate(std::size_t bytes) {
  forbid_while_capturing("memory is allocated");
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(ExitCode::internal, "out of memory: {} bytes", bytes);
  sizes_.emplace(memory, size);
  return {memory, [this](void* owned) {
            wait_for_all();
            ++num_deallocations_;
            const auto block = sizes_.extract(owned);
            munmap(owned, block.mapped());
          }};
}

std::uint64_t DistantDevice::queue(std::function<void()> work) {
  if (recorded_ != nullptr) {
    recorded_->push_back(std::move(work));
    return 0;
  }
  work_.push_back(std::move(work));
  return ++num_queued_;
}

std::vector<std::function<void()>> DistantDevice::capture(const std::function<void()>& work) {
  forbid_while_capturing("another is recorded");
  std::vector<std::function<void()>> recorded;
  recorded_ = &recorded;
  try {
    work();
  } catch (...) {
    recorded_ = nullptr;
    throw;
  }
  recorded_ = nullptr;
  ++num_captures_;
  return recorded;
}

void DistantDevice::wait(std::uint64_t last) {
  forbid_while_capturing("the host waits");
  if (has_done(last)) return;
  ++num_waits_;
  protect(PROT_READ | PROT_WRITE);
  for (; num_done_ < last; ++num_done_) {
    work_.front()();
    work_.pop_front();
  }
  protect(PROT_NONE);
  if (work_.empty()) ++num_idle_;
}

void DistantDevice::protect(int rights) const {
  for (const auto& [memory, bytes] : sizes_) mprotect(memory, bytes, rights);
}

namespace {

/// What an Event's handle points to.
struct DistantEvent {
  Event below;
  std::uint64_t number = 0;  // of the work that records it
};

DistantEvent& distant(const Event& event) {
  return *static_cast<DistantEvent*>(event.handle.get());
}

/// What a Graph's handle points to.
struct DistantGraph {
  std::vector<std::function<void()>> work;
  int num_deallocations = 0;  // of the device when the graph was recorded
};

}  // namespace

Event DistantBackend::create_event() {
  return {{new DistantEvent{.below = next().create_event()}, [this](DistantEvent* owned) {
             const std::unique_ptr<DistantEvent> own(owned);
             device_.wait(own->number);
           }}};
}

void DistantBackend::record(const Event& event) {
  DistantEvent& own = distant(event);
  own.number = device_.queue([this, below = own.below] { next().record(below); });
}

void DistantBackend::host_wait(const Event& event) {
  device_.wait(distant(event).number);
}

double DistantBackend::seconds_between(const Event& begin, const Event& end) {
  require(device_.has_done(distant(begin).number) && device_.has_done(distant(end).number),
          "the device has come to both events");
  return next().seconds_between(distant(begin).below, distant(end).below);
}

Graph DistantBackend::capture(const std::function<void()>& work) {
  auto graph = std::make_unique<DistantGraph>();
  graph->num_deallocations = device_.num_deallocations();
  graph->work = device_.capture(work);
  return {{graph.release(), [this](DistantGraph* owned) {
             const std::unique_ptr<DistantGraph> own(owned);
             device_.wait_for_all();
           }}};
}

bool DistantBackend::launch(const Graph& graph) {
  const auto& own = *static_cast<const DistantGraph*>(graph.handle.get());
  if (own.num_deallocations != device_.num_deallocations()) return false;
  device_.queue([&own] {
    for (const auto& work : own.work) work();
  });
  return true;
}

void DistantBackend::copy(const void* from, void* to, std::size_t bytes) {
  device_.queue([=] {
    if (bytes > 0) std::memmove(to, from, bytes);
  });
}

}  // namespace mylos
