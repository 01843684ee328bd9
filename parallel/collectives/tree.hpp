// SPDX-License-Identifier: BSD-3-Clause
// Tree: a rank's place in a tree over a RankOrder, and the phases of collectives along the tree.
#pragma once

#include <vector>

#include "parallel/collectives/schedule_builder.hpp"

namespace mylos {

/// Ranks are numbered by their place in the order; the root is the first. The subtree of rank i is a range of
/// ranks that begins with i.
struct Tree {
  ScheduleBuilder& builder;
  const RankOrder& order;
  int parent;             ///< -1 at the root
  std::vector<int> cuts;  ///< the children, ascending, then the end of the rank's subtree

  /// Returns the place of the result at the root, and elsewhere that of the reduction over the rank's
  /// subtree.
  BufferRange reduce(BufferRange own) const;
  void broadcast(BufferRange vector) const;
  /// `own` is this rank's part. `vector` is the whole vector: a rank uses only the parts of its subtree in
  /// it, and a leaf other than the root uses none.
  void gather(BufferRange own, BufferRange vector) const;
  void scatter(BufferRange vector, BufferRange own) const;
  /// Adds the rounds of any of `scheduled_operations` except all_to_all.
  void add(const CollectiveCall& call) const;

  bool is_root() const { return parent < 0; }
  bool is_leaf() const { return cuts.size() == 1; }
  /// Returns the parts of the subtree of child number `child`, or of this rank.
  BufferRange below(std::size_t child, BufferRange vector) const {
    return order.parts(vector, cuts[child], cuts[child + 1]);
  }
  BufferRange below(BufferRange vector) const { return order.parts(vector, order.index, cuts.back()); }
};

/// The parent of rank i > 0 is i with its lowest set bit cleared, so the subtree of i consists of the ranks
/// in [i, i + lowest set bit of i).
Tree binomial_tree(ScheduleBuilder& builder, const RankOrder& order);

}  // namespace mylos
