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
  explicit StagedOperation(HierarchicalCommunicator& owner) : own_(owner), number_(owner.num_started_++) {}

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
        scratch_.emplace_back(own_.family_->scratch.take(static_cast<std::size_t>(count) * size_of(dtype)));
    return {taken.data(), dtype, {count}};
  }
  /// Clears the buffer if it has padding, which is reduced and sent like the parts.
  void clear_padding(TensorRef parts) const {
    if (own_.num_lanes_ * own_.num_nodes() * own_.parts_per_node_ == own_.size()) return;
    std::fill_n(static_cast<std::byte*>(parts.data), parts.bytes(), std::byte{});
  }
  /// Reduces every slice within the node, to the rank of its lane.
  void reduce_slices(TensorRef buffer, ReduceOp op) {
    for (int lane = 0; lane < own_.num_lanes_; ++lane)
      post(own_.node_down_->reduce(own_.slice(buffer, lane), op, lane));
  }
  void broadcast_slices(TensorRef buffer) {
    for (int lane = 0; lane < own_.num_lanes_; ++lane)
      post(own_.node_up_->broadcast(own_.slice(buffer, lane), lane));
  }

  HierarchicalCommunicator& own_;

 private:
  /// Another rank may be waiting for an operation that is under way on the flat communicator.
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
  AllReduce(HierarchicalCommunicator& owner, TensorRef buffer, ReduceOp op)
      : StagedOperation(owner), buffer_(buffer), op_(op) {}

 private:
  void down() override { reduce_slices(buffer_, op_); }
  void across() override { post(own_.lane_->all_reduce(own_.slice(buffer_, own_.own_.index), op_)); }
  void up() override { broadcast_slices(buffer_); }

  TensorRef buffer_;
  ReduceOp op_;
};

class HierarchicalCommunicator::Broadcast final : public StagedOperation {
 public:
  Broadcast(HierarchicalCommunicator& owner, TensorRef buffer, int root)
      : StagedOperation(owner), buffer_(buffer), root_(owner.places_[static_cast<std::size_t>(root)]) {}

 private:
  bool at_root() const { return own_.own_.node == root_.node; }
  void down() override {
    if (at_root()) post(own_.node_down_->broadcast(buffer_, root_.index));
  }
  void across() override { post(own_.lane_->broadcast(own_.slice(buffer_, own_.own_.index), root_.node)); }
  void up() override {
    if (!at_root()) broadcast_slices(buffer_);
  }

  TensorRef buffer_;
  Place root_;
};

class HierarchicalCommunicator::Reduce final : public StagedOperation {
 public:
  Reduce(HierarchicalCommunicator& owner, TensorRef buffer, ReduceOp op, int root)
      : StagedOperation(owner),
        buffer_(buffer),
        op_(op),
        root_(owner.places_[static_cast<std::size_t>(root)]) {}

 private:
  void down() override {
    sum_ = take(buffer_.dtype, buffer_.size());
    copy(buffer_.flat(), sum_);
    reduce_slices(sum_, op_);
  }
  void across() override { post(own_.lane_->reduce(own_.slice(sum_, own_.own_.index), op_, root_.node)); }
  void up() override {
    if (own_.own_.node != root_.node) return;
    const bool is_root = own_.own_.index == root_.index;
    for (int lane = 0; is_root && lane < own_.num_lanes_; ++lane) {
      if (lane != root_.index) post(own_.node_up_->recv(own_.slice(buffer_, lane), lane, stage_tag));
    }
    if (!own_.has_lane()) return;
    const int lane = own_.own_.index;
    if (is_root) {
      copy(own_.slice(sum_, lane), own_.slice(buffer_, lane));
    } else {
      post(own_.node_up_->send(own_.slice(sum_, lane), root_.index, stage_tag));
    }
  }

  TensorRef buffer_;
  ReduceOp op_;
  Place root_;
  TensorRef sum_;
};

class HierarchicalCommunicator::ReduceScatter final : public StagedOperation {
 public:
  ReduceScatter(HierarchicalCommunicator& owner, TensorRef input, TensorRef output, ReduceOp op)
      : StagedOperation(owner), input_(input), output_(output), op_(op) {}

 private:
  std::int64_t part_count() const { return output_.size(); }

