// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/model_executor.hpp"

#include <algorithm>
#include <utility>
#include <variant>

namespace mylos {

namespace {

std::size_t upload_bytes(const BatchShape& shape) {
  return 2 * static_cast<std::size_t>(shape.rows()) * sizeof(std::int32_t);
}

/// The places in `arena` of the activations of each slot.
std::vector<Binding> bindings_of(const ActivationPlan& plan, const Roots& roots, std::byte* arena) {
  std::vector<Binding> bindings(static_cast<std::size_t>(plan.num_slots()));
  for (int slot = 0; slot < plan.num_slots(); ++slot) {
    std::vector<Bound>& bound = bindings[static_cast<std::size_t>(slot)].roots;
    bound.resize(roots.all().size());
    for (int root = 0; root < std::ssize(bound); ++root) {
      if (plan.has(slot, root)) bound[static_cast<std::size_t>(root)].data = arena + plan.offset(slot, root);
    }
  }
  return bindings;
}

}  // namespace

ModelExecutor::ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                             GradientExchange& exchange, const Schedule& schedule, ModelPrograms programs,
                             const ModelConfig& model, const BatchShape& shape, bool graphs)
    : backend_(backend),
      grid_(grid),
      exchange_(exchange),
      schedule_(schedule),
      model_(model),
      shape_(shape),
      programs_(std::move(programs)),
      contributed_(2 * programs_.chunks.size()),
      uploads_{TransferBuffer(backend, upload_bytes(shape)), TransferBuffer(backend, upload_bytes(shape))} {
  const ActivationPlan plan(programs_.roots, passages_of(schedule_, programs_));
  arena_ = DeviceBuffer(backend, ledger, MemoryCategory::activations, plan.bytes(), "mylos::arena");
  bindings_ = bindings_of(plan, programs_.roots, static_cast<std::byte*>(arena_.data()));
  host_losses_.resize(static_cast<std::size_t>(shape.rows()));
  host_correct_.resize(static_cast<std::size_t>(shape.rows()));
  for (std::size_t i = 0; i < schedule_.actions.size(); ++i)
    completes_.push_back(is_backward(schedule_.actions[i].kind) &&
                         (schedule_.is_last(i) || exchange.reduces_each_micro_batch()));
  if (!graphs) return;
  // There is one place for scalars per step in flight.
  const auto places = static_cast<std::size_t>(schedule_.ahead()) + 1;
  for (std::size_t i = 0; i < schedule_.actions.size(); ++i) {
    const Action& action = schedule_.actions[i];
    for (std::size_t each = 0; each < bindings_.size() * places; ++each) {
      std::vector<DeviceGraph>& own = graphs_.emplace_back();
      if (!is_of_micro_batch(action.kind) || is_message(action.kind)) continue;
      for_each_segment(program_of(action, programs_).entries, completes_[i], [&](Entries segment) {
        if (!communicates(segment.front())) own.emplace_back(backend);
      });
    }
  }
}

double ModelExecutor::flops_per_step() const {
  double flops = 0.0;
  for (const Action& action : schedule_.actions) {
    if (!is_of_micro_batch(action.kind) || is_message(action.kind)) continue;
    for (const Entry& entry : program_of(action, programs_).entries) flops += flops_of(entry);
  }
  return flops;
}

std::vector<DeviceGraph>& ModelExecutor::graphs_of(const Occurrence& occurrence) {
  const auto places = static_cast<std::size_t>(schedule_.ahead()) + 1;
  const std::size_t place = static_cast<std::size_t>(occurrence.step) % places;
  return graphs_[(occurrence.index * bindings_.size() + slot_) * places + place];
}

std::byte* ModelExecutor::memory(std::string_view name) const {
  return bindings_[slot_].roots[static_cast<std::size_t>(programs_.roots.find(name))].data;
}

bool ModelExecutor::begin(const Occurrence& occurrence) {
  if (!is_message(schedule_.actions[occurrence.index].kind)) finish_messages();
  slot_ = static_cast<std::size_t>(slots_.of(occurrence));
  return slots_.is_new();
}

