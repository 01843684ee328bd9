// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/tokenize_corpus.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/rng.hpp"

namespace mylos {

Split SplitRule::of(std::int64_t document) const {
  if (has_two_parts) return document == 0 ? Split::train : Split::valid;
  const std::uint64_t hash = mix64(mix64(seed) ^ static_cast<std::uint64_t>(document));
  return static_cast<double>(hash >> 11U) * 0x1.0p-53 < valid_fraction ? Split::valid : Split::train;
}

namespace {

/// The tokens of a block.
struct EncodedBlock {
  struct Part {
    std::int64_t document;
    std::size_t tokens;
    bool ends;
  };
  std::vector<Part> parts;
  std::vector<std::uint16_t> tokens;  // of the parts, one after another
  std::exception_ptr error;           // occurred after these tokens
  std::int64_t malformed = 0;         // bytes of a text file that are not UTF-8
  std::string first_malformed;
  const CorpusInput* input = nullptr;
};

class Pipeline {
 public:
  Pipeline(const std::vector<CorpusInput>& inputs, const Tokenizer& tokenizer,
           const TokenizeSettings& settings, std::array<ShardWriter*, 2> writers,
           const std::function<void(const TokenizeProgress&)>& seen)
      : tokenizer_(tokenizer),
        settings_(settings),
        writers_(writers),
        seen_(seen),
        window_(settings.threads + 4),
        reader_(
            inputs, settings.key, [&](std::string_view text) { return tokenizer_.last_cut(text); },
            settings.guessed) {}

  TokenizeProgress run() {
    {
      std::vector<std::jthread> others;
      for (int t = 1; t < settings_.threads; ++t) others.emplace_back([this] { work(); });
      work();
    }
    if (error_) std::rethrow_exception(error_);
    return progress_;
  }

 private:
  /// Each thread takes blocks, encodes them, and writes the encoded blocks whose turn it is.
  void work() {
    const auto encoder = tokenizer_.encoder();
    while (const auto taken = take()) {
      auto& [number, block, encoded] = *taken;
      if (!encoded.error) {
        try {
          encode(block, *encoder, encoded);
        } catch (...) {
          encoded.error = std::current_exception();
        }
      }
      write(number, std::move(encoded));
    }
  }

  struct Taken {
    std::int64_t number;
    CorpusBlock block;
    EncodedBlock encoded;
  };

  /// The next block, or the error of reading it.
  std::shared_ptr<Taken> take() {
    const std::lock_guard reading(reading_);
    {
      std::unique_lock lock(mutex_);
      written_some_.wait(lock, [&] { return error_ || taken_ < written_ + window_; });
      if (error_) return nullptr;
    }
    if (all_taken_) return nullptr;
    auto taken = std::make_shared<Taken>();
    try {
      auto block = reader_.next();
      bytes_read_ = reader_.bytes_read();
      if (!block) {
        all_taken_ = true;
        return nullptr;
      }
      taken->block = std::move(*block);
    } catch (...) {
      taken->encoded.error = std::current_exception();
      all_taken_ = true;
    }
    const std::lock_guard lock(mutex_);
    taken->number = taken_++;
    return taken;
  }

  bool wants(std::int64_t document) const {
    return writers_[static_cast<std::size_t>(settings_.split.of(document))]->wants(document);
  }

  void encode(const CorpusBlock& block, Encoder& encoder, EncodedBlock& encoded) const {
    const auto add = [&](std::string_view text, std::int64_t document, bool begins, bool ends) {
      const std::size_t before = encoded.tokens.size();
      if (wants(document)) {
        if (begins && settings_.end_of_text_begins) encoded.tokens.push_back(tokenizer_.end_of_text());
        encoder.append(text, encoded.tokens);
        if (ends && !settings_.end_of_text_begins) encoded.tokens.push_back(tokenizer_.end_of_text());
      }
      encoded.parts.push_back({document, encoded.tokens.size() - before, ends});
    };
    if (!block.is_lines) {
      if (block.offset >= 0) count_malformed(block, encoded);
      return add(block.bytes, block.document, block.begins, block.ends);
    }
    encoded.tokens.reserve(block.bytes.size());
    for_each_document(block, settings_.key, [&](const std::string& text, std::int64_t document) {
      add(text, document, true, true);
    });
  }

  static void count_malformed(const CorpusBlock& block, EncodedBlock& encoded) {
    const std::string_view text = block.bytes;
    std::size_t at = find_malformed(text, 0);
    if (at == text.size()) return;
    encoded.input = block.input;
    encoded.first_malformed =
        fmt::format("{}: offset {}", block.input->name(), block.offset + static_cast<std::int64_t>(at));
    for (; at < text.size(); at = find_malformed(text, at + 1)) ++encoded.malformed;
  }

  void write(std::int64_t number, EncodedBlock encoded) {
    std::unique_lock lock(mutex_);
    ready_.emplace(number, std::move(encoded));
    if (is_writing_) return;  // the writing thread will reach it
    is_writing_ = true;
    for (auto next = ready_.find(written_); next != ready_.end() && !error_; next = ready_.find(written_)) {
      const EncodedBlock block = std::move(next->second);
      ready_.erase(next);
      lock.unlock();
      std::exception_ptr error;
      try {
        write(block);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      ++written_;
      written_some_.notify_all();
    }
    is_writing_ = false;
  }

  void write(const EncodedBlock& block) {
    std::span<const std::uint16_t> tokens = block.tokens;
    for (const auto& [document, count, ends] : block.parts) {
      if (wants(document))
        writers_[static_cast<std::size_t>(settings_.split.of(document))]->append(document,
                                                                                 tokens.first(count), ends);
      tokens = tokens.subspan(count);
      if (ends) ++progress_.documents;
    }
    if (block.malformed > 0) {
      MalformedBytes& all = progress_.malformed;
      all.count += block.malformed;
      if (all.first.empty()) all.first = block.first_malformed;
      if (std::exchange(last_malformed_, block.input) != block.input) ++all.files;
    }
    if (block.error) std::rethrow_exception(block.error);
    progress_.bytes_read = bytes_read_;
    progress_.tokens = writers_[0]->num_tokens() + writers_[1]->num_tokens();
    seen_(progress_);
  }

  const Tokenizer& tokenizer_;
  const TokenizeSettings& settings_;
  const std::array<ShardWriter*, 2> writers_;
  const std::function<void(const TokenizeProgress&)>& seen_;
  const std::int64_t window_;  // the maximum number of blocks in flight

  std::mutex reading_;  // held while a block is read
  CorpusReader reader_;
  bool all_taken_ = false;
  std::atomic<std::int64_t> bytes_read_ = 0;

  std::mutex mutex_;  // for the members below
  std::condition_variable written_some_;
  std::int64_t taken_ = 0;
  std::int64_t written_ = 0;
  std::map<std::int64_t, EncodedBlock> ready_;
  bool is_writing_ = false;  // a thread is writing, without the mutex
  std::exception_ptr error_;
  TokenizeProgress progress_;  // belongs to the thread that writes
  const CorpusInput* last_malformed_ = nullptr;
};

}  // namespace

TokenizeProgress tokenize_corpus(const std::vector<CorpusInput>& inputs, const Tokenizer& tokenizer,
                                 const TokenizeSettings& settings, std::array<ShardWriter*, 2> writers,
                                 const std::function<void(const TokenizeProgress&)>& seen) {
  return Pipeline(inputs, tokenizer, settings, writers, seen).run();
}

}  // namespace mylos
