// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/launch/stop_signals.hpp"
#include "app/train/opened_model.hpp"
#include "app/train/run_state.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "core/layout/box.hpp"
#include "core/model/parameters.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/file_util.hpp"
#include "io/models/model_writer.hpp"
#include "io/tokens/hugging_face_tokenizer.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

enum class Target : std::uint8_t { hugging_face, checkpoint, llmc };

std::vector<CommandOption> options() {
  return {
      {.name = "to",
       .kind = OptionKind::text,
       .doc = "what to write: hf (a Hugging Face folder), llmc (an llm.c model file) or checkpoint",
       .choices = "hf|llmc|checkpoint"},
      {.name = "dtype",
       .kind = OptionKind::text,
       .doc = "type of the weights in the result: fp32, bf16 or fp16; by default that of the source. A "
              "checkpoint is always in fp32",
       .choices = "fp32|bf16|fp16"},
      step_option(),
      {"ranks", OptionKind::text, "GPT-2's merge ranks, for the tokenizer's files: as for mylos generate"},
  };
}

Target parse_target(const CommandLine& line) {
  if (!line.has("to")) fail(ExitCode::usage, "mylos convert needs --to=hf, --to=checkpoint or --to=llmc");
  const std::string& to = line.text("to");
  if (to == "hf") return Target::hugging_face;
  if (to == "checkpoint") return Target::checkpoint;
  if (to == "llmc") return Target::llmc;
  fail(ExitCode::usage, "--to={} must be hf, checkpoint or llmc", to);
}

