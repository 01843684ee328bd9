// SPDX-License-Identifier: BSD-3-Clause
#include "app/inference.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "app/model_state.hpp"
#include "app/run_directory.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "io/file_util.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// Returns the number in `text` if it divides `ranks`, otherwise 1.
int divisor(const std::string& text, int ranks) {
  const int wanted = std::atoi(text.c_str());
  return wanted > 0 && ranks % wanted == 0 ? wanted : 1;
}

/// Throws ExitCode::usage if the names of the run's validation data cannot be used here.
void check_valid(const std::string& valid) {
  if (valid.empty()) return;
  try {
    parse_validation_sources(valid);
  } catch (const Error& error) {
    fail(ExitCode::usage, "[data] valid of the run: {}; name the files with --data", error.what());
  }
}

/// The deck parameters that can be changed for a model.
bool may_change(std::string_view key) {
  constexpr std::string_view own[] = {"parallel.tensor", "parallel.vocab", "parallel.exchange",
                                      "parallel.pipeline", "parallel.stages"};
  return key.starts_with("comm.") || key.starts_with("backend.") || key.starts_with("io.") ||
         std::ranges::find(own, key) != std::end(own);
}

/// Returns the setup of the deck of the model, adapted to this job's ranks and backends. Unless the user says
/// otherwise, the tensor axis divides the blocks as in training if the number of ranks allows it, but not the
/// vocabulary, and every data rank holds the weights whole. The rows of the residual stream are not divided.
Setup setup_of(const OpenedModel& source, const CommandLine& line, const MpiRuntime& mpi,
               const InferenceWork& work) {
  const ModelOrigin& origin = source.origin();
  for (const auto& [key, value] : line.overrides) {
    if (!may_change(key))
      fail(ExitCode::usage,
           "--{}: only [comm], [backend], [io] and [parallel] tensor, vocab, exchange, pipeline and stages "
           "can "
           "be changed for a model",
           key);
  }
  const std::optional<DType> dtype = dtype_option(line);
  const std::int64_t micro_batch = work.batch > 0 ? work.batch : origin.micro_batch;
  // The deck's check reports numbers that are no divisors.
  int pipeline = 1;
  std::string wanted_tensor = origin.deck_value("parallel.tensor");
  for (const auto& [key, value] : line.overrides) {
    if (key == "parallel.pipeline") pipeline = divisor(value, mpi.size());
    if (key == "parallel.tensor") wanted_tensor = value;
  }
  const int tensor = divisor(wanted_tensor, mpi.size() / pipeline);
  const int data = mpi.size() / pipeline / tensor;
  const int expert = divisor(origin.deck_value("parallel.expert"), data);
  DeckOverrides own = {{"parallel.data", std::to_string(data)},
                       {"parallel.tensor", std::to_string(tensor)},
                       {"parallel.vocab", "false"},
                       {"parallel.sequence", "false"},
                       {"parallel.exchange", "ddp"},
                       {"parallel.shard", "0"},
                       {"parallel.expert", std::to_string(expert)},
                       {"parallel.pipeline", std::to_string(pipeline)},
                       {"parallel.chunks", "1"},
                       {"parallel.schedule", "accumulate"},
                       {"parallel.replicas", ""},
                       {"parallel.vertical_sync", "false"},
                       {"parallel.emulated_stages", "1"},
                       {"optim.clip_scope", "model"},
                       {"parallel.schedule_file", ""},
                       {"parallel.stages", "auto"},
                       {"train.micro_batch", std::to_string(micro_batch)},
                       {"train.global_batch", std::to_string(micro_batch * data)},
                       {"train.grad_dtype", "auto"},
                       {"backend.compute", "auto"},
                       {"backend.comm", "auto"},
                       {"backend.threads", "0"},
                       // Unused here; their paths may begin with a variable that is not set here.
                       {"data.train", "unused"},
                       {"data.ranks", ""},
                       {"eval.every", "0"},
                       {"eval.choices", ""},
                       {"model.init", ""},
                       {"checkpoint.dir", ""},
                       {"run.dir", "unused"}};
  if (!work.needs_valid) own.emplace_back("data.valid", "");
  if (dtype) own.insert(own.end(), {{"train.dtype", line.text("dtype")}, {"optim.master", "fp32"}});
  if (work.needs_valid) check_valid(origin.deck_value("data.valid"));
  const auto setup_with = [&](const DeckOverrides& overrides, DeckOrigin from) {
    return make_setup(origin.deck, origin.deck_name, overrides, line.text("plugin-path"), mpi.job(), from);
  };
  // A problem without the user's parameters is one of the model.
  const bool is_changed = !line.overrides.empty() || dtype;
  Setup setup = setup_with(own, is_changed ? DeckOrigin::checkpoint_changed : DeckOrigin::checkpoint);
  if (!line.overrides.empty()) {
    for (const auto& [key, value] : line.overrides)
      std::erase_if(own, [&](const auto& other) { return other.first == key; });
    own.insert(own.end(), line.overrides.begin(), line.overrides.end());
    setup = setup_with(own, DeckOrigin::checkpoint_changed);
  }
  setup.config.folder = origin.folder;
  setup.choose(mpi.size(), mpi.thread_limits());
  return setup;
}

/// Finds the validation data, whose relative paths begin where the run was started or, if they are not there,
/// here. Throws ExitCode::usage if they are in neither place.
void find_valid(Setup& setup, bool speaks) {
  const std::string& folder = setup.config.folder;
  std::vector<DataSource>& valid = setup.config.data.valid;
  const std::string text = valid.empty() ? "" : valid.front().text;
  if (start_from(folder, false, valid)) {
    if (speaks)
      say(stderr, "mylos: [data] valid = {} begins in {}, where the run was started\n", text, folder);
    return;
  }
  try {
    for (const DataSource& source : valid) files_of(source);
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    fail(ExitCode::usage, "[data] valid of the run: {}, neither here nor {}; name the files with --data",
         error.what(),
         folder.empty() ? "known elsewhere" : fmt::format("in {}, where the run was started", folder));
  }
}