  void down() override {
    const std::int64_t n = part_count();
    const std::int64_t all = own_.num_lanes_ * own_.num_nodes() * own_.parts_per_node_;
    sum_ = take(input_.dtype, all * n);
    clear_padding(sum_);
    for (int r = 0; r < own_.size(); ++r) copy(input_.flat(r * n, n), sum_.flat(own_.lane_order(r) * n, n));
    reduce_slices(sum_, op_);
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

  TensorRef input_;
  TensorRef output_;
  ReduceOp op_;
  TensorRef sum_;       // the parts of all ranks in lane order
  TensorRef node_sum_;  // the parts of this node in this lane
};

class HierarchicalCommunicator::AllGather final : public StagedOperation {
 public:
  AllGather(HierarchicalCommunicator& owner, TensorRef input, TensorRef output)
      : StagedOperation(owner), input_(input), output_(output) {}

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

  TensorRef input_;
  TensorRef output_;
  TensorRef node_parts_;  // the parts of this node in this lane
  TensorRef all_;         // the parts of all ranks in lane order
};

HierarchicalCommunicator::HierarchicalCommunicator(NextCommunicator node, NextCommunicator flat,
                                                   ComputeBackend* compute, MemoryLedger* ledger)
    : HierarchicalCommunicator(std::move(node), std::move(flat), compute, std::make_shared<Family>(ledger)) {}

HierarchicalCommunicator::HierarchicalCommunicator(NextCommunicator node, NextCommunicator flat,
                                                   ComputeBackend* compute, std::shared_ptr<Family> family)
    : ForwardingCommunicator(std::move(flat)),
      node_(std::move(node)),
      compute_(compute),
      family_(std::move(family)) {
  if (compute != nullptr && !compute->host_accessible()) {
    fail(ExitCode::usage, "hierarchical collectives need buffers in host memory, but those of {} are not",
         compute->description());
  }
  find_nodes();
  node_down_ = node_->split(0, node_->rank());
  lane_ = next().split(std::min(own_.index, num_lanes_), own_.node);
  node_up_ = node_->split(0, node_->rank());
}

void HierarchicalCommunicator::find_nodes() {
  // A node is identified by its first rank's number in `flat`.
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

template <class Staged, class... Args>
Request HierarchicalCommunicator::start(Args&&... args) {
  if (compute_ != nullptr) compute_->synchronize();
  return family_->engine.start(std::make_unique<Staged>(*this, std::forward<Args>(args)...));
}

Request HierarchicalCommunicator::all_reduce(TensorRef buffer, ReduceOp op) {
  return start<AllReduce>(buffer, op);
}

Request HierarchicalCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) {
  require(input.dtype == output.dtype && input.size() == output.size() * size(),
          "input is output times ranks");
  return start<ReduceScatter>(input, output, op);
}

Request HierarchicalCommunicator::all_gather(TensorRef input, TensorRef output) {
  require(input.dtype == output.dtype && output.size() == input.size() * size(),
          "output is input times ranks");
  return start<AllGather>(input, output);
}

Request HierarchicalCommunicator::broadcast(TensorRef buffer, int root) {
  return start<Broadcast>(buffer, root);
}

Request HierarchicalCommunicator::reduce(TensorRef buffer, ReduceOp op, int root) {
  return start<Reduce>(buffer, op, root);
}

Request HierarchicalCommunicator::all_to_all(TensorRef input, TensorRef output) {
  if (compute_ != nullptr) compute_->synchronize();
  return next().all_to_all(input, output);
}

Request HierarchicalCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                               TensorRef output, std::span<const std::int64_t> recv_counts) {
  if (compute_ != nullptr) compute_->synchronize();
  return next().all_to_all_v(input, send_counts, output, recv_counts);
}

Request HierarchicalCommunicator::send(TensorRef buffer, int peer, int tag) {
  if (compute_ != nullptr) compute_->synchronize();
  return next().send(buffer, peer, tag);
}

Request HierarchicalCommunicator::recv(TensorRef buffer, int peer, int tag) {
  if (compute_ != nullptr) compute_->synchronize();
  return next().recv(buffer, peer, tag);
}

void HierarchicalCommunicator::progress() {
  family_->engine.progress();
  node_->progress();
  next().progress();
}

std::unique_ptr<Communicator> HierarchicalCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> node = node_->split(color, key);
  return std::unique_ptr<Communicator>(
      new HierarchicalCommunicator(std::move(node), next().split(color, key), compute_, family_));
}

}  // namespace mylos
