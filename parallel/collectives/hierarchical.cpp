// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/hierarchical.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace mylos {

namespace {

constexpr int stage_tag = 0;  // the stages' communicators carry no other messages

void copy(TensorRef from, TensorRef to) {
  if (from.data != to.data && from.bytes() > 0) std::memmove(to.data, from.data, from.bytes());
}

}  // namespace

/// Posts the calls of a stage once the previous stage is complete on this rank and the previous operation has
/// entered the stage, so that all ranks make the same calls in the same order.
class HierarchicalCommunicator::StagedOperation : public PolledOperation {
 public:
  StagedOperation(HierarchicalCommunicator& owner, const CommCall& call)
      : own_(owner),
        input_(call.input),
        output_(call.output),
        op_(call.reduction),
        root_(owner.places_[static_cast<std::size_t>(call.peer)]),
        number_(owner.num_started_++) {}

  bool advance() final {
    for (;;) {
      for (; waited_for_ < pending_.size(); ++waited_for_) {
        if (!pending_[waited_for_].test()) return wait_for_others();
        pending_[waited_for_].host_wait();
      }
      if (stage_ == num_stages) {
        finish();
        return true;
      }
      std::uint64_t& entered = own_.num_entered_[static_cast<std::size_t>(stage_)];
      if (entered != number_) return wait_for_others();
      ++entered;
      pending_.clear();
      waited_for_ = 0;
      ++stage_;
      if (stage_ == 1) down();
      if (stage_ == 2 && own_.has_lane()) across();
      if (stage_ == 3) up();
    }
  }

 protected:
  virtual void down() = 0;
  virtual void across() = 0;  ///< called only on ranks with a lane
  virtual void up() = 0;
  virtual void finish() {}

  void post(Request request) { pending_.push_back(std::move(request)); }
  /// Scratch for `count` elements, kept until the operation is destroyed.
  TensorRef take(DType dtype, std::int64_t count) {
    const auto& taken =
        scratch_.emplace_back(own_.engine_->scratch.take(static_cast<std::size_t>(count) * size_of(dtype)));
    return {taken.data(), dtype, {count}};
  }
  /// Clears the buffer if lanes carry padding, which is reduced or sent along with the parts.
  void clear_padding(TensorRef parts) const {
    if (own_.num_lanes_ * own_.num_nodes() * own_.parts_per_node_ == own_.size()) return;
    std::fill_n(static_cast<std::byte*>(parts.data), parts.bytes(), std::byte{});
  }
  /// Reduces every slice within the node onto the rank of its lane.
  void reduce_slices(TensorRef buffer) {
    for (int lane = 0; lane < own_.num_lanes_; ++lane)
      post(own_.node_down_->reduce(own_.slice(buffer, lane), op_, lane));
  }
  void broadcast_slices(TensorRef buffer) {
    for (int lane = 0; lane < own_.num_lanes_; ++lane)
      post(own_.node_up_->broadcast(own_.slice(buffer, lane), lane));
  }

  HierarchicalCommunicator& own_;
  const TensorRef input_, output_;  // the same buffer in all_reduce, broadcast and reduce
  const ReduceOp op_;
  const Place root_;  // of broadcast and reduce

 private:
  /// Advances the flat communicator, because another rank may be waiting for an operation under way there.
  /// Returns false.
  bool wait_for_others() {
    own_.next().progress();
    return false;
  }

  std::uint64_t number_;
  int stage_ = 0;  // number of stages entered
  std::vector<Request> pending_;
  std::size_t waited_for_ = 0;
  std::vector<ScratchPool::Lease> scratch_;
};

class HierarchicalCommunicator::AllReduce final : public StagedOperation {
 public:
  using StagedOperation::StagedOperation;

 private:
  void down() override { reduce_slices(output_); }
  void across() override { post(own_.lane_->all_reduce(own_.slice(output_, own_.own_.index), op_)); }
  void up() override { broadcast_slices(output_); }
};

class HierarchicalCommunicator::Broadcast final : public StagedOperation {
 public:
  using StagedOperation::StagedOperation;

