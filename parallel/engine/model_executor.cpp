// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/model_executor.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "core/base/weight_version.hpp"
#include "core/communication/call_site.hpp"

namespace mylos {

namespace {

std::size_t upload_bytes(const BatchShape& shape) {
  return 2 * static_cast<std::size_t>(shape.rows()) * sizeof(std::int32_t);
}

/// Of the inputs of the largest pass over the cache.
std::size_t upload_bytes(const CacheConfig& cache) {
  std::int64_t most = 0;
  for (const CachedPass& pass : cache.passes) most = std::max(most, pass.texts * (2 * pass.tokens + 2));
  return static_cast<std::size_t>(most) * sizeof(std::int32_t);
}

}  // namespace

bool has_graphs(const StepConfig& config, const ComputeBackend& backend) {
  const bool wanted = config.graphs.value_or(backend.can_capture());
  if (wanted && !backend.can_capture())
    fail(ExitCode::usage, "[backend] graphs = true needs a GPU: {} cannot record graphs",
         backend.description());
  return wanted;
}

ModelExecutor::ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                             const RankProgram& program, bool graphs)
    : backend_(backend),
      grid_(grid),
      program_(program),
      graphs_(graphs),
      uploads_{TransferBuffer(backend, upload_bytes(shape())),
               TransferBuffer(backend, upload_bytes(shape()))},
      cached_upload_(backend, upload_bytes(program.config().cache)),
      cached_graphs_(program.cached().size()) {
  allocate(ledger);
  bind_all();
  renew_versions();
  const auto evaluated =
      static_cast<std::size_t>(evaluated_micro_batches()) * static_cast<std::size_t>(shape().rows());
  host_losses_.resize(evaluated);
  host_correct_.resize(evaluated);
  if (!program.has_optimizer()) return;
  const Optimizer& optimizer = program.optimizer();
  const std::vector<Segment>& segments = optimizer.segments();
  backend_.copy_to_device(segments.data(), kept_.at(optimizer.segments_storage()).data(),
                          segments.size() * sizeof(Segment));
  const std::vector<CopiedBlock>& blocks = optimizer.blocks();
  if (!blocks.empty()) {
    backend_.copy_to_device(blocks.data(), kept_.at(optimizer.blocks_storage()).data(),
                            blocks.size() * sizeof(CopiedBlock));
  }
  backend_.synchronize();
}

ModelExecutor::~ModelExecutor() {
  if (std::uncaught_exceptions() == 0) settle();
}

void ModelExecutor::allocate(MemoryLedger& ledger) {
  const auto buffer = [&](MemoryCategory category, std::size_t bytes, const std::string& name,
                          AxisSet window) {
    const std::string label = "mylos::" + name;
    if (window == AxisSet()) return DeviceBuffer(backend_, ledger, category, bytes, label.c_str());
    return DeviceBuffer(backend_, ledger, category, bytes, label.c_str(), grid_.group(window));
  };
  const auto clear = [&](const DeviceBuffer& made, std::size_t bytes) {
    const auto elements = static_cast<std::int64_t>(bytes / sizeof(float));
    backend_.run(Fill{.y = {made.data(), DType::fp32, {elements}}, .value = 0.0F});
  };
  const std::vector<Storage>& storages = program_.storages().all();
  for (int i = 0; i < std::ssize(storages); ++i) {
    const Storage& storage = storages[static_cast<std::size_t>(i)];
    if (!storage.persists || storage.within >= 0) continue;
    DeviceBuffer& made =
        kept_.emplace(i, buffer(storage.category, storage.bytes, storage.name, storage.window)).first->second;
    clear(made, storage.bytes);
  }
  for (const auto& [key, bytes] : program_.places().arenas()) {
    const bool is_of_activations = key.category == MemoryCategory::activations;
    const std::string name = is_of_activations ? "arena" : std::string(name_of(key.category));
    const DeviceBuffer& made =
        arenas_.emplace(key, buffer(key.category, bytes, name, key.window)).first->second;
    if (!is_of_activations) clear(made, bytes);
  }
}

