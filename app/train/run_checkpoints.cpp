// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/run_checkpoints.hpp"

#include <utility>

#include "app/train/model_state.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

RunCheckpoints::RunCheckpoints(Context context)
    : session_(context.session),
      backend_(session_.compute()),
      training_(context.training),
      store_(context.io, context.hdf5, context.directory, context.config.settings, std::move(context.hook),
             std::move(context.warn)),
      io_(context.io),
      on_written_(std::move(context.on_written)) {
  if (context.config.async) {
    snapshot_.emplace(backend_, session_.ledger(), MemoryCategory::snapshot,
                      static_cast<std::size_t>(snapshot_bytes(training_.program())));
  }
}

RunCheckpoints::~RunCheckpoints() {
  if (pending_ && pending_->hashed.valid()) pending_->hashed.wait();
}

void RunCheckpoints::write(std::int64_t step, const std::string& json, bool ends_run) {
  const auto start = Clock::now();
  finish();  // checkpoints are written one at a time
  const bool goes_on = snapshot_ && !ends_run;
  // Micro-batches of later steps may use other versions of the weights before the next update.
  const bool is_hashed_beside =
      goes_on && backend_.host_accessible() && training_.program().schedule().rules.empty();
  if (!is_hashed_beside) check_replicas(step);
  begin_ = start;
  CheckpointContent content =
      checkpoint_content(backend_, training_.state(), {.newest = step, .oldest = training_.oldest_version()},
                         goes_on ? snapshot_->data() : nullptr);
  content.state = {.step = step, .json = json};
  if (is_hashed_beside) {
    pending_.emplace(Pending{.content = std::move(content), .hashes = {}, .hashed = {}});
    pending_->hashed = io_.submit([this] { pending_->hashes = hashes(); });
  } else if (goes_on) {
    store_.start(std::move(content));
  } else {
    store_.write(content);
  }
  stall_seconds_ = seconds_since(start);
  seconds_ += stall_seconds_;
  newest_ = step;
}

void RunCheckpoints::write_hashed() {
  if (!pending_) return;
  const auto start = Clock::now();
  pending_->hashed.get();
  const std::vector<TrafficRow> before = session_.traffic().table();
  compare(pending_->hashes, pending_->content.state.step);
  comparison_traffic_ = subtract(session_.traffic().table(), before);
  store_.start(std::move(pending_->content));
  pending_.reset();
  stall_seconds_ += seconds_since(start);
}

void RunCheckpoints::check_replicas(std::int64_t step) {
  backend_.synchronize();
  compare(hashes(), step);
}

std::optional<double> RunCheckpoints::seconds_under_way() const {
  if (!begin_) return std::nullopt;
  return seconds_since(*begin_);
}

std::vector<StateHash> RunCheckpoints::hashes() {
  return hash_states(backend_, training_.state(), session_.grid());
}

void RunCheckpoints::compare(const std::vector<StateHash>& hashes, std::int64_t step) {
  const std::string problem = compare_replicas(backend_, training_.state(), session_.grid(), hashes);
  if (!problem.empty()) fail(ExitCode::numerical, "step {}: {}", step, problem);
}

void RunCheckpoints::note(const std::optional<WrittenCheckpoint>& written) {
  if (!written) return;
  begin_.reset();
  on_written_(*written, stall_seconds_);
}

}  // namespace mylos
