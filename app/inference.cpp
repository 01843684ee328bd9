// SPDX-License-Identifier: BSD-3-Clause
#include "app/inference.hpp"

#include <cstdlib>

#include "app/model_state.hpp"
#include "app/run_state.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"

namespace mylos {

namespace {

/// Returns whether the command line names a checkpoint. Throws ExitCode::bad_data if it does not name a run
/// directory either, ExitCode::usage if it names a checkpoint and, with --step, another one. Called on one
/// rank.
bool is_checkpoint(const CommandLine& line) {
  const std::filesystem::path path = line.argument(0, "a run directory or a checkpoint");
  std::error_code unknown;
  if (std::filesystem::exists(path / "manifest.json", unknown)) {
    if (line.has("step"))
      fail(ExitCode::usage, "--step={} is for a run directory, but {} is a checkpoint", line.text("step"),
           path.string());
    return true;
  }
  if (std::filesystem::exists(path / "checkpoints", unknown)) return false;
  const std::string present = what_is_at(path);
  if (present == "nothing") fail(ExitCode::bad_data, "{} does not exist", path.string());
  fail(ExitCode::bad_data, "{} is neither a run directory nor a checkpoint: there is {}", path.string(),
       present);
}

/// Opens the checkpoint that the command line names: directly if `is_one`, otherwise by its run directory.
/// Collective: all ranks throw the same error.
CheckpointReader open_checkpoint(IoThread& io, const CommandLine& line, bool is_one, bool warns) {
  const std::filesystem::path path = line.argument(0, "a run directory or a checkpoint");
  if (is_one) return {io, path};
  const std::filesystem::path directory = path / "checkpoints";
  std::optional<std::int64_t> step;
  if (line.has("step")) step = parse_step("step", line.text("step"));
  auto reader = open_newest(io, directory, step, [&](const std::string& text) {
    if (warns) say(stderr, "warning: {}\n", text);
  });
  if (!reader) fail(ExitCode::bad_data, "{} holds no checkpoint", directory.string());
  return std::move(*reader);
}

/// What a deck gives for `key`, or "".
std::string value_of(const std::string& deck_text, const char* key) {
  DeckErrors ignored;
  const Deck deck = Deck::parse(deck_text, "the checkpoint's deck", ignored);
  const DeckEntry* entry = deck.find(key);
  return entry != nullptr ? entry->value : "";
}

/// Returns the extent of the tensor axis in the checkpoint's deck if it divides `ranks`, otherwise 1.
int tensor_ranks(const std::string& deck_text, int ranks) {
  const int wanted = std::atoi(value_of(deck_text, "parallel.tensor").c_str());
  return wanted > 0 && ranks % wanted == 0 ? wanted : 1;
}

/// Whether a path can be expanded here.
bool can_expand(const std::string& path) {
  try {
    expand_path(path);
    return true;
  } catch (const Error&) {
    return false;
  }
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

/// Returns the setup of the deck that the checkpoint was trained with, adapted to this job's ranks and
/// backends. The tensor axis divides the blocks as in training if the number of ranks allows it, but not the
/// vocabulary or the rows of the residual stream.
Setup setup_of(const CheckpointReader& reader, const CommandLine& line, const MpiRuntime& mpi,
               std::int64_t batch, bool needs_valid) {
  const RunState state = parse_state(
      reader.state().json, fmt::format("state.json of step {}", reader.state().step), reader.state().step);
  const std::int64_t micro_batch = batch > 0 ? batch : state.micro_batch;
  const int tensor = tensor_ranks(state.deck, mpi.size());
  const int data = mpi.size() / tensor;
  DeckOverrides own = {{"parallel.data", std::to_string(data)},
                       {"parallel.tensor", std::to_string(tensor)},
                       {"parallel.vocab", "false"},
                       {"parallel.sequence", "false"},
                       {"parallel.shard", "0"},
                       {"train.micro_batch", std::to_string(micro_batch)},
                       {"train.global_batch", std::to_string(micro_batch * data)},
                       {"train.grad_dtype", "auto"},
                       {"backend.compute", "auto"},
                       {"backend.comm", "auto"},
                       {"backend.threads", "0"},
                       // Unused here; their paths may begin with a variable that is not set here.
                       {"data.train", "unused"},
                       {"checkpoint.dir", ""},
                       {"run.dir", "unused"}};
  if (!needs_valid) own.insert(own.end(), {{"data.valid", ""}, {"eval.every", "0"}});
  if (needs_valid) check_valid(value_of(state.deck, "data.valid"));
  if (!can_expand(value_of(state.deck, "data.ranks"))) own.emplace_back("data.ranks", "");
  const auto setup_with = [&](const DeckOverrides& overrides, DeckOrigin origin) {
    return make_setup(state.deck, "the checkpoint's deck", overrides, line.text("plugin-path"), mpi.job(),
                      origin);
  };
  // A problem without the user's parameters is one of the checkpoint.
  Setup setup = setup_with(own, DeckOrigin::checkpoint);
  if (!line.overrides.empty()) {
    for (const auto& [key, value] : line.overrides) {
      if (!key.starts_with("comm.") && !key.starts_with("backend.") && !key.starts_with("io."))
        fail(ExitCode::usage, "--{}: only [comm], [backend] and [io] can be changed for a checkpoint", key);
      std::erase_if(own, [&](const auto& other) { return other.first == key; });
    }
    own.insert(own.end(), line.overrides.begin(), line.overrides.end());
    setup = setup_with(own, DeckOrigin::checkpoint_changed);
  }
  setup.config.folder = state.folder;
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

}  // namespace

CommandOption step_option() {
  return {"step", OptionKind::text,
          "with RUN: the checkpoint, N or step_N; the newest undamaged one by default"};
}

namespace {

int infer(const MpiRuntime& mpi, const CommandLine& line, std::int64_t batch, bool needs_valid,
          const std::function<int(const MpiRuntime&, Inference&)>& work) {
  Inference model;
  try {
    model.io = std::make_unique<IoThread>();
    std::string kind;
    const auto look = [&] {
      if (line.has("step")) parse_step("step", line.text("step"));
      if (mpi.rank() == 0 && is_checkpoint(line)) kind = "checkpoint";
    };
    if (const int code = run_agreed(mpi, look)) return code;
    const bool is_one = !mpi.broadcast(kind).empty();
    std::optional<CheckpointReader> reader;
    try {
      reader.emplace(open_checkpoint(*model.io, line, is_one, mpi.rank() == 0));
    } catch (const Error& error) {
      if (mpi.rank() == 0) say(stderr, "mylos: {}\n", error.what());
      return static_cast<int>(error.code());
    }
    const auto set_up = [&] {
      model.setup = setup_of(*reader, line, mpi, batch, needs_valid);
      find_valid(model.setup, mpi.rank() == 0);
    };
    if (const int code = run_agreed(mpi, set_up)) return code;
    if (const int code = check_identity(mpi, identity_of(model.setup, line))) return code;
    const RunConfig& config = model.setup.config;
    mpi.set_limits(config.comm.limits);
    if (const int code = fall_back_to_mpi(mpi, model.setup)) return code;
    model.step = reader->state().step;
    model.session =
        std::make_unique<Session>(model.setup.plugins, config, model.setup.values, mpi.recorder());
    Session& session = *model.session;
    model.program =
        std::make_unique<CheckedProgram>(session.compute(), session.grid(), config, RankRole::inference);
    model.executor =
        std::make_unique<ModelExecutor>(session.compute(), session.ledger(), session.grid(), *model.program);
    model.state = std::make_unique<RankState>(*model.program, *model.executor);
    restore_weights(session.compute(), *reader, *model.state);
    return work(mpi, model);
  } catch (const std::exception& error) {
    return end_job(mpi, error, [](ExitCode, const std::string&) {});
  }
}

}  // namespace

int with_inference(const CommandLine& line, std::int64_t batch, bool needs_valid,
                   const std::function<int(const MpiRuntime&, Inference&)>& work) {
  return with_mpi(start_timeout(line, ""), [&](const MpiRuntime& mpi) {
    const int code = infer(mpi, line, batch, needs_valid, work);
    if (code == static_cast<int>(ExitCode::io)) return code;
    const int lost = run_agreed(mpi, flush_output);
    return lost != 0 ? lost : code;
  });
}

}  // namespace mylos
