// SPDX-License-Identifier: BSD-3-Clause
#include "app/inference.hpp"

#include <cstdlib>

#include "app/model_state.hpp"
#include "app/run_state.hpp"
#include "core/base/say.hpp"
#include "parallel/engine/unit_events.hpp"

namespace mylos {

namespace {

/// Returns whether `path` is a checkpoint. Throws ExitCode::bad_data if it is not a run directory either.
/// Called on one rank.
bool is_checkpoint(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "manifest.json")) return true;
  if (!std::filesystem::exists(path)) fail(ExitCode::bad_data, "{} does not exist", path.string());
  if (!std::filesystem::exists(path / "checkpoints")) {
    fail(ExitCode::bad_data, "{} is neither a run directory nor a checkpoint", path.string());
  }
  return false;
}

/// Opens the checkpoint that the command line names: directly if `is_one`, otherwise by its run directory.
/// Collective: all ranks throw the same error.
CheckpointReader open_checkpoint(IoThread& io, const CommandLine& line, bool is_one, bool warns) {
  const std::filesystem::path path = line.argument(0, "a run directory or a checkpoint");
  if (is_one) {
    if (line.has("step"))
      fail(ExitCode::usage, "--step chooses among the checkpoints of a run, but {} is one", path.string());
    return {io, path};
  }
  const std::filesystem::path directory = path / "checkpoints";
  std::optional<std::int64_t> step;
  if (line.has("step")) step = line.integer("step");
  auto reader = open_newest(io, directory, step, [&](const std::string& text) {
    if (warns) say(stderr, "warning: {}\n", text);
  });
  if (!reader) fail(ExitCode::bad_data, "{} holds no checkpoint", directory.string());
  return std::move(*reader);
}

/// Returns the extent of the tensor axis in the checkpoint's deck if it divides `ranks`, otherwise 1.
int tensor_ranks(const std::string& deck_text, int ranks) {
  DeckErrors ignored;
  const Deck deck = Deck::parse(deck_text, "the checkpoint's deck", ignored);
  const DeckEntry* entry = deck.find("parallel.tensor");
  const int wanted = entry == nullptr ? 1 : std::atoi(entry->value.c_str());
  return wanted > 0 && ranks % wanted == 0 ? wanted : 1;
}

/// Returns the setup of the deck that the checkpoint was trained with, adapted to this job's ranks and
/// backends. The tensor axis divides the blocks as in training if the number of ranks allows it, but not the
/// vocabulary or the rows of the residual stream.
Setup setup_of(const CheckpointReader& reader, const CommandLine& line, const MpiRuntime& mpi,
               std::int64_t batch) {
  const RunState state = parse_state(
      reader.state().json, fmt::format("state.json of step {}", reader.state().step), reader.state().step);
  const std::int64_t micro_batch = batch > 0 ? batch : state.micro_batch;
  const int tensor = tensor_ranks(state.deck, mpi.size());
  const int data = mpi.size() / tensor;
  DeckOverrides overrides = {{"parallel.data", std::to_string(data)},
                             {"parallel.tensor", std::to_string(tensor)},
                             {"parallel.vocab", "false"},
                             {"parallel.sequence", "false"},
                             {"parallel.shard", "0"},
                             {"train.micro_batch", std::to_string(micro_batch)},
                             {"train.global_batch", std::to_string(micro_batch * data)},
                             {"train.grad_dtype", "auto"},
                             {"backend.compute", "auto"},
                             {"backend.comm", "auto"},
                             {"backend.threads", "0"}};
  for (const auto& [key, value] : line.overrides) {
    if (!key.starts_with("comm.") && !key.starts_with("backend.") && !key.starts_with("io."))
      fail(ExitCode::usage, "--{}: only [comm], [backend] and [io] can be changed for a checkpoint", key);
    overrides.emplace_back(key, value);
  }
  Setup setup = make_setup(state.deck, "the checkpoint's deck", overrides, line.text("plugin-path"),
                           mpi.job(), DeckOrigin::checkpoint);
  setup.choose(mpi.size(), mpi.thread_limits());
  return setup;
}

}  // namespace

int with_inference(const CommandLine& line, std::int64_t batch,
                   const std::function<int(const MpiRuntime&, Inference&)>& work) {
  const MpiRuntime mpi(start_timeout(line, ""));
  Inference model;
  try {
    model.io = std::make_unique<IoThread>();
    std::string kind;
    const auto look = [&] {
      if (mpi.rank() == 0 && is_checkpoint(line.argument(0, "a run directory or a checkpoint")))
        kind = "checkpoint";
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
    if (const int code = run_agreed(mpi, [&] { model.setup = setup_of(*reader, line, mpi, batch); }))
      return code;
    if (const int code = check_identity(mpi, identity_of(model.setup, line))) return code;
    const RunConfig& config = model.setup.config;
    mpi.set_limits(config.comm.limits);
    if (const int code = fall_back_to_mpi(mpi, model.setup)) return code;
    model.step = reader->state().step;
    model.session =
        std::make_unique<Session>(model.setup.plugins, config, model.setup.values, mpi.recorder());
    Session& session = *model.session;
    const Coordinates& coordinates = session.grid().coordinates();
    model.table = std::make_unique<ParameterTable>(config.table(coordinates));
    const Schedule no_training;
    ModelPrograms programs =
        record_programs(config.model, *model.table, config.programs(no_training, coordinates));
    const ExchangeScope scope{.table = *model.table,
                              .coordinates = coordinates,
                              .compute_type = config.train.dtype,
                              .events = unit_events_of(no_training, programs)};
    model.exchange = config.parallel.exchange->make(config.parallel.values, scope, session.compute(),
                                                    session.ledger(), session.grid());
    restore_weights(session.compute(), *model.table, *reader, *model.exchange);
    model.executor =
        std::make_unique<ModelExecutor>(session.compute(), session.ledger(), session.grid(), *model.exchange,
                                        no_training, std::move(programs), config.model, config.train.shape());
    return work(mpi, model);
  } catch (const std::exception& error) {
    return end_job(mpi, error, [](ExitCode, const std::string&) {});
  }
}

}  // namespace mylos
