// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/trainer.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "app/deck/command_line.hpp"
#include "app/deck/deck_changes.hpp"
#include "app/train/model_state.hpp"
#include "app/train/traced_schedule.hpp"
#include "core/base/number_text.hpp"
#include "io/report/chrome_trace.hpp"
#include "parallel/gather_values.hpp"
#include "parallel/plan/run_plan.hpp"
#include "parallel/plan/unit_costs.hpp"
#include "parallel/plan/unit_times.hpp"

namespace mylos {

namespace {

/// The steps from one whose measurements end the run to the last one, which other stages may have begun.
std::int64_t lag_of(const RunConfig& config) {
  const ParallelLayout& layout = config.parallel;
  return layout.is_asynchronous() ? layout.most_ahead(config.train.accumulation) + 2 : 0;
}

}  // namespace

Trainer::Trainer(TrainerContext context)
    : context_(std::move(context)),
      session_(context_.session),
      config_(context_.config),
      console_(context_.console),
      backend_(session_.compute()),
      program_(backend_, session_.grid(), config_),
      training_(backend_, session_.ledger(), session_.grid(), program_, session_.trace()),
      checkpoints_({.session = session_,
                    .training = training_,
                    .config = config_.checkpoint,
                    .directory = context_.paths.checkpoints(),
                    .io = context_.checkpoint_io,
                    .hdf5 = context_.io,
                    .hook = [this](CheckpointPhase phase,
                                   std::int64_t step) { context_.fault.at(Fault::phase_of(phase), step); },
                    .warn = [this](const std::string& text) { console_.warn(text); },
                    .on_written = [this](const WrittenCheckpoint& written,
                                         double stall) { note_written(written, stall); }}),
      // One step runs before the clock is read again, and the steps that are queued or begun by then run too.
      wall_clock_limit_(config_.limits.seconds(context_.launched.unix_seconds),
                        training_.table().num_parameters(),
                        1 + training_.num_to_leave_unread() + static_cast<std::size_t>(lag_of(config_))),
      last_step_(config_.limits.last_step()),
      step_(context_.step),
      read_(context_.samples.dataset()),
      is_asynchronous_(config_.parallel.is_asynchronous()),
      lag_(lag_of(config_)) {
  guard_.loss_scale = config_.train.loss_scale;
}

void Trainer::start(const std::optional<std::string>& restart) {
  checkpoints_.store().check_file_system();
  const auto begin = Clock::now();
  std::optional<CheckpointReader> reader;
  if (restart) {
    const std::optional<std::int64_t> named = parse_step("restart", *restart);
    reader = open_newest(context_.io, context_.paths.checkpoints(), named,
                         [&](const std::string& text) { console_.warn(text); });
    if (!reader)
      console_.warn(
          fmt::format("{} has no checkpoint: starting at step 0", context_.paths.checkpoints().string()));
  }
  if (reader) {
    restore_from(*reader);
    checkpoints_.store().abandon_after(step_);
  } else {
    begin_with_initial_weights();
  }
  warn_of_idle_settings();
  const double launch_seconds = seconds_since(context_.launched.clock);
  const double restore_seconds = reader ? seconds_since(begin) : 0.0;

  if (session_.rank() == 0) {
    set_aside_traces();
    metrics_ = std::make_unique<MetricsWriter>(context_.io, context_.paths.metrics(),
                                               [this](const std::string& text) { console_.warn(text); });
    const std::int64_t evaluated = evaluation_due_ ? step_ - 1 : step_.load();
    metrics_->truncate_after(step_, evaluated);
    if (config_.has_tensorboard) {
      tensorboard_ = std::make_unique<TensorBoard>(
          context_.io, context_.paths, FirstSteps{.training = step_ + 1, .evaluation = evaluated + 1},
          context_.resolved_deck, [this](const std::string& text) { console_.warn(text); });
    }
    metrics_->append("launches", {{"step", static_cast<double>(step_)},
                                  {"unix_time", static_cast<double>(std::time(nullptr))},
                                  {"ranks", static_cast<double>(session_.size())},
                                  {"ranks_per_node", static_cast<double>(config_.ranks_per_node)},
                                  {"threads", static_cast<double>(config_.backend.threads)},
                                  {"peak_tflops", context_.peak_tflops},
                                  {"time_launch", launch_seconds},
                                  {"time_data", context_.data_seconds},
                                  {"time_restore", restore_seconds},
                                  {"tensorboard", config_.has_tensorboard ? 1.0 : 0.0}});
  }
}

void Trainer::begin_with_initial_weights() {
  const Trace::Scope range = session_.trace().record("initial_weights", TraceKind::phase);
  if (config_.init.empty()) return training_.initialise();
  require(context_.initial != nullptr, "the initial weights were opened");
  const OpenedModel& source = *context_.initial;
  // A smaller context takes the first positions.
  const auto read = [&](const TensorInfo& tensor, const std::vector<TensorPart>& parts) {
    TensorInfo whole = tensor;
    if (whole.name == "wpe.weight") whole.shape.front() = source.origin().model.context;
    source.read(whole, parts);
  };
  restore_initial(backend_, read, training_.state());
  training_.state().settle();
  std::uint64_t digest = 0;
  const auto own = static_cast<std::int64_t>(digest_of_weights(backend_, training_.state()));
  for (const std::int64_t term : gather_values(backend_, session_.grid().group(all_axes), {own}))
    digest += static_cast<std::uint64_t>(term);
  initial_ = {.path = config_.init, .kind = source.origin().kind, .digest = fmt::format("{:016x}", digest)};
  console_.line(fmt::format("       initial weights of {}", initial_->text()));
  context_.initial.reset();
}

void Trainer::warn_of_idle_settings() {
  for (const std::string& idle : idle_settings(config_)) console_.warn(idle);
  for (std::int64_t step = step_ + 1; step <= last_step_; ++step) {
    if (config_.lr.peak > 0.0 && learning_rate(config_.lr, step) > 0.0) return;
    if (config_.lr.peak > 0.0 && step < last_step_) continue;
    console_.warn(fmt::format(
        "the learning rate is 0 in all steps that remain, {} to {} ([optim] lr = {}, min_lr = {}): no "
        "weight will change",
        step_ + 1, last_step_, config_.lr.peak, config_.lr.min));
    return;
  }
}

void Trainer::restore_from(CheckpointReader& reader) {
  const Trace::Scope range = session_.trace().record("restore", TraceKind::phase);
  const RunState state = parse_state(
      reader.state().json, checkpoints_.store().path_of(reader.state().step).string() + ": state.json",
      reader.state().step);
  check_continues(state, config_);
  if (!reader.has("optimizer.h5")) {
    fail(ExitCode::bad_data,
         "the checkpoint of step {} holds weights, but no states of the optimizer: a run cannot continue "
         "from it, "
         "but [model] init begins one with its weights",
         reader.state().step);
  }
  step_ = reader.state().step;
  sample_ = state.sample;
  initial_ = state.initial;
  read_.continue_at(sample_, state.read);
  checkpoints_.start_after(step_);
  evaluation_due_ = state.evaluation_due && evaluates_after(step_);
  std::vector<RunChange> changes = deck_changes(state.deck, context_.resolved_deck, context_.specs);
  GuardState guard = state.guard;
  if (config_.guard.scale_window == 0 || has_change(changes, "train.dtype")) {
    guard.loss_scale = config_.train.loss_scale;
    guard.scaled_in_row = 0;
  }
  // check_continues has compared the models themselves: an older deck may lack keys that say the same.
  const auto refused = std::ranges::find_if(changes, [](const RunChange& change) {
    return change.on_restart == OnRestart::refuses && !change.what.starts_with("model.");
  });
  if (refused != changes.end())
    fail(ExitCode::usage, "the checkpoint of step {} holds {}: {}; continue with that one", step_.load(),
         refused->held, text_of(changes));
  if (!may_be_same(state.tokenizer, context_.tokenizer)) {
    fail(ExitCode::usage,
         "the checkpoint of step {} was trained on tokens of {}, but the data are tokens of {}", step_.load(),
         state.tokenizer.text(), context_.tokenizer.text());
  }
  training_.set_guard(guard);
  guard_ = guard;
  const auto note_change = [&](const std::string& what, const std::string& before, const std::string& now,
                               Effect effect = Effect::results) {
    if (before != now) changes.push_back({.what = what, .before = before, .now = now, .effect = effect});
  };
  note_change("compute backend", state.compute, backend_.description());
  note_change("mylos", state.code, code_version());
  if (state.ranks_per_node > 0)  // 0: an older checkpoint, or no such number (JobSize)
    note_change("ranks per node", std::to_string(state.ranks_per_node),
                std::to_string(config_.ranks_per_node));
  if (!state.train_data.empty())
    note_change("content of data.train", state.train_data, context_.samples.dataset().identity(),
                Effect::samples);
  for (const RunChange& change : changes) {
    if (change.effect != Effect::samples) continue;
    console_.warn(fmt::format(
        "{} has changed: the samples of this run will not continue those of the checkpoint", change.what));
  }
  // Older versions serve if they are those that this run's rules ask for.
  const std::string rules = rules_text(config_);
  const bool has_versions = rules == state.versions.rules;
  if (!has_versions && !rules.empty() && !state.versions.rules.empty())
    note_change("older versions of the weights", "used", "the newest instead");
  if (!has_versions && !rules.empty() && state.versions.rules.empty())
    note_change("versions of the weights", "one", "the newest for all micro-batches");
  const KeptVersions versions{.newest = step_, .oldest = has_versions ? state.versions.oldest : step_.load()};
  training_.continue_after(versions.newest, versions.oldest);
  console_.line(fmt::format(
      "continuing at step {} from {}{}", step_.load(), checkpoints_.store().path_of(step_).string(),
      changes.empty() ? ", bitwise" : "; not bitwise, because of: " + text_of(changes)));
  restore(backend_, reader, training_.state(), versions);
}

void Trainer::set_aside_traces() {
  for (const auto& [step, trace] : traces_of(context_.paths)) {
    if (step <= step_) continue;
    const std::filesystem::path name = unused_name(trace.string() + ".abandoned");
    rename_file(trace, name);
    console_.warn(fmt::format("the trace of a later step, {}, is now {}", trace.string(), name.string()));
  }
}

TrainResult Trainer::run() {
  const bool is_idle = step_ == last_step_ && !evaluation_due_;
  if (evaluation_due_) {
    evaluation_due_ = !run_evaluation();
    if (evaluation_due_) return preempted();
  }
  while (step_ < end_step() || !queued_.empty() || !read_steps_.empty()) {
    while (may_queue_step()) queue_step();  // on a device, also the step after the one to be read
    if (!queued_.empty()) read_step();
    while (!read_steps_.empty() &&
           (must_await(read_steps_.front().queued.step) || read_steps_.front().gather.has_arrived())) {
      ReadStep finished = std::move(read_steps_.front());
      read_steps_.pop_front();
      if (std::optional<TrainResult> end = finish_step(std::move(finished))) return *end;
    }
  }
  if (!checkpoints_.has(step_)) write_checkpoint(true);
  flush();
  const bool complete = step_ >= config_.limits.steps;
  std::string message;
  if (is_idle) {
    message =
        fmt::format("nothing was trained, since the run had reached [train] {} = {} before; more steps go on",
                    complete ? "steps" : "stop_step", last_step_);
  }
  return {ExitCode::done, complete ? "done" : "stopped", message, step_};
}

/// Returns whether this rank may not go on without the measurements of a step. What follows from them takes
/// effect `lag_` steps later, so they must be known before a later step than that is begun. By then all ranks
/// have sent theirs, unless one is slow.
bool Trainer::must_await(std::int64_t step) const {
  return is_drained() || step + lag_ <= step_ + training_.program().schedule().ahead();
}

void Trainer::read_step() {
  QueuedStep queued = std::move(queued_.front());
  queued_.pop_front();
  std::vector<TrafficRow> before = subtract(session_.traffic().table(), queued.traffic);
  training_.read_results();
  checkpoints_.poll();
  const StepResults& results = training_.results();
  wall_clock_limit_.note_step(results.seconds);
  if (const std::optional<double> seconds = checkpoints_.seconds_under_way())
    wall_clock_limit_.note_unfinished_checkpoint(*seconds);
  std::vector<int> stages = {0};
  for (int stage = 1; is_asynchronous_ && stage < config_.parallel.pipeline; ++stage)
    stages.push_back(static_cast<int>(config_.parallel.first_rank(stage)));
  StepGather gather(session_, results, own_stop_request(), stages);
  // Of stages that do not wait for each other, later steps are under way when the others' measurements
  // arrive.
  if (is_asynchronous_) queued.traffic = subtract(session_.traffic().table(), before);
  read_steps_.push_back({.queued = std::move(queued),
                         .scalars = results.scalars,
                         .gather = std::move(gather),
                         .before = std::move(before)});
}

std::optional<TrainResult> Trainer::finish_step(ReadStep finished) {
  const StepObservation seen = finished.gather.take();
  const std::int64_t step = finished.queued.step;
  if (!is_asynchronous_) finished.queued.traffic = subtract(session_.traffic().table(), finished.before);
  if (step == config_.profile_step) write_trace();
  StepScalars& scalars = finished.scalars;
  scalars.loss = seen.loss;
  scalars.gradient_norm = seen.gradient_norm;
  scalars.skip = seen.is_skipped ? 1 : 0;
  const std::int64_t skipped_before = guard_.skipped_in_row;
  if (training_.program().schedule().rules.empty()) {
    guard_ = training_.results().guard;
  } else {  // each stage knows only its own
    StepScalars model{.loss_scale = 1.0F};
    const GuardConfig statistics{.clip_norm = 0.0F, .spike_window = config_.guard.spike_window};
    guard_update(statistics, {scalars.loss, scalars.gradient_norm * scalars.gradient_norm}, guard_, model);
  }
  // A skipped step that `skipped_in_row` does not count has overflowed; a smaller loss scale may prevent
  // that.
  const bool is_bad = guard_.skipped_in_row > skipped_before;
  if (is_bad) {
    console_.warn(fmt::format("step {}: update not applied (loss {}, gradient norm {})", step, scalars.loss,
                              scalars.gradient_norm));
  } else if (scalars.skip != 0) {
    console_.warn(fmt::format("step {}: update not applied: a gradient overflowed; the loss scale is now {}",
                              step, guard_.loss_scale));
  }
  const bool guard_stops = is_bad && (config_.guard_settings.policy == GuardPolicy::stop ||
                                      guard_.skipped_in_row >= config_.guard_settings.max_skips);
  if (guard_stops && !failure_) {
    failure_ = {ExitCode::numerical, "failed",
                fmt::format("step {}: loss {}, gradient norm {}: the update was not applied ({} in a row)",
                            step, scalars.loss, scalars.gradient_norm, guard_.skipped_in_row),
                step};
    stop_step_ = std::min(stop_step_, step + lag_);
  }
  if (seen.stop_request != 0 && stop_request_ == 0) {
    stop_request_ = seen.stop_request;
    if (is_asynchronous_) stop_step_ = std::min(stop_step_, step + lag_);
  }
  // Nothing is due after a step if a later one may have changed the weights.
  const bool is_last_queued = step == step_ && is_drained();
  if (failure_ && (is_last_queued || !is_asynchronous_)) {
    record(finished.queued, scalars, seen);
    flush();
    return failure_;
  }
  if (!is_last_queued) {
    record(finished.queued, scalars, seen);
    return std::nullopt;
  }
  const std::int64_t check_every = config_.guard_settings.replica_check_every;
  if (check_every > 0 && step_ % check_every == 0) checkpoints_.check_replicas(step_);
  const bool last = step_ == last_step_;
  // A stop request must not wait for an evaluation; the restart runs it instead.
  evaluation_due_ = evaluates_after(step_) && (stop_request_ != 0 || !run_evaluation());
  checkpoint_due_ =
      checkpoint_due_ || (config_.checkpoint.every > 0 && step_ % config_.checkpoint.every == 0);
  // The step's row is written before its checkpoint, so that no row is missing if the job is killed after
  // the checkpoint.
  record(finished.queued, scalars, seen);
  // A checkpoint that is due waits for an applied step: a skipped step does not change the weights.
  const bool stops = last || stop_request_ != 0;
  if (stops || (checkpoint_due_ && scalars.skip == 0)) write_checkpoint(stops);
  if (stop_request_ != 0 && (!last || evaluation_due_)) return preempted();
  return std::nullopt;
}

TrainResult Trainer::preempted() {
  flush();
  const std::string limit = config_.limits.ends_with_job(context_.launched.unix_seconds)
                                ? "the end of the job is near"
                                : "the wall-clock limit is near";
  const std::string cause =
      stop_request_ == wall_clock_request ? limit : fmt::format("signal {}", stop_request_);
  return {ExitCode::preempted, "preempted",
          fmt::format("{}: stopped at step {} with a checkpoint", cause, step_.load()), step_};
}

bool Trainer::evaluates_after(std::int64_t step) const {
  return (context_.valid_data || context_.choices) &&
         (step == config_.limits.steps || (config_.eval.every > 0 && step % config_.eval.every == 0));
}

/// Returns whether something that needs the results or weights of `step` may be due after it, or whether it
/// or the next step is traced: a traced step runs alone.
bool Trainer::pauses_after(std::int64_t step) const {
  const auto is_due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
  return checkpoint_due_ || is_due(config_.checkpoint.every) || evaluates_after(step) ||
         is_due(config_.guard_settings.replica_check_every) || step == config_.profile_step ||
         step + 1 == config_.profile_step;
}

std::int64_t Trainer::last_to_begin(std::int64_t step) const {
  const std::int64_t last = std::min(end_step(), step + training_.program().schedule().ahead());
  while (step < last && !pauses_after(step)) ++step;
  return step;
}

bool Trainer::may_queue_step() const {
  if (step_ >= end_step()) return false;
  if (queued_.empty()) return read_steps_.empty() || !drains_;
  return queued_.size() <= training_.num_to_leave_unread() && stop_request_ == 0 && !pauses_after(step_);
}

void Trainer::queue_step() {
  ++step_;
  Trace& trace = session_.trace();
  if (step_ == config_.profile_step) {
    session_.world().barrier();  // the ranks' traces begin together
    trace.start();
  }
  const std::vector<TrafficRow> before = session_.traffic().table();
  const std::int64_t last = last_to_begin(step_);
  drains_ = last == step_;
  training_.run(step_, last, *this);
  trace.stop();
  sample_ += config_.train.global_batch;
  queued_.push_back(
      {step_, sample_, subtract(subtract(session_.traffic().table(), before), checkpoints_.take_traffic())});
}

void Trainer::read_samples(std::int64_t step, std::int64_t first, std::span<std::int32_t> tokens) {
  context_.samples.read(sample_ + (step - step_) * config_.train.global_batch + first, tokens);
}

void Trainer::before(const Action& action, std::int64_t step) {
  const int stages = session_.grid().coordinates().extent(Axis::pipeline);
  if (stages == 1) {
    session_.recorder().set_phase(step, name_of(action.kind));
  } else {
    const Schedule& schedule = program_.schedule();
    const bool names_chunk = !is_message(action.kind) && schedule.rules.empty();
    std::array<char, 64> text{};
    auto end = fmt::format_to_n(text.data(), text.size(), "stage {}, {}",
                                session_.grid().coordinates().index(Axis::pipeline),
                                ActionText(action, names_chunk ? schedule.chunks : 0).view());
    if (!schedule.rules.empty() && is_of_micro_batch(action.kind) && !is_message(action.kind)) {
      const std::size_t size = std::min(end.size, text.size());
      end = fmt::format_to_n(text.data() + size, text.size() - size, ", weights {}",
                             training_.version_of(action, step));
      end.size += size;
    }
    session_.recorder().set_phase(step, {text.data(), std::min(end.size, text.size())});
  }
  if (action.kind == ActionKind::step) checkpoints_.write_hashed();
  if (action.kind == ActionKind::forward) inject(action, step);
}

void Trainer::after(const Action& action, std::int64_t step) {
  if (action.kind != ActionKind::forward) inject(action, step);
}

void Trainer::inject(const Action& action, std::int64_t step) {
  const Coordinates& at = session_.grid().coordinates();
  apply_fault(context_.fault.at(name_of(action.kind), step, action.micro_batch), backend_, training_.state(),
              session_.grid().group(at.extent(loss_axes) > 1 ? loss_axes : all_axes));
}

int Trainer::own_stop_request() {
  const int signal = context_.signals.received();
  return signal == 0 && wall_clock_limit_.is_near(seconds_since(context_.launched.clock)) ? wall_clock_request
                                                                                          : signal;
}

int Trainer::agree_on_stop() {
  // A signal takes precedence over the clock.
  std::int64_t request = own_stop_request();
  std::array<std::int64_t, 2> most = {request, -request};
  session_.host_world().all_reduce({most.data(), DType::int64, {2}}, ReduceOp::max).host_wait();
  return static_cast<int>(most[0] > 0 ? most[0] : -most[1]);
}

void Trainer::record(const QueuedStep& finished, const StepScalars& scalars, const StepObservation& seen) {
  const double tokens = static_cast<double>(config_.train.global_batch * config_.train.seq_len);
  const double rate = tokens / seen.seconds_max;
  const double flops_per_token =
      model_flops_per_token(config_.model, training_.table().num_parameters(), config_.train.seq_len);
  const ReadTotals read = read_.at(finished.sample);
  std::vector<double> epochs;
  for (std::size_t i = 0; i < context_.samples.dataset().num_sources(); ++i)
    epochs.push_back(read.sources[i].epochs);
  const StepRecord record = {
      .step = finished.step,
      .steps = config_.limits.steps,
      .tokens = read.tokens,
      .tokens_per_second = rate,
      .mfu = rate * flops_per_token * 1e-12 / (context_.peak_tflops * static_cast<double>(session_.size())),
      .hfu = training_.program().flops_per_step() * 1e-12 / (seen.seconds_max * context_.peak_tflops),
      .scalars = scalars,
      .seen = seen,
      .wait_axes = training_.wait_axes(),
      .traffic = finished.traffic,
      .checkpoint_seconds = checkpoints_.take_seconds(),
      .evaluation_seconds = std::exchange(evaluation_seconds_, 0.0),
      .epochs = std::move(epochs),
      .routing = routing_columns(config_.model, config_.train, seen.statistics)};
  if (metrics_) append("steps", metrics_row(record, session_.ledger()));
  console_.step(record);
}

void Trainer::append(const std::string& table, const MetricsRow& row) {
  if (!metrics_) return;
  // In this order, so that whatever kills the job, no step of the metrics is missing in TensorBoard.
  if (tensorboard_) tensorboard_->append(table, row);
  metrics_->append(table, row);
}

bool Trainer::run_evaluation() {
  session_.recorder().set_phase(step_, "evaluation");
  const Trace::Scope range = session_.trace().record("evaluation", TraceKind::phase);
  const auto start = Clock::now();
  context_.fault.at(Fault::evaluation, step_);
  const auto is_interrupted = [this] { return (stop_request_ = agree_on_stop()) != 0; };
  std::optional<EvalResult> losses;
  std::optional<ChoiceResult> choices;
  bool is_whole = true;
  if (context_.valid_data) {
    losses = evaluate(
        training_.executor(), backend_, *context_.valid_data, session_.grid(),
        {.max_windows = config_.eval.batches * config_.train.global_batch, .is_interrupted = is_interrupted});
    is_whole = losses.has_value();
  }
  if (context_.choices && is_whole) {
    choices = evaluate_choices(training_.executor(), backend_, session_.grid(), config_.cache,
                               *context_.choices, is_interrupted);
    is_whole = choices.has_value();
  }
  if (!is_whole) {
    console_.line(
        fmt::format("step {}: the evaluation was interrupted; a restart will run it", step_.load()));
    return false;
  }
  evaluation_seconds_ += seconds_since(start);
  if (losses) record(*losses);
  if (choices) record(choices->summary);
  return true;
}

void Trainer::record(const EvalResult& result) {
  append("eval", {{"step", static_cast<double>(step_)},
                  {"loss", result.loss},
                  {"accuracy", result.accuracy},
                  {"perplexity", std::exp(result.loss)},
                  {"tokens", static_cast<double>(result.tokens)}});
  console_.line(fmt::format("step {}: validation loss {}, accuracy {:.2f} %, perplexity {} ({} tokens)",
                            step_.load(), decimals(result.loss, 4), 100.0 * result.accuracy,
                            decimals(std::exp(result.loss), 2), result.tokens));
}

void Trainer::record(const ChoiceSummary& choices) {
  append("choices", {{"step", static_cast<double>(step_)},
                     {"examples", static_cast<double>(choices.examples)},
                     {"accuracy", choices.accuracy.mean},
                     {"accuracy_error", choices.accuracy.error},
                     {"normalised_accuracy", choices.normalised_accuracy.mean},
                     {"normalised_accuracy_error", choices.normalised_accuracy.error},
                     {"right_loss", choices.right_token_loss},
                     {"greedy", choices.greedy.mean}});
  console_.line(fmt::format("step {}: {}", step_.load(), choices_text(choices)));
}

RunState Trainer::state() const {
  return {.step = step_,
          .sample = sample_,
          .read = read_.at(sample_),
          .seed = config_.train.seed,
          .model = config_.model,
          .guard = guard_,
          .ranks = session_.size(),
          .micro_batch = config_.train.micro_batch,
          .compute = backend_.description(),
          .deck = context_.resolved_deck,
          .ranks_per_node = config_.ranks_per_node,
          .train_data = context_.samples.dataset().identity(),
          .tokenizer = context_.tokenizer,
          .folder = config_.folder,
          .initial = initial_,
          .versions = {.rules = rules_text(config_), .oldest = training_.oldest_version()},
          .evaluation_due = evaluation_due_};
}

void Trainer::write_checkpoint(bool ends_run) {
  training_.state().settle();
  session_.recorder().set_phase(step_, "checkpoint");
  const Trace::Scope range = session_.trace().record("checkpoint", TraceKind::phase);
  checkpoints_.write(step_, state_text(state()), ends_run);
  checkpoint_due_ = false;
}

void Trainer::note_written(const WrittenCheckpoint& written, double stall_seconds) {
  wall_clock_limit_.note_checkpoint(stall_seconds, written.write_seconds, written.verify_seconds);
  append("checkpoints", {{"step", static_cast<double>(written.step)},
                         {"bytes", static_cast<double>(written.bytes)},
                         {"time_stall", stall_seconds},
                         {"time_write", written.write_seconds},
                         {"time_verify", written.verify_seconds}});
  console_.line(fmt::format("step {}: wrote {} in {:.1f} s, training waited {:.1f} s", written.step,
                            checkpoints_.store().path_of(written.step).string(), written.write_seconds,
                            stall_seconds));
}

void Trainer::flush() {
  training_.state().settle();
  checkpoints_.finish();
  if (metrics_) metrics_->flush();
}

void Trainer::write_trace() {
  const Trace& trace = session_.trace();
  const std::vector<std::string> events = session_.gather(chrome_events(trace.events(), session_.rank()));
  if (trace.num_lost() > 0)
    console_.warn(
        fmt::format("step {}: {} events did not fit into the trace", step_.load(), trace.num_lost()));
  const std::vector<std::string> unit_times = session_.gather(unit_times_text(trace));
  const int stage = session_.grid().coordinates().index(Axis::pipeline);
  const std::vector<std::string> rows =
      session_.gather(json_of(traced_row(trace.events(), session_.rank(), stage)).dump());
  if (session_.rank() != 0) return;
  TraceSummary summary{.profile = profile_of(trace)};
  summary.profile.step = step_;
  try {
    const std::optional<std::vector<UnitCost>> units = with_times(unit_costs(config_), unit_times);
    if (units && config_.parallel.pipeline > 1) summary.diagram = diagram_of(config_, *units, rows);
    write_chrome_trace(context_.paths.trace(step_), events, summary);
    std::string files = context_.paths.trace(step_).string();
    if (units) {
      write_text_file(context_.paths.units(step_), unit_profile_text(*units));
      files += " and " + context_.paths.units(step_).string();
    }
    console_.line(fmt::format("step {}: wrote {}", step_.load(), files));
  } catch (const Error& error) {
    console_.warn(fmt::format("step {}: no trace: {}", step_.load(), error.what()));
  }
}

}  // namespace mylos
