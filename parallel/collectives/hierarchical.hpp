// SPDX-License-Identifier: BSD-3-Clause
// HierarchicalCommunicator: collectives in two levels, within the nodes and across them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/forwarding_communicator.hpp"
#include "parallel/collectives/operation_engine.hpp"
#include "parallel/collectives/scratch_pool.hpp"

namespace mylos {

/// Two communicators make one: `node` has the ranks of this node, `flat` all ranks. With L the ranks of the
/// smallest node there are L lanes; the l-th lane is the l-th rank of every node. A buffer is cut into L
/// slices, one for each lane:
///   all_reduce      node reduces slice l at its rank l; lane l all_reduces it; node broadcasts it
///   broadcast       the root's node broadcasts; lane l broadcasts slice l; the other nodes broadcast it
///   reduce          as all_reduce with a reduce in the lane; the root's node sends it the slices
///   reduce_scatter  node reduces at rank l what belongs to ranks l, l + L, ... of all nodes; lane l scatters
///   all_gather      ranks l, l + L, ... hand theirs to rank l; lane l gathers; node broadcasts
/// so what crosses between nodes crosses once, spread over the lanes. All others are the flat ones.
/// all_reduce is bitwise the same on every rank where that of the lanes is. Nodes may have any sizes and any
/// ranks; where they are unequal, reduce_scatter and all_gather pad the parts of smaller nodes.
///
/// Operations are in three stages, each on a split of its own, so that one may be in its first stage while
/// the one before is in its third; every rank enters a stage in the order of the calls. They advance in test,
/// wait and progress. Buffers are host memory; both communicators are made without a compute backend, and
/// `compute` is waited for at the call, as in AlgorithmCommunicator.
class HierarchicalCommunicator final : public ForwardingCommunicator {
 public:
  /// What it makes of `node`, and `node` itself: communicators of as many ranks.
  static constexpr int num_node_communicators = 3;

  /// Collective over `flat`. The ranks of `node` are in the order of `flat` or in another. Scratch is charged
  /// to `ledger` (null: to none).
  HierarchicalCommunicator(NextCommunicator node, NextCommunicator flat, ComputeBackend* compute = nullptr,
                           MemoryLedger* ledger = nullptr);

  int num_lanes() const { return num_lanes_; }
  int num_nodes() const { return static_cast<int>(node_sizes_.size()); }

  Request all_reduce(TensorRef buffer, ReduceOp op) override;
  Request reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) override;
  Request all_gather(TensorRef input, TensorRef output) override;
  Request broadcast(TensorRef buffer, int root) override;
  Request reduce(TensorRef buffer, ReduceOp op, int root) override;
  Request all_to_all(TensorRef input, TensorRef output) override;
  Request all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts, TensorRef output,
                       std::span<const std::int64_t> recv_counts) override;
  Request send(TensorRef buffer, int peer, int tag) override;
  Request recv(TensorRef buffer, int peer, int tag) override;
  void progress() override;
  /// Memory of the node's backend. Within a node all_reduce and broadcast use the same part of the buffer on
  /// all ranks, as that memory demands, and the other operations use none of it.
  Window allocate(std::size_t bytes) override { return node_down_->allocate(bytes); }
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  static constexpr int num_stages = 3;

  /// What this communicator and its splits share.
  struct Family {
    explicit Family(MemoryLedger* ledger) : scratch(ledger) {}

    OperationEngine engine;
    ScratchPool scratch;
  };

  /// Where a rank is.
  struct Place {
    int node;   ///< nodes are counted by their first rank in `flat`
    int index;  ///< rank within the node
  };

  class StagedOperation;
  class AllReduce;
  class ReduceScatter;
  class AllGather;
  class Broadcast;
  class Reduce;

  HierarchicalCommunicator(NextCommunicator node, NextCommunicator flat, ComputeBackend* compute,
                           std::shared_ptr<Family> family);

  void find_nodes();
  bool has_lane() const { return own_.index < num_lanes_; }
  /// Where the part of `rank` lies among those of all lanes: lane by lane, node by node.
  std::int64_t lane_order(int rank) const;
  TensorRef slice(TensorRef buffer, int lane) const;
  template <class Staged, class... Args>
  Request start(Args&&... args);

  NextCommunicator node_;
  ComputeBackend* compute_;
  std::vector<Place> places_;    // by rank
  std::vector<int> node_sizes_;  // by node
  Place own_{0, 0};
  int num_lanes_ = 1;
  std::int64_t parts_per_node_ = 1;          // that a lane carries for each node, padding included
  std::unique_ptr<Communicator> node_down_;  // the first stage: towards the lanes
  std::unique_ptr<Communicator> lane_;     // the second; the ranks without a lane share one that is not used
  std::unique_ptr<Communicator> node_up_;  // the third
  std::uint64_t num_started_ = 0;
  std::array<std::uint64_t, num_stages> num_entered_{};  // by stage
  std::shared_ptr<Family> family_;
};

}  // namespace mylos
