// SPDX-License-Identifier: BSD-3-Clause
// HierarchicalCommunicator: collectives in two levels, within the nodes and across them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/communication/forwarding_communicator.hpp"
#include "core/ops/compute_backend.hpp"
#include "parallel/collectives/operation_engine.hpp"

namespace mylos {

/// Builds on two communicators: `node` has the ranks of this node, `flat` all ranks. There are as many lanes,
/// L, as the smallest node has ranks; lane l consists of rank l of every node. A buffer is cut into L slices,
/// one for each lane:
///   all_reduce      the node reduces slice l at its rank l; lane l all_reduces it; the node broadcasts it
///   broadcast       the root's node broadcasts; lane l broadcasts slice l; the other nodes broadcast it
///   reduce          as all_reduce, except that lane l reduces; the root's node sends the slices to the root
///   reduce_scatter  the node reduces parts l, l + L, ... of all nodes at its rank l; lane l reduce_scatters
///                   them; rank l sends the other parts of its node to their ranks
///   all_gather      ranks l, l + L, ... send their parts to rank l; lane l all_gathers; the node broadcasts
/// Each slice crosses between nodes in one lane only. All other operations go to `flat`. all_reduce is
/// bitwise the same on every rank if the lanes' all_reduce is. Nodes may be of any size, and any ranks may
/// share a node. If the sizes of nodes differ, reduce_scatter and all_gather add padding, so that every lane
/// carries the same number of parts for every node.
///
/// An operation has three stages, each on its own split, so that one operation may be in its first stage
/// while the previous one is in its third. On every rank, operations enter a stage in the order of the calls.
/// Operations advance in test, wait and progress. Buffers are host memory. Both communicators are made
/// without a compute backend, and each call waits for `compute`, as in AlgorithmCommunicator.
class HierarchicalCommunicator final : public ForwardingCommunicator {
 public:
  /// The number of communicators over the ranks of a node: `node` and its two splits.
  static constexpr int num_node_communicators = 3;

  /// Collective over `flat`. `node` may order its ranks differently from `flat`. Throws ExitCode::usage if
  /// the host cannot reach the memory of `compute`.
  HierarchicalCommunicator(NextCommunicator node, NextCommunicator flat, ComputeBackend* compute = nullptr,
                           std::shared_ptr<OperationEngine> engine = std::make_shared<OperationEngine>());

  int num_lanes() const { return num_lanes_; }
  int num_nodes() const { return static_cast<int>(node_sizes_.size()); }

  void progress() override;
  /// Allocates from the node's backend. Within a node, all_reduce and broadcast use the same part of the
  /// buffer on all ranks, as a window requires; the other operations pass scratch to the node's collectives.
  Window allocate(std::size_t bytes) override { return node_down_->allocate(bytes); }
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  static constexpr int num_stages = 3;

  struct Place {
    int node;   ///< nodes are numbered in the order that their ranks 0 have in `flat`
    int index;  ///< the rank within the node
  };

  class StagedOperation;
  class AllReduce;
  class ReduceScatter;
  class AllGather;
  class Broadcast;
  class Reduce;

  void find_nodes();
  bool has_lane() const { return own_.index < num_lanes_; }
  /// The position of the part of `rank` in lane order: by lane, then by node, then by rank within the node.
  std::int64_t lane_order(int rank) const;
  TensorRef slice(TensorRef buffer, int lane) const;
  Request start(const CommCall& call) override;
  template <class Staged>
  Request start_staged(const CommCall& call);

  NextCommunicator node_;
  ComputeBackend* compute_;
  std::vector<Place> places_;    // by rank
  std::vector<int> node_sizes_;  // by node
  Place own_{0, 0};
  int num_lanes_ = 1;
  // The number of parts that a lane carries for each node, padding included.
  std::int64_t parts_per_node_ = 1;
  std::unique_ptr<Communicator> node_down_;  // for the first stage, towards the lanes
  // For the second stage; the ranks without a lane share a communicator that is not used.
  std::unique_ptr<Communicator> lane_;
  std::unique_ptr<Communicator> node_up_;  // for the third stage
  std::uint64_t num_started_ = 0;
  std::array<std::uint64_t, num_stages> num_entered_{};  // by stage
  std::shared_ptr<OperationEngine> engine_;              // shared with the splits
};

}  // namespace mylos
