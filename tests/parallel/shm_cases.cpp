// SPDX-License-Identifier: BSD-3-Clause
#include "tests/parallel/shm_cases.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/samples.hpp"

namespace mylos {

namespace {

int sum_of_samples(int ranks, std::int64_t i) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += sample(rank, i);
  return sum;
}

int largest_sample(int ranks, std::int64_t i) {
  int largest = 0;
  for (int rank = 0; rank < ranks; ++rank) largest = std::max(largest, sample(rank, i));
  return largest;
}

template <class T>
bool is(T stored, int value) {
  if constexpr (std::is_class_v<T>) {
    return stored.bits == element<T>(value).bits;
  } else {
    return stored == element<T>(value);
  }
}

template <class T>
TensorRef ref(T* data, std::int64_t count) {
  return {data, dtype_of<T>(), {count}};
}

template <class T, class Value>
void fill(T* data, std::int64_t count, const Value& value) {
  for (std::int64_t i = 0; i < count; ++i) data[i] = element<T>(value(i));
}

/// Reports the first element that is not as expected.
template <class T, class Value>
void expect(const char* what, const T* data, std::int64_t count, const Value& value) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (is(data[i], value(i))) continue;
    ADD_FAILURE() << what << " of " << name_of(dtype_of<T>()) << ": element " << i << " of " << count;
    return;
  }
}

template <class T>
void check_reductions(Communicator& comm, T* a, T* b, std::int64_t n) {
  const int rank = comm.rank();
  const int ranks = comm.size();
  const auto own = [&](std::int64_t i) { return sample(rank, i); };
  const auto sum = [&](std::int64_t i) { return sum_of_samples(ranks, i); };

  fill(a, n, own);
  comm.all_reduce(ref(a, n), ReduceOp::sum).host_wait();
  expect("all_reduce", a, n, sum);

  fill(a, n, own);
  comm.all_reduce(ref(a, n), ReduceOp::max).host_wait();
  expect("maximum", a, n, [&](std::int64_t i) { return largest_sample(ranks, i); });

  const int root = ranks - 1;
  fill(a, n, own);
  comm.reduce(ref(a, n), ReduceOp::sum, root).host_wait();
  expect("reduce", a, n, [&](std::int64_t i) { return rank == root ? sum(i) : own(i); });

  const std::int64_t part = n / ranks;
  fill(a, part * ranks, own);
  comm.reduce_scatter(ref(a, part * ranks), ref(b, part), ReduceOp::sum).host_wait();
  expect("reduce_scatter", b, part, [&](std::int64_t i) { return sum(rank * part + i); });
  expect("input of reduce_scatter", a, part * ranks, own);
  comm.reduce_scatter(ref(a, part * ranks), ref(a + rank * part, part), ReduceOp::sum).host_wait();
  expect("reduce_scatter in place", a, part * ranks,
         [&](std::int64_t i) { return i / part == rank ? sum(i) : own(i); });
}

template <class T>
void check_moves(Communicator& comm, T* a, T* b, std::int64_t n) {
  const int rank = comm.rank();
  const int ranks = comm.size();
  const std::int64_t part = n / ranks;
  const auto gathered = [&](std::int64_t i) { return sample(static_cast<int>(i / part), i % part); };

  fill(a, part * ranks, [&](std::int64_t i) { return i / part == rank ? gathered(i) : 0; });
  comm.all_gather(ref(a + rank * part, part), ref(a, part * ranks)).host_wait();
  expect("all_gather in place", a, part * ranks, gathered);

  std::vector<T> input(static_cast<std::size_t>(part));
  fill(input.data(), part, [&](std::int64_t i) { return sample(rank, i); });
  fill(b, part * ranks, [](std::int64_t /*i*/) { return 1; });
  comm.all_gather(ref(input.data(), part), ref(b, part * ranks)).host_wait();
  expect("all_gather", b, part * ranks, gathered);

  fill(a, n, [&](std::int64_t i) { return sample(rank, i); });
  comm.broadcast(ref(a, n), ranks - 1).host_wait();
  expect("broadcast", a, n, [&](std::int64_t i) { return sample(ranks - 1, i); });

  fill(a, part * ranks, [&](std::int64_t i) { return sample(rank, i); });
  comm.all_to_all(ref(a, part * ranks), ref(b, part * ranks)).host_wait();
  expect("all_to_all", b, part * ranks,
         [&](std::int64_t i) { return sample(static_cast<int>(i / part), rank * part + i % part); });
}

}  // namespace