 private:
  bool at_root() const { return own_.own_.node == root_.node; }
  void down() override {
    if (at_root()) post(own_.node_down_->broadcast(output_, root_.index));
  }
  void across() override { post(own_.lane_->broadcast(own_.slice(output_, own_.own_.index), root_.node)); }
  void up() override {
    if (!at_root()) broadcast_slices(output_);
  }
};

class HierarchicalCommunicator::Reduce final : public StagedOperation {
 public:
  using StagedOperation::StagedOperation;

 private:
  void down() override {
    sum_ = take(input_.dtype, input_.size());
    copy(input_.flat(), sum_);
    reduce_slices(sum_);
  }
  void across() override { post(own_.lane_->reduce(own_.slice(sum_, own_.own_.index), op_, root_.node)); }
  void up() override {
    if (own_.own_.node != root_.node) return;
    const bool is_root = own_.own_.index == root_.index;
    for (int lane = 0; is_root && lane < own_.num_lanes_; ++lane) {
      if (lane != root_.index) post(own_.node_up_->recv(own_.slice(output_, lane), lane, stage_tag));
    }
    if (!own_.has_lane()) return;
    const int lane = own_.own_.index;
    if (is_root) {
      copy(own_.slice(sum_, lane), own_.slice(output_, lane));
    } else {
      post(own_.node_up_->send(own_.slice(sum_, lane), root_.index, stage_tag));
    }
  }

  TensorRef sum_;
};

class HierarchicalCommunicator::ReduceScatter final : public StagedOperation {
 public:
  using StagedOperation::StagedOperation;

 private:
  std::int64_t part_count() const { return output_.size(); }

  void down() override {
    const std::int64_t n = part_count();
    const std::int64_t all = own_.num_lanes_ * own_.num_nodes() * own_.parts_per_node_;
    sum_ = take(input_.dtype, all * n);
    clear_padding(sum_);
    for (int r = 0; r < own_.size(); ++r) copy(input_.flat(r * n, n), sum_.flat(own_.lane_order(r) * n, n));
    reduce_slices(sum_);
  }
  void across() override {
    node_sum_ = take(input_.dtype, own_.parts_per_node_ * part_count());
    post(own_.lane_->reduce_scatter(own_.slice(sum_, own_.own_.index), node_sum_, op_));
  }
  void up() override {
    const std::int64_t n = part_count();
    const int index = own_.own_.index;
    if (!own_.has_lane()) {
      post(own_.node_up_->recv(output_, index % own_.num_lanes_, stage_tag));
      return;
    }
    copy(node_sum_.flat(0, n), output_.flat());
    for (int peer = index + own_.num_lanes_; peer < own_.node_->size(); peer += own_.num_lanes_)
      post(own_.node_up_->send(node_sum_.flat(peer / own_.num_lanes_ * n, n), peer, stage_tag));
  }

  TensorRef sum_;       // the parts of all ranks in lane order
  TensorRef node_sum_;  // the parts of this node in this lane
};

class HierarchicalCommunicator::AllGather final : public StagedOperation {
 public:
  using StagedOperation::StagedOperation;

 private:
  void down() override {
    const std::int64_t n = input_.size();
    const int index = own_.own_.index;
    all_ = take(input_.dtype, own_.num_lanes_ * own_.num_nodes() * own_.parts_per_node_ * n);
    if (!own_.has_lane()) {
      post(own_.node_down_->send(input_, index % own_.num_lanes_, stage_tag));
      return;
    }
    node_parts_ = take(input_.dtype, own_.parts_per_node_ * n);
    clear_padding(node_parts_);
    copy(input_.flat(), node_parts_.flat(0, n));
    for (int peer = index + own_.num_lanes_; peer < own_.node_->size(); peer += own_.num_lanes_)
      post(own_.node_down_->recv(node_parts_.flat(peer / own_.num_lanes_ * n, n), peer, stage_tag));
  }
  void across() override { post(own_.lane_->all_gather(node_parts_, own_.slice(all_, own_.own_.index))); }
  void up() override { broadcast_slices(all_); }
  void finish() override {
    const std::int64_t n = input_.size();
    for (int r = 0; r < own_.size(); ++r) copy(all_.flat(own_.lane_order(r) * n, n), output_.flat(r * n, n));
  }

