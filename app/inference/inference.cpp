// SPDX-License-Identifier: BSD-3-Clause
#include "app/inference/inference.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <ranges>

#include "app/deck/unchecked_deck.hpp"
#include "app/launch/run_directory.hpp"
#include "app/train/model_state.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "io/file_util.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/tokens/tokenizer.hpp"
#include "parallel/layout/axis_kinds.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// Returns `wanted` if it divides `ranks`, otherwise 1.
int divisor(std::int64_t wanted, int ranks) {
  return wanted > 0 && ranks % wanted == 0 ? static_cast<int>(wanted) : 1;
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

/// "[backend], [comm] and [parallel] vocab and stages": the keys that can be set for a model, whole sections
/// first.
std::string open_keys_text(std::span<const ParamSpec> specs) {
  std::vector<std::string> sections, others;
  std::vector<std::string_view> seen;
  for (const ParamSpec& first : specs) {
    if (std::ranges::find(seen, first.section) != seen.end()) continue;
    seen.emplace_back(first.section);
    std::vector<std::string> open;
    bool is_whole = true;
    for (const ParamSpec& spec : specs) {
      if (std::string_view(spec.section) != first.section) continue;
      is_whole = is_whole && spec.is_open_in_evaluation;
      if (spec.is_open_in_evaluation) open.emplace_back(spec.name);
    }
    const std::string section = fmt::format("[{}]", first.section);
    if (is_whole) sections.push_back(section);
    if (!is_whole && !open.empty()) others.push_back(fmt::format("{} {}", section, listed(open)));
  }
  sections.insert(sections.end(), others.begin(), others.end());
  return listed(sections);
}

/// Returns the setup of the deck of the model, adapted to this job's ranks and backends. Unless the user says
/// otherwise, the tensor axis divides the blocks as in training if the number of ranks allows it, but not the
/// vocabulary, and every data rank holds the weights whole. The rows of the residual stream are not divided.
Setup setup_of(const OpenedModel& source, const CommandLine& line, const MpiRuntime& mpi,
               const InferenceWork& work) {
  const ModelOrigin& origin = source.origin();
  const std::vector<ParamSpec> specs =
      all_params(PluginRegistry::discover(plugin_search_path(line.text("plugin-path"))));
  for (const auto& [key, value] : line.overrides) {
    const ParamSpec* spec = find_spec(specs, key);  // the deck's check reports unknown keys
    if (spec != nullptr && !spec->is_open_in_evaluation)
      fail(ExitCode::usage, "--{}: only {} can be changed for a model", key, open_keys_text(specs));
  }
  const std::optional<DType> dtype = dtype_option(line);
  const std::int64_t micro_batch = work.batch > 0 ? work.batch : origin.micro_batch;
  const UncheckedDeck wanted(origin.deck, line.overrides);
  const UncheckedDeck given("", line.overrides);
  std::map<std::string, std::string> values;
  // Takes what is wanted of an axis if it divides `ranks`, otherwise 1: the deck's check reports numbers that
  // are no divisors.
  const auto take = [&](const AxisKind& kind, int ranks) {
    const std::string key = key_of(kind.key);
    const bool is_open = kind.key.in_evaluation == nullptr || given.has(key);
    const int extent = divisor(is_open ? wanted.integer(key) : std::stoi(kind.key.in_evaluation), ranks);
    values[key] = std::to_string(extent);
    return extent;
  };
  int data = mpi.size();
  for (const AxisKind* kind : rank_factors({Axis::replicate}) | std::views::reverse)
    data /= take(*kind, data);
  for (const AxisKind* kind : axis_kinds()) {
    if (!kind->multiplies_ranks) take(*kind, data);
  }
  values["parallel.data"] = std::to_string(data);
  values["train.micro_batch"] = std::to_string(micro_batch);
  values["train.global_batch"] = std::to_string(micro_batch * data);
  for (const ParamSpec& spec : specs) {
    if (spec.in_evaluation != nullptr) values.try_emplace(key_of(spec), spec.in_evaluation);
  }
  if (!work.needs_valid) values["data.valid"] = "";
  if (dtype) {
    values["train.dtype"] = line.text("dtype");
    values["optim.master"] = "fp32";
  }
  if (work.needs_valid) check_valid(UncheckedDeck(origin.deck).text("data.valid"));
  const auto setup_with = [&](const DeckOverrides& overrides, DeckOrigin from) {
    return make_setup(origin.deck, origin.deck_name, overrides, line.text("plugin-path"), mpi.job(), shape_at,
                      from);
  };
  // A problem without the user's parameters is one of the model.
  const bool is_changed = !line.overrides.empty() || dtype;
  Setup setup = setup_with({values.begin(), values.end()},
                           is_changed ? DeckOrigin::checkpoint_changed : DeckOrigin::checkpoint);
  if (!line.overrides.empty()) {
    for (const auto& [key, value] : line.overrides) values.erase(key);
    DeckOverrides own(values.begin(), values.end());
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

/// Opens the model that the command line names, with an error on all ranks if it cannot be opened.
void open_model(const Launch& launch, const CommandLine& line, Inference& model) {
  std::optional<std::int64_t> step;
  launch.agree([&] {
    line.argument(0, "a run directory, a checkpoint, a Hugging Face folder or an llm.c file");
    if (line.has("step")) step = parse_step("step", line.text("step"));
  });
  try {
    model.source = std::make_unique<OpenedModel>(*model.io, line.arguments.front(), line.has("step"), step,
                                                 [&](const std::string& text) { launch.warn(text); });
  } catch (const Error& error) {  // the same on all ranks
    if (launch.is_first()) say(stderr, "mylos: {}\n", error.what());
    throw AgreedEnd{static_cast<int>(error.code())};
  }
}

int infer(const Launch& launch, const CommandLine& line, const InferenceWork& work) {
  Inference model;
  return launch.run([&] {
    // 1. The model and its setup on these ranks.
    model.io = std::make_unique<IoThread>();
    open_model(launch, line, model);
    std::string identity;
    launch.agree([&] {
      model.setup = setup_of(*model.source, line, launch.mpi(), work);
      find_valid(model.setup, launch.is_first());
      identity = identity_of(model.setup, line);
      if (!model.source->is_checkpoint()) identity += model.source->identity();
    });
    launch.check_same(identity);
    launch.adopt(model.setup);

    // 2. What the command needs beside it.
    work.prepare(launch, model);

    // 3. The backends, and the weights in their memory.
    const RunConfig& config = model.setup.config;
    model.session =
        std::make_unique<Session>(model.setup.plugins, config, model.setup.values, launch.mpi().recorder());
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

    // 4. The command's own work.
    return work.run(launch, model);
  });
}

}  // namespace

std::vector<CommandOption> inference_options() {
  return {
      step_option(),
      {"dtype", OptionKind::text,
       "type in which the model computes: fp32, bf16 or fp16; that of the run or the file by default"},
      {.name = "ranks",
       .kind = OptionKind::text,
       .doc = "GPT-2's merge ranks, instead of the run's copy: a .tiktoken file, vocab.json next to "
              "merges.txt, or the folder that contains both",
       .may_differ = true},
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
    if (at.index(same_loss_axes) > 0 || !at.has_last_chunk()) continue;
    std::vector<std::string>& lines = lists.emplace_back();
    for (const std::string_view line : lines_of(by_rank[rank])) lines.push_back(fmt::format("{}\n", line));
    count += lines.size();
  }
  std::vector<std::string> ordered;
  for (std::size_t i = 0; i < count; ++i) ordered.push_back(lists[i % lists.size()][i / lists.size()]);
  return ordered;
}

int with_inference(const CommandLine& line, const InferenceWork& work) {
  return with_launch(start_timeout(line, ""), [&](const Launch& launch) {
    const int code = infer(launch, line, work);
    if (code != static_cast<int>(ExitCode::io)) launch.agree(flush_output);
    return code;
  });
}

}  // namespace mylos