void check_collectives_in_windows(Communicator& comm, std::int64_t start, std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(start + count) * sizeof(std::int64_t);
  const Window windows[] = {comm.allocate(bytes), comm.allocate(bytes)};
  auto* a = static_cast<std::byte*>(windows[0].get());
  auto* b = static_cast<std::byte*>(windows[1].get());
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 4096, 0U);
  EXPECT_TRUE(std::all_of(a, a + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
  const auto with_type = [&]<class T>(T) {
    T* first = reinterpret_cast<T*>(a) + start;
    T* second = reinterpret_cast<T*>(b) + start;
    if constexpr (!std::is_same_v<T, std::uint8_t>) check_reductions(comm, first, second, count);
    check_moves(comm, first, second, count);
    comm.barrier();  // no rank fills a window that another still checks
  };
  with_type(float{});
  with_type(bf16{});
  with_type(fp16{});
  with_type(std::int32_t{});
  with_type(std::int64_t{});
  with_type(std::uint8_t{});
}

void check_outputs_within_inputs(Communicator& comm) {
  const std::int64_t part = 20000;
  const std::int64_t n = part * comm.size();
  const Window window = comm.allocate(static_cast<std::size_t>(n) * sizeof(float));
  std::vector<float> memory(static_cast<std::size_t>(n));
  for (float* data : {static_cast<float*>(window.get()), memory.data()}) {
    for (const std::int64_t at : {std::int64_t{0}, n - part, (n - part) / 2}) {
      fill(data, n, [&](std::int64_t i) { return sample(comm.rank(), i); });
      comm.reduce_scatter(ref(data, n), ref(data + at, part), ReduceOp::sum).host_wait();
      expect("reduce_scatter within its input", data + at, part,
             [&](std::int64_t i) { return sum_of_samples(comm.size(), comm.rank() * part + i); });
      comm.barrier();
    }
  }
}

void check_mixed_orders_of_waits(Communicator& comm) {
  const auto half = comm.split(comm.rank() % 2, comm.rank());
  const auto reversed = comm.split(0, -comm.rank());
  EXPECT_EQ(reversed->rank(), comm.size() - 1 - comm.rank());
  constexpr std::int64_t n = 50000;
  const Window memory = reversed->allocate(n * sizeof(float));
  auto* window = static_cast<float*>(memory.get());
  std::vector<float> staged(n);
  for (int repetition = 0; repetition < 10; ++repetition) {
    fill(window, n, [&](std::int64_t i) { return sample(comm.rank(), i); });
    fill(staged.data(), n, [&](std::int64_t i) { return sample(half->rank(), i); });
    Request of_reversed = reversed->all_reduce(ref(window, n), ReduceOp::sum);
    Request of_half = half->all_reduce(ref(staged.data(), n), ReduceOp::sum);
    if ((comm.rank() + repetition) % 2 == 0) {
      of_reversed.host_wait();
      of_half.host_wait();
    } else {
      of_half.host_wait();
      of_reversed.host_wait();
    }
    expect("all_reduce of all", window, n, [&](std::int64_t i) { return sum_of_samples(comm.size(), i); });
    expect("all_reduce of half", staged.data(), n,
           [&](std::int64_t i) { return sum_of_samples(half->size(), i); });
    reversed->barrier();
  }
}

void check_windows_come_and_go(Communicator& comm) {
  constexpr std::int64_t n = 50000;
  const auto samples = [&](std::int64_t i) { return sample(comm.rank(), i); };
  const auto sums = [&](std::int64_t i) { return sum_of_samples(comm.size(), i); };
  const auto other = comm.split(0, comm.rank());
  const Window kept = other->allocate(n * sizeof(float));
  auto* beside = static_cast<float*>(kept.get());
  for (int repetition = 0; repetition < 4; ++repetition) {
    std::vector<Window> windows;
    for (int k = 0; k < 4; ++k) windows.push_back(comm.allocate(n * sizeof(float)));
    fill(beside, n, samples);
    Request under_way = other->all_reduce(ref(beside, n), ReduceOp::sum);
    // Each rank frees two windows; odd ranks free them in the opposite order.
    windows[comm.rank() % 2 == 0 ? 0 : 2] = {};
    windows[comm.rank() % 2 == 0 ? 2 : 0] = {};
    windows.push_back(comm.allocate(n * sizeof(float)));
    for (const Window& window : windows) {
      auto* data = static_cast<float*>(window.get());
      if (data == nullptr) continue;
      expect("a new window", data, n, [](std::int64_t /*i*/) { return 0; });
      fill(data, n, samples);
      comm.all_reduce(ref(data, n), ReduceOp::sum).host_wait();
      expect("all_reduce in what is left", data, n, sums);
    }
    under_way.host_wait();
    expect("all_reduce beside", beside, n, sums);
    other->barrier();
  }
}

void check_many_operations_under_way(Communicator& comm) {
  constexpr int operations = 60;
  constexpr std::int64_t n = 20000;
  const Window memory = comm.allocate(operations * n * sizeof(float));
  auto* window = static_cast<float*>(memory.get());
  std::vector<float> staged(operations * n);
  const auto data = [&](int k) { return (k % 2 == 0 ? window : staged.data()) + k * n; };
  std::vector<Request> requests;
  for (int k = 0; k < operations; ++k) {
    const std::int64_t count = k % 3 == 0 ? 100 : n;
    fill(data(k), count, [&](std::int64_t i) { return sample(comm.rank(), i + k); });
    requests.push_back(comm.all_reduce(ref(data(k), count), ReduceOp::sum));
  }
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
    while (!request->test()) std::this_thread::yield();
    request->host_wait();
  }
  for (int k = 0; k < operations; ++k) {
    expect("one of many", data(k), k % 3 == 0 ? 100 : n,
           [&](std::int64_t i) { return sum_of_samples(comm.size(), i + k); });
  }
}

