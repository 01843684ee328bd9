// SPDX-License-Identifier: BSD-3-Clause
// OpenedModel: the weights that a command or a run begins with: a checkpoint, by itself or of a run, a
// Hugging Face folder, or an llm.c file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/deck/command_line.hpp"
#include "app/train/run_state.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/model/model_config.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/models/model_file.hpp"
#include "io/tokens/hugging_face_tokenizer.hpp"

namespace mylos {

/// What is known of a model before its weights are read.
struct ModelOrigin {
  std::string kind;              ///< "checkpoint of step 6", "Hugging Face folder", ...
  std::filesystem::path path{};  ///< of the checkpoint, folder or file
  ModelConfig model{};           ///< without padding; dropout is that of the source
  std::string deck{};            ///< text of a deck for this model
  std::string deck_name{};       ///< for messages
  std::string folder{};          ///< where relative paths of `deck` begin, if known
  std::int64_t step = 0;
  DType dtype = DType::fp32;                ///< of the stored weights
  std::int64_t micro_batch = 1;             ///< sequences
  std::optional<InitialWeights> initial{};  ///< of a checkpoint's run
  TokenizerIdentity tokenizer{};  ///< of the data that it was trained with; without a name if unknown

  /// What `deck` gives for `key`, or "".
};

class OpenedModel {
 public:
  /// Opens `path`, which is recognised by its content. If `is_run`, it must be a run, of which `step` or the
  /// newest undamaged checkpoint is opened. Headers and, of a checkpoint, digests are checked. Collective
  /// over all ranks, which throw the same error: ExitCode::usage, ExitCode::bad_data or ExitCode::io.
  OpenedModel(IoThread& io, const std::filesystem::path& path, bool is_run, std::optional<std::int64_t> step,
              const Warn& warn);

  const ModelOrigin& origin() const { return origin_; }
  bool is_checkpoint() const { return checkpoint_.has_value(); }
  /// The tokenizer in a model's folder, if there is one.
  const FoundTokenizer& tokenizer() const { return tokenizer_; }
  /// Reads parts of a weight as fp32. Throws like CheckpointReader and ModelFile.
  void read(const TensorInfo& tensor, const std::vector<TensorPart>& parts) const;
  /// Lines `key = value` that are the same on all ranks if they see the same model: its shape and the first
  /// values of each weight.
  std::string identity() const;

 private:
  void open_checkpoint(IoThread& io, const std::filesystem::path& path, std::optional<std::int64_t> step,
                       bool is_run, const Warn& warn);
  void open_file(const std::filesystem::path& path, const Warn& warn);

  ModelOrigin origin_;
  std::optional<CheckpointReader> checkpoint_;
  std::unique_ptr<ModelFile> file_;
  FoundTokenizer tokenizer_;
};

/// The files in which a run keeps its merge ranks, if `path` is a run or one of its checkpoints; they may not
/// exist.
std::vector<std::filesystem::path> ranks_of_run(const std::filesystem::path& path);

/// The option --step of commands that open a model, and the type that --dtype names; empty if it is not
/// given. Throws ExitCode::usage for another type.
CommandOption step_option();
std::optional<DType> dtype_option(const CommandLine& line);

/// The model's tokenizer: that of its folder or, of a run, with the merge ranks that --ranks names, the run's
/// own copy or the deck's file. Empty if there is none; then `reason` receives why. Throws ExitCode::usage if
/// --ranks does not fit the model, ExitCode::bad_data if ranks are damaged.
std::shared_ptr<const Tokenizer> find_model_tokenizer(const CommandLine& line, const OpenedModel& model,
                                                      std::string& reason);
/// Says on standard error if --ranks was given for a tokenizer that has none.
void warn_of_unused_ranks(const CommandLine& line, const Tokenizer* tokenizer);

/// Reads only headers of what `path` names, for the shape of a model. Of a run, those of its newest
/// checkpoint whose state can be read. For one process. Throws like the constructor of OpenedModel.
ModelOrigin look_at_model(const std::filesystem::path& path);
/// The same of the shape alone: the usual ShapeOfModel.
ModelConfig shape_at(const Deck& deck, const std::string& path);

/// The text of a deck that describes a model and nothing else; `eval` and `generate` can use it.
std::string deck_of_model(const ModelConfig& model, DType dtype, std::int64_t micro_batch,
                          const std::string& tokenizer, const std::string& ranks);

}  // namespace mylos
