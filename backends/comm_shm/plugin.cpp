// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of plugin "shm".
#include "core/plugin.hpp"

#include <algorithm>

#include "backends/comm_shm/node.hpp"
#include "backends/comm_shm/process_memory.hpp"
#include "backends/comm_shm/shm_communicator.hpp"

namespace mylos::comm_shm {
namespace {

constexpr ParamSpec params[] = {
    integer_param("comm", "ranks_per_node", "0", 0, 1 << 20, "ranks",
                  "This many consecutive ranks count as a node, to study several nodes on one machine; 0 "
                  "takes the real nodes.")
        .open_in_evaluation(),
};

const char* unusable_among(Communicator& ranks) {
  static std::string problem;
  ProcessMemory memory;
  problem = sharing_problem(ranks, memory);
  if (problem.empty()) return nullptr;
  problem += "; start the ranks of a node in one user namespace (one container)";
  return problem.c_str();
}

/// The communicator of the ranks on this node: it may be smaller than the bootstrap.
std::unique_ptr<Communicator> create(const CommunicatorArgs& args) {
  if (args.bootstrap == nullptr) fail(ExitCode::usage, "shm cannot be the bootstrap communicator");
  const std::int64_t ranks_per_node = args.deck != nullptr ? args.deck->integer("comm.ranks_per_node") : 0;
  const Node node = find_node(*args.bootstrap, static_cast<int>(ranks_per_node));
  const bool reaches_all = static_cast<int>(node.ranks.size()) == args.bootstrap->size();
  return ShmCommunicator::create({.memory = std::make_shared<ProcessMemory>(),
                                  .bootstrap = args.bootstrap,
                                  .compute = reaches_all ? args.compute : nullptr,
                                  .ledger = args.ledger,
                                  .may_spin = node.core_for_each},
                                 node.ranks);
}
CommunicatorPlan plan(const ParamValues& deck, int ranks) {
  const auto ranks_per_node = static_cast<int>(deck.integer("comm.ranks_per_node"));
  const int reached = ranks_per_node > 0 ? std::min(ranks_per_node, ranks) : ranks;
  return {reached, SharedPart::bytes(reached), SharedPart::bytes(1) - SharedPart::bytes(0)};
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::communication,
    .name = "shm",
    .summary = "shared memory of one node; waiting ranks sleep",
    .preference = 20,
    .params = params,
    .unusable_among = unusable_among,
    .create_communicator = create,
    .plan_communicator = plan,
};

}  // namespace mylos::comm_shm