void ModelExecutor::bind_all() {
  const StoragePlan& places = program_.places();
  const Storages& storages = program_.storages();
  bindings_.resize(static_cast<std::size_t>(places.num_slots()));
  for (int slot = 0; slot < places.num_slots(); ++slot) {
    std::vector<Bound>& bound = bindings_[static_cast<std::size_t>(slot)].storages;
    bound.resize(storages.all().size());
    for (int i = 0; i < std::ssize(bound); ++i) {
      std::byte*& data = bound[static_cast<std::size_t>(i)].data;
      const Storage& storage = storages.at(i);
      const auto kept = kept_.find(storage.within >= 0 ? storage.within : i);
      if (kept != kept_.end()) {
        data = static_cast<std::byte*>(kept->second.data()) + storage.begin;
      } else if (places.has(slot, i)) {
        data = static_cast<std::byte*>(arenas_.at(arena_of(storage)).data()) + places.offset(slot, i);
      }
    }
  }
  weights_.resize(static_cast<std::size_t>(program_.table().num_units()));
  newest_.resize(weights_.size());
  for (int unit = 0; unit < program_.table().num_units(); ++unit) {
    for (const int storage : program_.versions_of_weights(unit))
      weights_[static_cast<std::size_t>(unit)].push_back(
          bindings_.front().storages[static_cast<std::size_t>(storage)]);
  }
}

void ModelExecutor::renew_version(int unit) {
  const int storage = Storages::weights_storage(unit);
  if (!program_.storages().at(storage).persists) return;
  std::vector<Bound>& versions = weights_[static_cast<std::size_t>(unit)];
  Bound& newest = versions[place_of_version(versions, newest_[static_cast<std::size_t>(unit)])];
  newest.version = new_weight_version();
  for (Binding& binding : bindings_) binding.storages[static_cast<std::size_t>(storage)] = newest;
}

void ModelExecutor::renew_versions() {
  for (int unit = 0; unit < program_.table().num_units(); ++unit) renew_version(unit);
}

void ModelExecutor::set_version(std::int64_t version) {
  std::ranges::fill(newest_, version);
  for (std::vector<Bound>& versions : weights_) {
    for (Bound& older : versions) {
      if (versions.size() > 1) older.version = new_weight_version();
    }
  }
  renew_versions();
}

void ModelExecutor::bind_weights(int update, std::int64_t version) {
  if (!program_.has_versions()) return;
  std::vector<Bound>& bound = bindings_[slot_].storages;
  for (const int unit : program_.units_of_update(update)) {
    const std::vector<Bound>& versions = weights_[static_cast<std::size_t>(unit)];
    const auto memory_of = [&](std::int64_t own) { return versions[place_of_version(versions, own)]; };
    if (version > 0)
      bound[static_cast<std::size_t>(program_.previous_weights(unit))] = memory_of(version - 1);
    bound[static_cast<std::size_t>(Storages::weights_storage(unit))] = memory_of(version);
  }
}

void ModelExecutor::bind_gradients(std::int64_t step) {
  const int gradients = program_.gradients();
  if (gradients < 0) return;
  const int set = step % 2 == 0 ? gradients : program_.second_gradients();
  auto* data = static_cast<std::byte*>(kept_.at(set).data());
  std::vector<Bound>& bound = bindings_[slot_].storages;
  bound[static_cast<std::size_t>(gradients)].data = data;
  for (int unit = 0; unit < program_.table().num_units(); ++unit) {
    const int storage = Storages::gradients_storage(unit);
    bound[static_cast<std::size_t>(storage)].data = data + program_.storages().at(storage).begin;
  }
}

std::uint64_t ModelExecutor::version(int unit) const {
  const std::vector<Bound>& versions = weights_[static_cast<std::size_t>(unit)];
  return versions[place_of_version(versions, newest_[static_cast<std::size_t>(unit)])].version;
}