void ModelExecutor::load(std::span<const std::int32_t> tokens) {
  const auto t = static_cast<std::size_t>(shape_.seq);
  require(tokens.size() == static_cast<std::size_t>(shape_.batch) * (t + 1),
          "a micro-batch is B rows of T + 1 tokens");
  TransferBuffer& upload = uploads_[next_upload_];
  next_upload_ = 1 - next_upload_;
  auto* inputs = static_cast<std::int32_t*>(upload.data());
  auto* targets = inputs + shape_.rows();
  for (std::size_t b = 0; b < static_cast<std::size_t>(shape_.batch); ++b) {
    const std::int32_t* row = tokens.data() + b * (t + 1);
    std::transform(row, row + t, inputs + b * t, [](std::int32_t token) { return std::max(token, 0); });
    std::copy(row + 1, row + t + 1, targets + b * t);
  }
  const std::size_t bytes = upload_bytes(shape_) / 2;
  upload.upload(0, memory("tokens"), bytes);
  upload.upload(bytes, memory("targets"), bytes);
}

void ModelExecutor::load_evaluation(std::span<const std::int32_t> tokens) {
  slot_ = 0;
  load(tokens);
}

bool ModelExecutor::has_contributed(const Occurrence& occurrence) {
  const Action& action = schedule_.actions[occurrence.index];
  const std::size_t part = action.kind == ActionKind::backward_weight ? 1 : 0;
  return std::exchange(contributed_[2 * static_cast<std::size_t>(action.chunk) + part], occurrence.step) ==
         occurrence.step;
}

void ModelExecutor::acquire(const Entry& entry, const Pass& pass) {
  for (const UnitAccess& access : entry.acquires) {
    const UnitView view = exchange_.acquire(access);
    const auto bound = [&](int root) -> Bound& { return pass.binding.roots[static_cast<std::size_t>(root)]; };
    bound(Roots::weights_root(access.unit)) = {static_cast<std::byte*>(view.weights.data),
                                               view.weights.version};
    bound(Roots::gradients_root(access.unit)) = {static_cast<std::byte*>(view.gradients.data), 0,
                                                 pass.holds_terms};
  }
}

void ModelExecutor::queue(const Entry& entry, const Pass& pass) {
  with_bound(entry, pass.binding, [&]<class Op>(const Op& op) {
    try {
      if constexpr (std::is_same_v<Op, Await>) {
        await(op);
      } else if constexpr (is_collective<Op>) {
        const CommCall call = op.call();
        in_flight_.push_back({call.output.data, call.on(grid_.group(op.group))});
      } else {
        backend_.run(op);
      }
    } catch (const Error& error) {
      fail(error.code(), "{}:{}: {}: {}", entry.where.file_name(), entry.where.line(), Op::name,
           error.what());
    }
  });
}

void ModelExecutor::finish(const Entry& entry, const Pass& pass) {
  if (pass.completes) {
    for (const GradientRange& range : entry.completes) exchange_.gradient_ready(range);
  }
  for (const int unit : entry.releases) exchange_.release(unit);
}

void ModelExecutor::await(const Await& op) {
  const auto found = std::ranges::find(in_flight_, op.output.data, &InFlight::output);
  require(found != in_flight_.end(), "an awaited collective was started");
  found->request.wait();
  in_flight_.erase(found);
}

void ModelExecutor::run_entries(const Pass& pass) {
  for (const Entry& entry : pass.entries) {
    acquire(entry, pass);
    queue(entry, pass);
    finish(entry, pass);
  }
}

bool ModelExecutor::starts_reduction(const Entry& entry, bool completes) const {
  return completes && std::ranges::any_of(entry.completes, [&](const GradientRange& range) {
           return exchange_.starts_reduction(range);
         });
}

void ModelExecutor::for_each_segment(Entries entries, bool completes, const auto& visit) const {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool is_last = i + 1 == entries.size() || communicates(entries[i]) || communicates(entries[i + 1]);
    if (!is_last && !starts_reduction(entries[i], completes)) continue;
    visit(entries.subspan(begin, i + 1 - begin));
    begin = i + 1;
  }
}

