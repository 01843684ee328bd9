// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/model_programs.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "core/model/block.hpp"
#include "core/model/embedding.hpp"
#include "core/model/lm_head.hpp"
#include "core/model/routed_block.hpp"
#include "core/model/transformer_block.hpp"

namespace mylos {

namespace {

/// Records the operation that recomputes the missing results of a fused operation from the result that was
/// kept. Returns false, and records nothing, if this is not possible.
template <class Op>
bool remake_rest(const Op& op, const std::set<int>& missing, Recorder& run) {
  const auto is_kept = [&](const TensorRef& tensor) { return !missing.contains(place_of(tensor).storage); };
  if constexpr (std::is_same_v<Op, LinearGeluForward>) {
    if (!is_kept(op.pre)) return false;
    run(GeluForward{.x = op.pre, .y = op.y});
    return true;
  } else if constexpr (std::is_same_v<Op, DropoutAddLayernorm>) {
    if (!is_kept(op.sum)) return false;
    run(LayernormForward{.x = op.sum.reshaped({op.mean.size(), op.gamma.size()}),
                         .gamma = op.gamma,
                         .beta = op.beta,
                         .y = op.y,
                         .mean = op.mean,
                         .rstd = op.rstd});
    return true;
  } else {
    return false;
  }
}

/// Records the programs of one model.
class ProgramRecorder {
 public:
  ProgramRecorder(const ModelConfig& model, const ParameterTable& table, const ProgramConfig& config)
      : model_(model),
        table_(table),
        config_(config),
        storages_(table, config, RoutingStatistics(model).count()) {
    for (const int unit : config.cuts.blocks(model, config.held)) {
      if (unit == 0) {
        blocks_[unit] = std::make_unique<Embedding>(model, table);
      } else if (unit < num_blocks()) {
        blocks_[unit] = block_of(unit - 1);
      } else {
        head_.emplace(model, table);
      }
    }
  }

  ModelPrograms record() {
    std::vector<ChunkPrograms> chunks;
    for (int chunk = 0; chunk < config_.cuts.chunks; ++chunk)
      chunks.push_back(is_held(chunk) ? record(chunk) : ChunkPrograms());
    for (int chunk = 0; chunk < config_.cuts.chunks; ++chunk) {
      if (is_held(chunk)) record_inference(chunk, chunks[static_cast<std::size_t>(chunk)]);
    }
    analyse_backward(chunks);
    for (ChunkPrograms& chunk : chunks) {
      std::vector<Program*> others = {&chunk.forward, &chunk.evaluate};
      for (ChunkForward& cached : chunk.cached) others.push_back(&cached.program);
      for (Program*& program : others) analyse({&program, 1}, storages_.all(), table_);
    }
    return {std::move(storages_), std::move(chunks)};
  }

 private:
  std::unique_ptr<Block> block_of(std::int64_t layer) const {
    if (model_.depths.are_in(layer)) return std::make_unique<RoutedBlock>(model_, table_, layer);
    return std::make_unique<TransformerBlock>(model_, table_, layer);
  }
  int num_blocks() const { return static_cast<int>(model_.layers) + 1; }
  bool is_held(int chunk) const { return config_.held.empty() || config_.held.contains(chunk); }
  const Block& block(int index) const { return *blocks_.at(index); }
  /// The name of a block, which another rank may hold.
  static std::string name_of_block(int index) {
    return index == 0 ? Embedding::block_name() : TransformerBlock::block_name(index - 1);
  }
  Recorder recorder(const PassConfig& pass, int index, std::vector<Entry>& entries) {
    return {storages_, config_, pass, index < num_blocks() ? name_of_block(index) : head_->name(),
            index,     entries};
  }
  TensorRef activation(const PassConfig& pass, const std::string& name) {
    return storages_.tensor(pass.prefix + name,
                            {nullptr, pass.shape.dtype, {pass.shape.residual_rows(), model_.width}});
  }
  /// Return the residual stream before block `index` (after the last block, if `index` is the number of
  /// blocks) and, in training, the gradient of the loss with respect to it. Both are empty before the first
  /// block.
  TensorRef residual(const PassConfig& pass, int index) {
    return index == 0 ? TensorRef() : activation(pass, "residual after " + name_of_block(index - 1));
  }
  TensorRef residual(int index) { return residual(training_, index); }
  TensorRef gradient(int index) {
    return index == 0 ? TensorRef() : activation(training_, "gradient after " + name_of_block(index - 1));
  }

  int first_block(int chunk) const { return config_.cuts.first_block(model_, chunk); }
  bool is_last(int chunk) const { return chunk + 1 == config_.cuts.chunks; }

  ChunkPrograms record(int chunk) {
    const int first = first_block(chunk);
    const int end = first_block(chunk + 1);
    ChunkPrograms programs;
    programs.forward = forward(training_, first, end);
    programs.backward.push_back(backward(programs.forward, first, end, is_last(chunk)));
    programs.input = place_of(residual(first)).storage;
    programs.input_gradient = place_of(gradient(first)).storage;
    if (!is_last(chunk)) {
      programs.output = place_of(residual(end)).storage;
      programs.output_gradient = place_of(gradient(end)).storage;
    }
    std::set<int> wanted = {Storages::guard_input_storage};
    for (int i = std::max(first, 1); i <= end; ++i) wanted.insert(place_of(gradient(i)).storage);
    find_deferrable(programs.backward.front(), storages_.all(), wanted);
    if (config_.splits_backward) {
      SplitProgram parts = split(programs.backward.front());
      programs.backward = {std::move(parts.input), std::move(parts.weight)};
    }
    return programs;
  }

