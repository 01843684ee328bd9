// SPDX-License-Identifier: BSD-3-Clause
#include "io/agree.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <numeric>
#include <optional>
#include <string>
#include <thread>

#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"

namespace mylos {

namespace {

/// Waits without keeping a core busy: there may be more ranks than cores, and another thread may be
/// computing.
void wait_for(MPI_Request request) {
  const WatchedCall call(CallKind::agreement, "agreement", "files");
  using std::chrono::microseconds;
  constexpr int quick_polls = 100;
  constexpr microseconds longest(1000);
  int done = 0;
  for (int i = 0; i < quick_polls && done == 0; ++i) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  for (microseconds pause(20); done == 0; pause = std::min(2 * pause, longest)) {
    std::this_thread::sleep_for(pause);
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
}

void broadcast(MPI_Comm comm, void* values, std::size_t count, MPI_Datatype type, int root) {
  if (comm == MPI_COMM_NULL) return;
  require(count <= INT_MAX, "a broadcast fits one MPI call");
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibcast(values, static_cast<int>(count), type, root, comm, &request);
  wait_for(request);
}

std::optional<Error> try_work(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error_of(error);
  }
  return std::nullopt;
}

}  // namespace

void run_collectively(MPI_Comm comm, const std::function<void()>& work) {
  const std::optional<Error> mine = try_work(work);
  if (comm == MPI_COMM_NULL) {
    if (mine) throw *mine;
    return;
  }
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  // The lowest rank that failed; whether all ranks failed.
  std::array<int, 2> ranks = {mine ? rank : size, mine ? 1 : 0};
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(MPI_IN_PLACE, ranks.data(), ranks.size(), MPI_INT, MPI_MIN, comm, &request);
  wait_for(request);
  const auto [culprit, all_failed] = ranks;
  if (culprit == size) return;

  std::array<int, 2> head{};
  std::string message;
  if (rank == culprit) {
    message = all_failed != 0 ? mine->what() : fmt::format("rank {}: {}", rank, mine->what());
    head = {static_cast<int>(mine->code()), static_cast<int>(message.size())};
  }
  broadcast(comm, head.data(), head.size(), MPI_INT, culprit);
  message.resize(static_cast<std::size_t>(head[1]));
  broadcast(comm, message.data(), message.size(), MPI_CHAR, culprit);
  throw AgreedError(static_cast<ExitCode>(head[0]), message);
}

std::vector<std::vector<std::int64_t>> gather_to_root(MPI_Comm comm,
                                                      const std::vector<std::int64_t>& values) {
  if (comm == MPI_COMM_NULL) return {values};
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const auto ranks = static_cast<std::size_t>(size);
  require(values.size() <= INT_MAX, "a gather fits one MPI call");
  const auto count = static_cast<int>(values.size());
  std::vector<int> counts(rank == 0 ? ranks : 0);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Igather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, comm, &request);
  wait_for(request);
  std::vector<int> begins(counts.size());
  const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  require(total <= INT_MAX, "a gather fits one MPI call");
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
  std::vector<std::int64_t> all(static_cast<std::size_t>(total));
  MPI_Igatherv(values.data(), count, MPI_INT64_T, all.data(), counts.data(), begins.data(), MPI_INT64_T, 0,
               comm, &request);
  wait_for(request);
  std::vector<std::vector<std::int64_t>> by_rank;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const auto begin = all.begin() + begins[r];
    by_rank.emplace_back(begin, begin + counts[r]);
  }
  return by_rank;
}

std::vector<std::string> gather_texts(MPI_Comm ranks, std::string text) {
  int size = 1;
  MPI_Comm_size(ranks, &size);
  auto length = static_cast<int>(text.size());
  MPI_Allreduce(MPI_IN_PLACE, &length, 1, MPI_INT, MPI_MAX, ranks);
  const auto width = static_cast<std::size_t>(length) + 1;  // with the terminating zero
  text.resize(width);
  std::vector<char> all(width * static_cast<std::size_t>(size));
  MPI_Allgather(text.data(), length + 1, MPI_BYTE, all.data(), length + 1, MPI_BYTE, ranks);
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < all.size(); begin += width) texts.emplace_back(all.data() + begin);
  return texts;
}

void broadcast_from_root(MPI_Comm comm, std::vector<std::int64_t>& values) {
  auto count = static_cast<std::int64_t>(values.size());
  broadcast(comm, &count, 1, MPI_INT64_T, 0);
  values.resize(static_cast<std::size_t>(count));
  broadcast(comm, values.data(), values.size(), MPI_INT64_T, 0);
}

}  // namespace mylos