void ModelExecutor::run_pass(const Occurrence& occurrence, bool holds_terms, bool as_graphs) {
  const Action& action = schedule_.actions[occurrence.index];
  const Entries entries = program_of(action, programs_).entries;
  const Pass pass{.holds_terms = holds_terms && !exchange_.reduces_each_micro_batch(),
                  .completes = completes_[occurrence.index],
                  .binding = bindings_[slot_],
                  .entries = entries};
  if (!as_graphs || graphs_.empty()) return run_entries(pass);
  auto graph = graphs_of(occurrence).begin();
  for_each_segment(entries, pass.completes, [&](Entries segment) {
    for (const Entry& entry : segment) acquire(entry, pass);
    const auto queue_all = [&] {
      for (const Entry& entry : segment) queue(entry, pass);
    };
    if (communicates(segment.front())) {
      queue_all();
    } else {
      (graph++)->queue(queue_all);
    }
    for (const Entry& entry : segment) finish(entry, pass);
  });
}

Request ModelExecutor::send_or_receive(const Action& action) {
  constexpr int tag = 0;  // messages between two ranks keep their order
  const int root = message_of(action, programs_);
  const auto index = static_cast<std::size_t>(root);
  const TensorRef tensor(bindings_[slot_].roots[index].data, DType::uint8,
                         {static_cast<std::int64_t>(programs_.roots.all()[index].bytes)});
  Communicator& stages = grid_.group({Axis::pipeline});
  return is_sent(action.kind) ? stages.send(tensor, action.peer, tag) : stages.recv(tensor, action.peer, tag);
}

void ModelExecutor::finish_messages() {
  for (Request& message : messages_) message.wait();
  messages_.clear();
}

void ModelExecutor::run(const Occurrence& occurrence, const ActionScope& scope) {
  const Action& action = schedule_.actions[occurrence.index];
  Binding& binding = bindings_[slot_];
  binding.first_sample = scope.first_sample;
  binding.scalars = scope.scalars;
  const bool holds_terms = is_backward(action.kind) && has_contributed(occurrence);
  binding.roots[Roots::loss_sum_root] = {static_cast<std::byte*>(scope.loss_sum.data), 0, holds_terms};
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::backward_input:
    case ActionKind::backward_weight:
      run_pass(occurrence, holds_terms, scope.as_graphs);
      break;
    case ActionKind::send_forward:
    case ActionKind::receive_forward:
    case ActionKind::send_backward:
    case ActionKind::receive_backward:
      messages_.push_back(send_or_receive(action));
      break;
    case ActionKind::reduce:
    case ActionKind::step:
      fail(ExitCode::internal, "{} does not belong to a micro-batch", name_of(action.kind));
  }
  slots_.finish(occurrence);
}

void ModelExecutor::evaluate() {
  exchange_.begin(UnitSequence::evaluation);
  run_entries({.binding = bindings_[slot_], .entries = programs_.evaluate.entries});
  backend_.copy_to_host(memory("losses"), host_losses_.data(), host_losses_.size() * sizeof(float));
  backend_.copy_to_host(memory("correct"), host_correct_.data(), host_correct_.size() * sizeof(std::int32_t));
  backend_.synchronize();
}

std::vector<float> ModelExecutor::logits(std::int64_t row) {
  exchange_.begin(UnitSequence::generation);
  const Entries entries = programs_.generate.entries;
  run_entries({.binding = bindings_[slot_], .entries = entries.first(entries.size() - 1)});
  // The product was recorded for row 0 of its input; move it to the requested row.
  Entry product = entries.back();
  const auto element = static_cast<std::int64_t>(size_of(shape_.dtype));
  auto& [from, w, bias, to] = std::get<LinearForward>(product.operation);
  require(to.shape[1] >= model_.vocab, "generation has the whole vocabulary on each rank");
  from.data = static_cast<std::byte*>(from.data) + row * model_.width * element;
  run_entries({.binding = bindings_[slot_], .entries = {&product, 1}});

  std::vector<std::byte> raw(static_cast<std::size_t>(model_.padded_vocab() * element));
  backend_.copy_to_host(memory("head.logits"), raw.data(), raw.size());
  backend_.synchronize();
  std::vector<float> values(static_cast<std::size_t>(model_.vocab));
  dispatch_float(shape_.dtype, [&]<class T>(T) {
    const T* logits = reinterpret_cast<const T*>(raw.data());
    std::transform(logits, logits + values.size(), values.begin(), [](T x) { return static_cast<float>(x); });
  });
  return values;
}

}  // namespace mylos