  TensorRef node_parts_;  // the parts of this node in this lane
  TensorRef all_;         // the parts of all ranks in lane order
};

HierarchicalCommunicator::HierarchicalCommunicator(NextCommunicator node, NextCommunicator flat,
                                                   ComputeBackend* compute,
                                                   std::shared_ptr<OperationEngine> engine)
    : ForwardingCommunicator(std::move(flat)),
      node_(std::move(node)),
      compute_(compute),
      engine_(std::move(engine)) {
  if (compute != nullptr && !compute->host_accessible()) {
    fail(ExitCode::usage,
         "hierarchical collectives need buffers in host memory, but {} allocates device memory",
         compute->description());
  }
  find_nodes();
  node_down_ = node_->split(0, node_->rank());
  lane_ = next().split(std::min(own_.index, num_lanes_), own_.node);
  node_up_ = node_->split(0, node_->rank());
}

void HierarchicalCommunicator::find_nodes() {
  // A node is identified by the number in `flat` of its rank 0.
  std::int32_t leader = next().rank();
  node_->broadcast(TensorRef(&leader, DType::int32, {1}), 0).host_wait();
  std::array<std::int32_t, 2> own = {leader, node_->rank()};
  std::vector<std::array<std::int32_t, 2>> all(static_cast<std::size_t>(size()));
  next()
      .all_gather(TensorRef(own.data(), DType::int32, {2}),
                  TensorRef(all.data(), DType::int32, {2 * std::int64_t{size()}}))
      .host_wait();
  std::map<std::int32_t, int> sizes;
  for (const auto& [its_leader, index] : all) sizes[its_leader] += 1;
  for (const auto& [its_leader, index] : all)
    places_.push_back({static_cast<int>(std::distance(sizes.begin(), sizes.find(its_leader))), index});
  for (const auto& [its_leader, ranks] : sizes) node_sizes_.push_back(ranks);
  own_ = places_[static_cast<std::size_t>(rank())];
  num_lanes_ = std::ranges::min(node_sizes_);
  parts_per_node_ = (std::ranges::max(node_sizes_) + num_lanes_ - 1) / num_lanes_;
}

std::int64_t HierarchicalCommunicator::lane_order(int rank) const {
  const Place& place = places_[static_cast<std::size_t>(rank)];
  return (static_cast<std::int64_t>(place.index % num_lanes_) * num_nodes() + place.node) * parts_per_node_ +
         place.index / num_lanes_;
}

TensorRef HierarchicalCommunicator::slice(TensorRef buffer, int lane) const {
  const std::int64_t first = buffer.size() * lane / num_lanes_;
  return buffer.flat(first, buffer.size() * (lane + 1) / num_lanes_ - first);
}

template <class Staged>
Request HierarchicalCommunicator::start_staged(const CommCall& call) {
  return engine_->start(std::make_unique<Staged>(*this, call));
}

Request HierarchicalCommunicator::start(const CommCall& call) {
  if (compute_ != nullptr) compute_->synchronize();
  const bool is_one_type = call.input.dtype == call.output.dtype;
  switch (call.operation) {
    case CommOperation::all_reduce:
      return start_staged<AllReduce>(call);
    case CommOperation::reduce_scatter:
      require(is_one_type && call.input.size() == call.output.size() * size(), "input is output times ranks");
      return start_staged<ReduceScatter>(call);
    case CommOperation::all_gather:
      require(is_one_type && call.output.size() == call.input.size() * size(), "output is input times ranks");
      return start_staged<AllGather>(call);
    case CommOperation::broadcast:
      return start_staged<Broadcast>(call);
    case CommOperation::reduce:
      return start_staged<Reduce>(call);
    default:
      return call.on(next());
  }
}

void HierarchicalCommunicator::progress() {
  engine_->progress();
  node_->progress();
  next().progress();
}

std::unique_ptr<Communicator> HierarchicalCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> node = node_->split(color, key);
  return std::make_unique<HierarchicalCommunicator>(std::move(node), next().split(color, key), compute_,
                                                    engine_);
}

}  // namespace mylos