  /// Records the forward pass of blocks [first, end).
  Program forward(const PassConfig& pass, int first, int end) {
    Program program;
    for (int i = first; i < end; ++i) {
      Recorder run = recorder(pass, i, program.entries);
      block(i).forward(run, residual(pass, i), residual(pass, i + 1));
    }
    return program;
  }

  /// Records the forward pass of a chunk and, with the head, the losses, or else the logits after the last
  /// tokens.
  ChunkForward forward_of(int chunk, const PassConfig& pass, bool has_losses) {
    const int end = first_block(chunk + 1);
    ChunkForward forward_pass{.program = forward(pass, first_block(chunk), end)};
    forward_pass.input = place_of(residual(pass, first_block(chunk))).storage;
    if (!is_last(chunk)) {
      forward_pass.output = place_of(residual(pass, end)).storage;
      return forward_pass;
    }
    Recorder run = recorder(pass, end, forward_pass.program.entries);
    if (has_losses) {
      head_->forward(run, residual(pass, end), {});
    } else {
      head_->last_logits(run, residual(pass, end));
    }
    return forward_pass;
  }

  void record_inference(int chunk, ChunkPrograms& programs) {
    programs.evaluate = forward_of(chunk, {.shape = config_.shape}, true).program;
    for (const CachedPass& pass : config_.cache.passes) {
      const BatchShape shape{.batch = pass.texts, .seq = pass.tokens, .dtype = config_.shape.dtype};
      programs.cached.push_back(
          forward_of(chunk, {.shape = shape, .prefix = prefix_of(pass), .cached = &pass}, pass.has_losses));
    }
  }

  Program backward(const Program& forward, int first, int end, bool has_head) {
    Program program;
    if (has_head) {
      Recorder head = recorder(training_, end, program.entries);
      head_->backward(head, residual(end), {}, gradient(end));
    }
    for (int i = end; i-- > first;) {
      std::vector<Entry> own;
      Recorder run = recorder(training_, i, own);
      block(i).backward(run, residual(i), gradient(i + 1), gradient(i));
      std::ranges::move(remake(forward, i, own), std::back_inserter(program.entries));
      std::ranges::move(own, std::back_inserter(program.entries));
    }
    if (has_head) {
      Recorder run = recorder(training_, first, program.entries);
      run(Sum{.x = run.losses(), .out = storages_.loss_sum()});
    }
    return program;
  }

  /// Analyses the backward passes of the rank's chunks in the order in which a micro-batch runs them: the
  /// last chunk first.
  void analyse_backward(std::vector<ChunkPrograms>& chunks) const {
    std::vector<Program*> backward;
    for (int chunk = config_.cuts.chunks; chunk-- > 0;) {
      if (!is_held(chunk)) continue;
      for (Program& part : chunks[static_cast<std::size_t>(chunk)].backward) backward.push_back(&part);
    }
    analyse(backward, storages_.all(), table_);
  }
  /// Returns the storages that a block's forward operations `made` write and that are not kept for its
  /// backward pass.
  std::set<int> not_kept(const std::vector<const Entry*>& made) const {
    std::set<int> storages;
    if (config_.recompute == Recompute::none) return storages;
    for (const Entry* entry : made) storages.merge(accesses_of(*entry).writes);
    if (config_.recompute == Recompute::selective)
      std::erase_if(storages,
                    [&](int storage) { return !storages_.all()[static_cast<std::size_t>(storage)].cheap; });
    return storages;
  }

  /// Returns the operations that recompute, for block `index`, the tensors that its backward operations `own`
  /// read and that were not kept.
  std::vector<Entry> remake(const Program& forward, int index, const std::vector<Entry>& own) {
    std::vector<const Entry*> made;
    for (const Entry& entry : forward.entries) {
      if (entry.block == index) made.push_back(&entry);
    }
    const std::set<int> missing = not_kept(made);
    std::set<int> wanted, written;
    for (const Entry& entry : own) {
      const auto [reads, writes] = accesses_of(entry);
      std::ranges::copy_if(reads, std::inserter(wanted, wanted.end()), [&](int storage) {
        return missing.contains(storage) && !written.contains(storage);
      });
      written.insert(writes.begin(), writes.end());
    }
    std::vector<Entry> repeated;  // in reverse order
    for (auto entry = made.rbegin(); entry != made.rend(); ++entry) {
      const auto [reads, writes] = accesses_of(**entry);
      if (!intersect(writes, wanted)) continue;
      for_each_place(**entry, [&](const Place& place, Access access) {
        if (access == Access::write && place.offset == 0) wanted.erase(place.storage);
      });
      Recorder run = recorder(training_, index, repeated);
      if (std::visit([&](const auto& op) { return remake_rest(op, missing, run); }, (*entry)->operation))
        continue;
      repeated.push_back(**entry);
      std::ranges::copy_if(reads, std::inserter(wanted, wanted.end()),
                           [&](int storage) { return missing.contains(storage); });
    }
    std::ranges::reverse(repeated);
    return repeated;
  }

  const ModelConfig& model_;
  const ParameterTable& table_;
  ProgramConfig config_;
  PassConfig training_{.shape = config_.shape, .training = true};
  std::map<int, std::unique_ptr<Block>> blocks_;  // that the rank holds, by number
  std::optional<LmHead> head_;                    // the same
  Storages storages_;
};

}  // namespace

std::string prefix_of(const CachedPass& pass) {
  return fmt::format("{} x {}{}: ", pass.texts, pass.tokens, pass.has_losses ? " with losses" : "");
}

ModelPrograms record_programs(const ModelConfig& model, const ParameterTable& table,
                              const ProgramConfig& config) {
  return ProgramRecorder(model, table, config).record();
}

}  // namespace mylos
