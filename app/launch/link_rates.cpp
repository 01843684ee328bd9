// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/link_rates.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <mpi.h>

#include "app/deck/unchecked_deck.hpp"
#include "app/launch/run_directory.hpp"
#include "core/base/clock.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/statistics.hpp"
#include "io/deck/deck.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace {

/// What the deck and the run that is continued say: two numbers, of which 0 is to be measured. Nothing if
/// they are not needed.
std::optional<std::pair<double, double>> known_rates(const CommandLine& line, const std::string& deck_text) {
  const UncheckedDeck deck(deck_text, line.overrides);
  if (deck.text("parallel.replicas") != "auto" || deck.real("comm.simulate_gbps") > 0.0) return std::nullopt;
  std::pair rates(deck.real("machine.node_gbps"), deck.real("machine.link_gbps"));
  if (!line.has("restart") || !deck.has("run.dir")) return rates;
  const std::filesystem::path resolved = RunPaths{expand_path(deck.text("run.dir"))}.resolved_deck();
  std::error_code unknown;
  if (!std::filesystem::exists(resolved, unknown)) return rates;
  try {
    const UncheckedDeck before(read_text_file(resolved));
    if (rates.first == 0.0) rates.first = before.real("machine.node_gbps");
    if (rates.second == 0.0) rates.second = before.real("machine.link_gbps");
  } catch (const Error&) {  // a run whose deck cannot be read is no reason not to go on
  }
  return rates;
}

/// Gbit/s of messages from rank 0 to `peer`, the median of several; 0 on other ranks.
double measured_rate(const MpiRuntime& mpi, int peer) {
  constexpr int size = 4 << 20;
  constexpr int tag = 0;
  std::vector<double> rates;
  if (mpi.rank() != 0 && mpi.rank() != peer) return 0.0;
  const WatchedCall call(CallKind::agreement, "measure bandwidth", "launcher");
  std::vector<char> bytes(size);
  for (int i = 0; i < 9; ++i) {  // the first one also sets up the connection
    const auto begin = Clock::now();
    if (mpi.rank() == 0) {
      MPI_Send(bytes.data(), size, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
      MPI_Recv(bytes.data(), size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(bytes.data(), size, MPI_BYTE, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(bytes.data(), size, MPI_BYTE, 0, tag, MPI_COMM_WORLD);
    }
    if (i > 0) rates.push_back(2.0 * size * 8.0 * 1e-9 / seconds_since(begin));
  }
  return mpi.rank() == 0 ? median(rates) : 0.0;
}

}  // namespace

JobSize with_link_rates(const MpiRuntime& mpi, const CommandLine& line, const std::string& deck_text) {
  JobSize job = mpi.job();
  // Rank 0 decides: the ranks may have been given other options, which is found out later.
  std::string decision;
  if (mpi.rank() == 0) {
    if (const auto rates = known_rates(line, deck_text))
      decision = fmt::format("{} {}", rates->first, rates->second);
  }
  decision = mpi.broadcast(decision);
  if (decision.empty()) return job;
  const std::vector<std::string_view> words = split(decision, ' ');
  const auto per_node = static_cast<int>(std::max<std::int64_t>(job.ranks_per_node, 1));
  const std::pair<double*, int> links[] = {{&job.node_gbps, per_node > 1 ? 1 : 0},
                                           {&job.link_gbps, per_node < job.ranks ? per_node : 0}};
  for (std::size_t i = 0; i < std::size(links); ++i) {
    const auto [rate, peer] = links[i];
    *rate = std::atof(std::string(words[i]).c_str());
    if (*rate == 0.0 && peer > 0) {
      // Three digits: a resolved deck says them exactly.
      const std::string measured = mpi.broadcast(fmt::format("{:.3g}", measured_rate(mpi, peer)));
      *rate = std::atof(measured.c_str());
    }
  }
  return job;
}

}  // namespace mylos