TensorRef ModelExecutor::bound(TensorRef recorded, std::int64_t version) const {
  for (int unit = 0; unit < std::ssize(weights_); ++unit) {
    const Place place = mylos::place_of(recorded);
    if (place.storage != Storages::weights_storage(unit)) continue;
    const std::vector<Bound>& versions = weights_[static_cast<std::size_t>(unit)];
    recorded.data = versions[place_of_version(versions, version)].data + place.offset;
  }
  return recorded;
}

TensorRef ModelExecutor::bound(TensorRef recorded) const {
  if (recorded) recorded.data = bindings_.front().at(recorded.data);
  return recorded;
}

std::byte* ModelExecutor::memory(std::string_view name) const {
  const int storage = program_.storages().find(name);
  return storage < 0 ? nullptr : bindings_[slot_].storages[static_cast<std::size_t>(storage)].data;
}

bool ModelExecutor::begin(const Occurrence& occurrence) {
  slot_ = static_cast<std::size_t>(slots_.of(occurrence));
  return slots_.is_new();
}

std::span<std::int32_t> ModelExecutor::next_inputs() {
  next_upload_ = 1 - next_upload_;
  return {static_cast<std::int32_t*>(uploads_[next_upload_].data()),
          2 * static_cast<std::size_t>(shape().rows())};
}

void ModelExecutor::upload_inputs() {
  const std::size_t bytes = upload_bytes(shape()) / 2;
  // A stage may need only one of the two, or none.
  if (std::byte* place = memory("tokens")) uploads_[next_upload_].upload(0, place, bytes);
  if (std::byte* place = memory("targets")) uploads_[next_upload_].upload(bytes, place, bytes);
}

void ModelExecutor::load(std::span<const std::int32_t> tokens) {
  const BatchShape batch = shape();
  const auto t = static_cast<std::size_t>(batch.seq);
  require(tokens.size() == static_cast<std::size_t>(batch.batch) * (t + 1),
          "a micro-batch is B rows of T + 1 tokens");
  std::int32_t* inputs = next_inputs().data();
  std::int32_t* targets = inputs + batch.rows();
  for (std::size_t b = 0; b < static_cast<std::size_t>(batch.batch); ++b) {
    const std::int32_t* row = tokens.data() + b * (t + 1);
    std::transform(row, row + t, inputs + b * t, [](std::int32_t token) { return std::max(token, 0); });
    std::copy(row + 1, row + t + 1, targets + b * t);
  }
  upload_inputs();
}

void ModelExecutor::load_evaluation(std::span<const std::int32_t> tokens, int number) {
  slot_ = static_cast<std::size_t>(number);
  load(tokens);
}

void ModelExecutor::load_evaluation(std::span<const std::int32_t> inputs,
                                    std::span<const std::int32_t> targets, int number) {
  slot_ = static_cast<std::size_t>(number);
  const auto rows = static_cast<std::size_t>(shape().rows());
  require(inputs.size() == rows && targets.size() == rows, "a micro-batch is B rows of T tokens");
  std::int32_t* host = next_inputs().data();
  std::ranges::transform(inputs, host, [](std::int32_t token) { return std::max(token, 0); });
  std::ranges::copy(targets, host + rows);
  upload_inputs();
}

void ModelExecutor::queue(std::string_view name, std::size_t number, const Entry& entry,
                          const Binding& binding) {
  with_bound(entry, binding, [&]<class Op>(const Op& op) {
    try {
      if constexpr (std::is_same_v<Op, Await>) {
        await(op);
      } else if constexpr (is_call<Op>) {
        const CommCall call = op.call();
        Communicator& group = grid_.group(op.group);
        const bool is_of_layer = entry.block <= program_.config().model.layers;
        const CallSite site{.program = name,
                            .number = number,
                            .where = entry.where,
                            .layer = is_of_layer ? entry.block - 1 : -1};
        const CallSiteScope scope(site);
        count(group, 1);
        const bool is_message =
            call.operation == CommOperation::send || call.operation == CommOperation::recv;
        in_flight_.insert_or_assign(call.output.data, InFlight{&group, call.on(group), op.group, is_message});
      } else {
        backend_.run(op);
      }
    } catch (const Error& error) {
      fail(error.code(), "{}:{}: {}: {}", entry.where.file_name(), entry.where.line(), Op::name,
           error.what());
    }
  });
}