int infer(const MpiRuntime& mpi, const CommandLine& line, const InferenceWork& work) {
  Inference model;
  try {
    model.io = std::make_unique<IoThread>();
    std::optional<std::int64_t> step;
    const auto look = [&] {
      line.argument(0, "a run directory, a checkpoint, a Hugging Face folder or an llm.c file");
      if (line.has("step")) step = parse_step("step", line.text("step"));
    };
    if (const int code = run_agreed(mpi, look)) return code;
    try {
      model.source = std::make_unique<OpenedModel>(*model.io, line.arguments.front(), line.has("step"), step,
                                                   [&](const std::string& text) {
                                                     if (mpi.rank() == 0) say(stderr, "warning: {}\n", text);
                                                   });
    } catch (const Error& error) {
      if (mpi.rank() == 0) say(stderr, "mylos: {}\n", error.what());
      return static_cast<int>(error.code());
    }
    std::string identity;
    const auto set_up = [&] {
      model.setup = setup_of(*model.source, line, mpi, work);
      find_valid(model.setup, mpi.rank() == 0);
      identity = identity_of(model.setup, line);
      if (!model.source->is_checkpoint()) identity += model.source->identity();
    };
    if (const int code = run_agreed(mpi, set_up)) return code;
    if (const int code = check_identity(mpi, identity)) return code;
    mpi.set_limits(model.setup.config.comm.limits);
    if (const int code = fall_back_to_mpi(mpi, model.setup)) return code;
    if (const int code = work.prepare(mpi, model)) return code;
    const RunConfig& config = model.setup.config;
    model.session =
        std::make_unique<Session>(model.setup.plugins, config, model.setup.values, mpi.recorder());
    Session& session = *model.session;
    model.program =
        std::make_unique<CheckedProgram>(session.compute(), session.grid(), config, RankRole::inference);
    model.executor = std::make_unique<ModelExecutor>(session.compute(), session.ledger(), session.grid(),
                                                     *model.program, has_graphs(config, session.compute()));
    model.state = std::make_unique<RankState>(*model.program, *model.executor);
    const auto read = [&](const TensorInfo& tensor, const std::vector<TensorPart>& parts) {
      model.source->read(tensor, parts);
    };
    restore_weights(session.compute(), read, *model.state);
    return work.run(mpi, model);
  } catch (const std::exception& error) {
    return end_job(mpi, error, [](ExitCode, const std::string&) {});
  }
}

}  // namespace

std::vector<CommandOption> inference_options() {
  return {
      step_option(),
      {"dtype", OptionKind::text,
       "type in which the model computes: fp32, bf16 or fp16; that of the run or the file by default"},
      {"ranks", OptionKind::text,
       "GPT-2's merge ranks, instead of the run's copy: a .tiktoken file, vocab.json next to merges.txt, "
       "or the folder that contains both"},
  };
}

fs::path output_file(const CommandLine& line, const std::string& option, std::span<const fs::path> inputs) {
  fs::path file = follow_links(expand_path(line.text(option)));
  if (file.empty()) fail(ExitCode::usage, "--{} is empty; name a file", option);
  for (const fs::path& input : inputs) {
    if (is_same_file(file, input))
      fail(ExitCode::usage, "--{}={} is one of the inputs; name another file", option, file.string());
  }
  const std::string_view own = own_kind(file);
  if (!own.empty() && !fs::is_directory(file))
    fail(ExitCode::usage, "--{}={} is a {}; name another file", option, file.string(), own);
  std::error_code unknown;
  const fs::path model = line.arguments.at(0);
  const bool is_in_model = place_of(file).parent_path() == place_of(model);
  if (is_same_file(file, model) || (is_in_model && fs::is_regular_file(file, unknown)))
    fail(ExitCode::usage, "--{}={} is a file of the model; name another file", option, file.string());
  if (!fs::is_other(file, unknown)) try_output(file);
  return file;
}

std::string input_file(const CommandLine& line, const std::string& option) {
  std::string file = expand_path(line.text(option));
  if (file.empty()) fail(ExitCode::usage, "--{} is empty; name a file", option);
  std::error_code unknown;
  if (!fs::exists(file, unknown))
    fail(ExitCode::usage, "--{}={} cannot be read: there is {}", option, file, what_is_at(file));
  return file;
}

std::vector<std::string> gather_lines(Inference& model, const std::string& own) {
  const std::vector<std::string> by_rank = model.session->gather(own);
  const ParallelLayout& layout = model.setup.config.parallel;
  std::vector<std::vector<std::string>> lists;
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Coordinates at = layout.coordinates(static_cast<int>(rank));
    if (at.index(Axis::tensor) > 0 || !at.has_last_chunk()) continue;
    std::vector<std::string>& lines = lists.emplace_back();
    for (const std::string_view line : lines_of(by_rank[rank])) lines.push_back(fmt::format("{}\n", line));
    count += lines.size();
  }
  std::vector<std::string> ordered;
  for (std::size_t i = 0; i < count; ++i) ordered.push_back(lists[i % lists.size()][i / lists.size()]);
  return ordered;
}

int with_inference(const CommandLine& line, const InferenceWork& work) {
  return with_mpi(start_timeout(line, ""), [&](const MpiRuntime& mpi) {
    const int code = infer(mpi, line, work);
    if (code == static_cast<int>(ExitCode::io)) return code;
    const int lost = run_agreed(mpi, flush_output);
    return lost != 0 ? lost : code;
  });
}

}  // namespace mylos
