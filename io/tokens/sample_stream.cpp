// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/sample_stream.hpp"

#include <algorithm>
#include <pthread.h>
#include <sched.h>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"

namespace mylos {

SampleStream::SampleStream(TokenDataset dataset, std::int64_t batch, std::int64_t stride)
    : dataset_(std::move(dataset)), batch_(batch), stride_(stride) {
  require(batch > 0 && stride > 0, "micro-batches follow one another");
  const std::int64_t tokens = batch * (dataset_.seq_len() + 1);
  for (Batch& ahead : batches_) ahead.tokens.resize(static_cast<std::size_t>(tokens));
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

void SampleStream::read(std::int64_t first, std::span<std::int32_t> tokens) {
  std::unique_lock lock(mutex_);
  if (!is_ready(first)) {
    if (num_ready_ > 0 || next_ != first) {
      head_ = (head_ + num_ready_) % depth;  // the batch that the thread fills next
      num_ready_ = 0;
      next_ = first;
      wanted_.notify_one();
    }
    const WatchedCall call(CallKind::io, "await samples", "data.train");
    ready_.wait(lock, [&] { return is_ready(first); });
  }
  const Batch& batch = batches_[head_];
  require(tokens.size() == batch.tokens.size(), "tokens of a micro-batch");
  const std::exception_ptr error = batch.error;
  std::ranges::copy(batch.tokens, tokens.begin());
  head_ = (head_ + 1) % depth;
  --num_ready_;
  lock.unlock();
  wanted_.notify_one();
  if (error) std::rethrow_exception(error);
}

void SampleStream::loop(const std::stop_token& stop) {
  // With SCHED_BATCH, this thread does not preempt a computing thread on wake-up. Prefetches are not urgent:
  // a thread that waits for a micro-batch sleeps and leaves its core to this thread.
  const sched_param none{};
  ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
  std::unique_lock lock(mutex_);
  while (true) {
    wanted_.wait(lock, stop, [this] { return next_ && num_ready_ < depth; });
    if (stop.stop_requested()) return;
    Batch& batch = batches_[(head_ + num_ready_) % depth];
    batch.first = *next_;
    lock.unlock();
    fill(batch);
    lock.lock();
    if (next_ != batch.first) continue;  // `read` has since requested another micro-batch
    ++num_ready_;
    next_ = batch.error ? std::nullopt : std::optional(batch.first + stride_);
    ready_.notify_one();
  }
}

void SampleStream::fill(Batch& batch) const {
  const std::int64_t row = dataset_.seq_len() + 1;
  batch.error = nullptr;
  try {
    for (std::int64_t b = 0; b < batch_; ++b) dataset_.advise(batch.first + b);
    for (std::int64_t b = 0; b < batch_; ++b) dataset_.sample(batch.first + b, batch.tokens.data() + b * row);
  } catch (...) {
    batch.error = std::current_exception();
  }
}

}  // namespace mylos