void ModelExecutor::await(const Await& op) {
  const auto found = in_flight_.find(op.output.data);
  if (found == in_flight_.end()) return;
  InFlight& call = found->second;
  ActionObserver* observer = call.communicator->size() > 1 ? observer_ : nullptr;
  if (observer != nullptr) observer->begin_wait(call.group, call.is_message);
  call.request.wait();
  if (observer != nullptr) observer->end_wait();
  count(*call.communicator, -1);
  in_flight_.erase(found);
}

void ModelExecutor::count(Communicator& communicator, int calls) {
  const auto found = std::ranges::find(communicators_, &communicator, &std::pair<Communicator*, int>::first);
  if (found == communicators_.end()) {
    communicators_.emplace_back(&communicator, calls);
  } else {
    found->second += calls;
  }
}

void ModelExecutor::progress() {
  for (const auto& [communicator, calls] : communicators_) {
    if (calls > 0) communicator->progress();
  }
}

void ModelExecutor::run_pass(std::string_view name, const Pass& pass) {
  int block = -1;
  std::size_t number = 0;
  for_each_entry(pass, program_.pool(), [&](const Entry& entry, const EntryPlace& place) {
    if (!place.is_inserted && std::exchange(block, entry.block) != entry.block) progress();
    if (!place.is_inserted && observer_ != nullptr) observer_->at_entry(entry);
    queue(name, number++, entry, binding_of(place));
  });
}

void ModelExecutor::run_message(const Action& action, const Pass& pass, bool begins, bool ends) {
  Communicator& stages = grid_.group(call_of(pass.program->entries.front())->group);
  if (begins) stages.begin_messages();
  const int chunks = program_.config().cuts().chunks;
  const bool has_several = chunks > program_.coordinates().extent(Axis::pipeline);
  run_pass(ActionText(action, has_several ? chunks : 0).view(), pass);
  if (ends) stages.end_messages();
}

template <class Visit>
void ModelExecutor::run_list(std::string_view name, const ForwardList& list, const Visit& after) {
  for (std::size_t i = 0; i < list.passes.size(); ++i) {
    slot_ = static_cast<std::size_t>(list.actions[i].micro_batch);
    if (is_message(list.actions[i].kind)) {
      const auto is_message_at = [&](std::size_t at) {
        return at < list.actions.size() && is_message(list.actions[at].kind);
      };
      run_message(list.actions[i], list.passes[i], !is_message_at(i - 1), !is_message_at(i + 1));
    } else {
      run_pass(name, list.passes[i]);
    }
    after(list.actions[i]);
  }
  slot_ = 0;
}

void ModelExecutor::run_as_graphs(std::string_view name, std::span<const Pass> passes,
                                  std::vector<DeviceGraph>& graphs) {
  std::size_t number = 0;
  std::size_t next_graph = 0;
  const auto queue_segment = [&] {
    if (segment_.empty()) return;
    if (next_graph == graphs.size()) graphs.emplace_back(backend_);
    graphs[next_graph++].queue([&] {
      for (const Entry* entry : segment_) queue(name, number, *entry, bindings_[slot_]);
    });
    segment_.clear();
    progress();
  };
  for (const Pass& pass : passes) {
    for_each_entry(pass, program_.pool(), [&](const Entry& entry, const EntryPlace& place) {
      ++number;
      if (!communicates(entry)) return segment_.push_back(&entry);
      queue_segment();
      queue(name, number - 1, entry, binding_of(place));
    });
  }
  queue_segment();
}