void check_tags_in_any_order(Communicator& comm) {
  constexpr int messages = 40;
  const auto length = [](int tag) { return std::int64_t{tag % 4 == 0 ? 0 : 500 * tag}; };
  const auto order = [](int k) { return k * 17 % messages; };
  for (int shift = 0; shift < comm.size(); ++shift) {
    const int to = (comm.rank() + shift) % comm.size();
    const int from = (comm.rank() + comm.size() - shift) % comm.size();
    std::vector<std::vector<std::int32_t>> sent(messages);
    std::vector<std::vector<std::int32_t>> received(messages);
    std::vector<Request> requests;
    for (int tag = 0; tag < messages; ++tag) {
      sent[static_cast<std::size_t>(tag)].assign(static_cast<std::size_t>(length(tag)),
                                                 100 * comm.rank() + tag);
      requests.push_back(comm.send(ref(sent[static_cast<std::size_t>(tag)].data(), length(tag)), to, tag));
    }
    if (shift % 2 == 1) {
      for (int i = 0; i < 100; ++i) comm.progress();  // lets messages arrive before their receives
    }
    for (int k = 0; k < messages; ++k) {
      auto& target = received[static_cast<std::size_t>(order(k))];
      target.resize(static_cast<std::size_t>(length(order(k))));
      requests.push_back(comm.recv(ref(target.data(), length(order(k))), from, order(k)));
    }
    for (auto request = requests.rbegin(); request != requests.rend(); ++request) request->host_wait();
    for (int tag = 0; tag < messages; ++tag) {
      expect("message", received[static_cast<std::size_t>(tag)].data(), length(tag),
             [&](std::int64_t /*i*/) { return 100 * from + tag; });
    }
  }
}

void check_large_messages(Communicator& comm, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  std::vector<std::vector<float>> sent;
  std::vector<std::vector<float>> received;
  for (int peer = 0; peer < comm.size(); ++peer) {
    fill(sent.emplace_back(n).data(), count, [&](std::int64_t i) { return sample(comm.rank() + peer, i); });
    received.emplace_back(n);
  }
  std::vector<Request> requests;
  for (int peer = 0; peer < comm.size(); ++peer) {
    requests.push_back(comm.send(ref(sent[static_cast<std::size_t>(peer)].data(), count), peer, 9));
    requests.push_back(comm.recv(ref(received[static_cast<std::size_t>(peer)].data(), count), peer, 9));
  }
  for (Request& request : requests) request.host_wait();
  for (int peer = 0; peer < comm.size(); ++peer) {
    expect("large message", received[static_cast<std::size_t>(peer)].data(), count,
           [&](std::int64_t i) { return sample(comm.rank() + peer, i); });
  }
}

void check_alongside_a_progress_thread(Communicator& comm) {
  std::jthread thread([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      comm.progress();
      std::this_thread::yield();
    }
  });
  check_collectives_in_windows(comm, 3, 30001);
  check_mixed_orders_of_waits(comm);
  check_windows_come_and_go(comm);
  check_many_operations_under_way(comm);
  check_tags_in_any_order(comm);
  check_large_messages(comm, 100000);
}

}  // namespace mylos