/// What is written, under another name until it is complete.
class Output {
 public:
  /// Throws ExitCode::usage if there is something at `place` or at the other name already.
  explicit Output(const fs::path& place)
      : place_(place.has_filename() ? place : place.parent_path()), temporary_(place_.string() + ".tmp") {
    if (place_.empty()) fail(ExitCode::usage, "the name of the result is empty");
    for (const fs::path& path : {place_, temporary_}) {
      std::error_code unknown;
      if (fs::symlink_status(path, unknown).type() != fs::file_type::not_found)
        fail(ExitCode::usage, "{} exists: there is {}; name another place, or remove it", path.string(),
             what_is_at(path));
    }
    const fs::path parent = fs::absolute(place_).parent_path();
    std::error_code unknown;
    if (!fs::is_directory(parent, unknown))
      fail(ExitCode::usage, "{} cannot be written: there is no folder {}", place_.string(), parent.string());
  }
  /// Removes what is left under the other name.
  ~Output() {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  const fs::path& temporary() const { return temporary_; }
  void commit(const fs::path& written) {
    rename_file(written, place_);
    try {
      sync_path(fs::absolute(place_).parent_path());
    } catch (const Error&) {
      std::error_code ignored;
      fs::remove_all(place_, ignored);
      throw;
    }
  }

 private:
  fs::path place_, temporary_;
};

/// The tokenizer of the model, for its files; empty if it is not known.
std::shared_ptr<const Tokenizer> tokenizer_of(const CommandLine& line, const OpenedModel& model) {
  std::string reason;
  std::shared_ptr<const Tokenizer> found = find_model_tokenizer(line, model, reason);
  warn_of_unused_ranks(line, found.get());
  if (found == nullptr && model.is_checkpoint() && !model.origin().tokenizer.name.empty())
    say(stderr, "warning: {}: no tokenizer files are written\n", reason);
  return found;
}

using Read = std::function<void(const TensorInfo& tensor, const std::vector<TensorPart>& parts)>;

/// Writes the weights as a checkpoint of one step into `folder` and returns its place.
fs::path write_checkpoint(IoThread& io, const OpenedModel& model, const Read& read,
                          const Tokenizer* tokenizer, const std::string& ranks, const fs::path& folder) {
  const ModelOrigin& origin = model.origin();
  RunState state;
  state.step = origin.step;
  state.model = origin.model;
  state.ranks = 1;
  state.micro_batch = origin.micro_batch;
  state.deck = origin.deck;
  state.folder = origin.folder;
  state.initial = origin.initial;
  state.tokenizer = origin.tokenizer;
  if (!model.is_checkpoint()) {
    const std::string name = tokenizer == nullptr ? "" : tokenizer->identity().name;
    state.deck = deck_of_model(origin.model, origin.dtype, origin.micro_batch, name, ranks);
    if (tokenizer != nullptr) state.tokenizer = tokenizer->identity();
  }
  CheckpointContent content;
  const ParameterTable table = parameters_of(origin.model);
  for (const Parameter& parameter : table.parameters()) {
    const TensorInfo info{.name = parameter.name, .shape = parameter.shape};
    std::vector<std::int64_t> stride(info.shape.size(), 1);
    for (std::size_t d = stride.size() - 1; d-- > 0;) stride[d] = stride[d + 1] * info.shape[d + 1];
    const auto source = [&read, info](std::int64_t first, std::span<float> values) {
      std::vector<TensorPart> parts;
      for (PlacedBox& box : boxes_of_range(info.shape, first, first + std::ssize(values)))
        parts.push_back(
            {.box = std::move(box.box), .data = values.data() + box.offset, .stride = std::move(box.stride)});
      read(info, parts);
    };
    content.tensors.push_back(
        {.file = "weights.h5",
         .info = info,
         .parts = {{.box = Box::whole(info.shape), .data = nullptr, .stride = stride, .source = source}}});
  }
  content.state = {.step = origin.step, .json = state_text(state)};
  CheckpointStore store(io, io, folder, {});
  store.write(content);
  store.finish();
  return store.path_of(origin.step);
}

int run(const CommandLine& line) {
  const fs::path from = line.argument(0, "a run, a checkpoint, a Hugging Face folder or an llm.c file");
  const fs::path to = line.argument(1, "the name of the result");
  const Target target = parse_target(line);
  const std::optional<DType> dtype = dtype_option(line);
  if (target == Target::checkpoint && dtype.value_or(DType::fp32) != DType::fp32)
    fail(ExitCode::usage, "--dtype={}: a checkpoint is always in fp32", name_of(*dtype));
  std::optional<std::int64_t> step;
  if (line.has("step")) step = parse_step("step", line.text("step"));
  Output output(to);
  IoThread io;
  const StopSignals signals;
  const OpenedModel model(io, from, line.has("step"), step,
                          [](const std::string& text) { say(stderr, "warning: {}\n", text); });
  const ModelOrigin& origin = model.origin();
  const bool has_experts = origin.model.experts.count > 0;
  if (target != Target::checkpoint && (has_experts || origin.model.depths.capacity > 0.0))
    fail(ExitCode::usage, "{} has {}, for which {} has no place", from.string(),
         has_experts ? "experts" : "routed blocks",
         target == Target::llmc ? "llm.c's format" : "Hugging Face's format of GPT-2");
  const auto check_signals = [&] {
    if (signals.received() != 0) fail(ExitCode::preempted, "stopped by a signal: nothing was written");
  };
  const Read read = [&](const TensorInfo& tensor, const std::vector<TensorPart>& parts) {
    check_signals();
    model.read(tensor, parts);
  };
  const ModelSource weights{.model = origin.model, .read = read};
  ModelWriteOptions options{.dtype = dtype.value_or(origin.dtype)};
  std::shared_ptr<const Tokenizer> tokenizer;
  fs::path written = output.temporary();
  switch (target) {
    case Target::hugging_face:
      tokenizer = tokenizer_of(line, model);
      options.metadata = {{"mylos", code_version()}, {"mylos_source", fs::absolute(from).string()}};
      if (model.is_checkpoint()) options.metadata.emplace_back("mylos_step", std::to_string(origin.step));
      if (tokenizer != nullptr) options.end_of_text = tokenizer->end_of_text();
      make_directory(output.temporary());
      write_hugging_face(weights, options, output.temporary());
      if (tokenizer != nullptr) write_tokenizer_files(output.temporary(), *tokenizer, origin.model.context);
      break;
    case Target::llmc:
      check_llmc_model(origin.model, options.dtype);
      write_llmc(weights, options, output.temporary());
      break;
    case Target::checkpoint: {
      tokenizer = tokenizer_of(line, model);
      const std::string ranks = line.has("ranks") ? fs::absolute(expand_path(line.text("ranks"))).string()
                                : tokenizer != nullptr && !tokenizer->identity().ranks.empty()
                                    ? fs::absolute(from).string()
                                    : "";
      make_directory(output.temporary());
      written = write_checkpoint(io, model, read, tokenizer.get(), ranks, output.temporary());
      break;
    }
  }
  check_signals();  // writes may come after the last read
  output.commit(written);
  fmt::print("{}: {}, from {} ({})\n", to.string(),
             target == Target::hugging_face ? "Hugging Face folder"
             : target == Target::llmc       ? "llm.c file"
                                            : "checkpoint",
             from.string(), origin.kind);
  return 0;
}

}  // namespace

const Command convert_command{
    .name = "convert",
    .arguments = "RUN|CHECKPOINT|FOLDER|FILE RESULT",
    .summary = "write a model as a Hugging Face folder, an llm.c file or a checkpoint",
    .options = options,
    .run = run,
    .max_arguments = 2,
    .processes = Processes::only};

}  // namespace mylos