void ModelExecutor::run(const Occurrence& occurrence, const ActionScope& scope) {
  const Action& action = program_.schedule().actions[occurrence.index];
  const Pass& pass = program_.pass_of(occurrence.index);
  const bool is_of_slot = is_of_micro_batch(action.kind);
  if (!is_of_slot) slot_ = 0;
  Binding& binding = bindings_[slot_];
  binding.first_sample = scope.first_sample;
  binding.scalars = scope.scalars;
  const bool holds_terms = is_backward(action.kind) && !pass.is_first;
  binding.storages[Storages::guard_input_storage] = {static_cast<std::byte*>(scope.guard_input), 0,
                                                     holds_terms};
  for (int unit = 0; unit < program_.table().num_units(); ++unit) {
    const int storage = Storages::gradients_storage(unit);
    binding.storages[static_cast<std::size_t>(storage)].holds_terms =
        holds_terms && program_.storages().at(storage).persists;
  }
  bind_gradients(occurrence.step);
  const int update = is_message(action.kind) ? 0 : program_.update_of(action.chunk);
  if (action.kind != ActionKind::reduce && !is_message(action.kind)) bind_weights(update, scope.version);
  observer_ = scope.observer;
  const int chunks = program_.schedule().chunks;
  const ActionText text(action, chunks);
  const std::string_view name = chunks > 1 ? text.view() : name_of(action.kind);
  if (is_message(action.kind)) {
    run_message(action, pass, scope.begins_messages, scope.ends_messages);
  } else if (graphs_ && scope.as_graphs) {
    const auto places = static_cast<std::size_t>(program_.schedule().ahead()) + 1;
    const std::size_t place = static_cast<std::size_t>(occurrence.step) % places;
    const std::vector<int>& units = program_.units_of_update(update);
    const std::size_t unit = units.empty() ? 0 : static_cast<std::size_t>(units.front());
    const std::size_t versions = weights_[unit].size();
    const auto sets = static_cast<std::size_t>(program_.schedule().gradient_sets);
    const std::size_t set = static_cast<std::size_t>(occurrence.step) % sets;
    run_as_graphs(
        name, {&pass, 1},
        recorded_[{occurrence.index, slot_,
                   (place * sets + set) * versions + place_of_version(weights_[unit], scope.version)}]);
  } else {
    run_pass(name, pass);
  }
  observer_ = nullptr;
  if (is_of_slot) slots_.finish(occurrence);
  if (action.kind != ActionKind::step) return;
  for (const int unit : program_.units_of_update(update)) {
    newest_[static_cast<std::size_t>(unit)] = scope.version;
    renew_version(unit);
  }
}

void ModelExecutor::publish() {
  slot_ = 0;
  run_pass("publish", program_.publication());
  renew_versions();
}

void ModelExecutor::settle() {
  for (auto& [output, call] : in_flight_) {
    call.request.wait();
    count(*call.communicator, -1);
  }
  in_flight_.clear();
}

void ModelExecutor::evaluate() {
  const auto rows = static_cast<std::size_t>(shape().rows());
  const int last_chunk = program_.config().cuts().chunks - 1;
  // The next micro-batch may overwrite the results.
  run_list("evaluate", program_.evaluation(), [&](const Action& action) {
    if (action.kind != ActionKind::forward || action.chunk != last_chunk) return;
    backend_.copy_to_host(memory("losses"), host_losses_.data() + slot_ * rows, rows * sizeof(float));
    backend_.copy_to_host(memory("correct"), host_correct_.data() + slot_ * rows,
                          rows * sizeof(std::int32_t));
  });
  backend_.synchronize();
}

void ModelExecutor::continue_texts(std::size_t pass, const CachedInput& input) {
  const CacheConfig& cache = program_.config().cache;
  const CachedPass& sizes = cache.passes[pass];
  const auto texts = static_cast<std::size_t>(sizes.texts);
  const std::size_t all = texts * static_cast<std::size_t>(sizes.tokens);
  require(input.tokens.size() == all && input.rows.size() == texts && input.positions.size() == texts &&
              input.targets.size() == (sizes.has_losses ? all : 0),
          "the inputs of a pass over the cache");
  for (std::size_t i = 0; i < texts; ++i) {
    require(input.rows[i] >= 0 && input.rows[i] <= padding_row() && input.positions[i] >= 0 &&
                input.positions[i] + sizes.tokens <= cache.positions,
            "the new tokens lie within the cache");
  }
  slot_ = 0;
  cached_pass_ = pass;
  const std::string prefix = prefix_of(sizes);
  auto* host = static_cast<std::int32_t*>(cached_upload_.data());
  std::size_t begin = 0;
  const auto upload = [&](const char* name, std::span<const std::int32_t> values) {
    std::byte* place = memory(prefix + name);
    if (place == nullptr) return;
    std::ranges::copy(values, host + begin);
    cached_upload_.upload(begin * sizeof(std::int32_t), place, values.size_bytes());
    begin += values.size();
  };
  upload("tokens", input.tokens);
  upload("rows", input.rows);
  upload("positions", input.positions);
  upload("targets", input.targets);
  std::optional<std::vector<DeviceGraph>>& graphs = cached_graphs_[pass];
  constexpr std::string_view name = "continue_texts";
  if (graphs) {
    run_as_graphs(name, program_.cached()[pass].passes, *graphs);
  } else {
    run_list(name, program_.cached()[pass], [](const Action&) {});
    if (!graphs_ || program_.has_versions()) return;
    // What libraries allocate when they first see a pass may replace memory that recorded graphs refer to.
    backend_.synchronize();
    recorded_.clear();
    for (std::optional<std::vector<DeviceGraph>>& other : cached_graphs_) {
      if (other) other->clear();
    }
    graphs.emplace();
  }
}

std::span<const float> ModelExecutor::cached_logits() {
  const CachedPass& sizes = program_.config().cache.passes[cached_pass_];
  const std::string prefix = prefix_of(sizes);
  const std::int64_t vocab = program_.config().model.vocab;
  const auto element = static_cast<std::int64_t>(size_of(shape().dtype));
  const std::byte* all = memory(prefix + "head.logits.all");
  const std::byte* place = all != nullptr ? all : memory(prefix + "head.logits");
  const std::int64_t parts = all != nullptr ? program_.coordinates().extent(Axis::tensor) : 1;
  const int storage = program_.storages().find(prefix + "head.logits");
  const std::int64_t columns =
      static_cast<std::int64_t>(program_.storages().at(storage).bytes) / (sizes.texts * element);
  raw_logits_.resize(static_cast<std::size_t>(parts * sizes.texts * columns * element));
  host_logits_.resize(static_cast<std::size_t>(sizes.texts * vocab));
  backend_.copy_to_host(place, raw_logits_.data(), raw_logits_.size());
  backend_.synchronize();
  dispatch_float(shape().dtype, [&]<class T>(T) {
    const T* logits = reinterpret_cast<const T*>(raw_logits_.data());
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t count = std::clamp<std::int64_t>(vocab - part * columns, 0, columns);
      for (std::int64_t text = 0; text < sizes.texts; ++text) {
        const T* from = logits + (part * sizes.texts + text) * columns;
        std::transform(from, from + count, host_logits_.data() + text * vocab + part * columns,
                       [](T x) { return static_cast<float>(x); });
      }
    }
  });
  return host_logits_;
}

std::pair<std::span<const float>, std::span<const std::int32_t>> ModelExecutor::cached_losses() {
  const CachedPass& sizes = program_.config().cache.passes[cached_pass_];
  require(sizes.has_losses, "the pass computes losses");
  const std::string prefix = prefix_of(sizes);
  const auto count = static_cast<std::size_t>(sizes.texts * sizes.tokens);
  host_losses_.resize(std::max(host_losses_.size(), count));
  host_correct_.resize(std::max(host_correct_.size(), count));
  backend_.copy_to_host(memory(prefix + "losses"), host_losses_.data(), count * sizeof(float));
  backend_.copy_to_host(memory(prefix + "correct"), host_correct_.data(), count * sizeof(std::int32_t));
  backend_.synchronize();
  return {std::span(host_losses_).first(count), std::span(host_correct_).first(count)};
}

}  // namespace mylos
