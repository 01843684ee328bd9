// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/zero.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/weight_version.hpp"

namespace mylos {

namespace {

constexpr ParamSpec zero1_params[] = {
    text_param(
        "parallel", "shard", "0",
        "Size of the groups of neighbours along the data axis whose ranks divide the states, gradients or "
        "weights (see exchange); node takes the ranks of a node, 0 all ranks of the data axis. If there "
        "are several groups, each holds a whole copy, and gradients are also summed across the groups "
        "(hybrid sharding)."),
};
constexpr ParamSpec zero3_params[] = {
    integer_param("parallel", "prefetch", "1", 0, 1000, "blocks",
                  "Number of blocks by which zero3 gathers weights ahead of their use."),
    boolean_param("parallel", "reshard", "true",
                  "zero3 frees a block's weights after its forward pass and gathers them again for the "
                  "backward pass; false keeps them for it."),
};

template <ZeroStage stage>
ZeroConfig config_of(const ParamValues& values) {
  ZeroConfig config{.stage = stage};
  if (config.divides_weights()) {
    config.prefetch = values.integer("parallel.prefetch");
    config.reshard = values.boolean("parallel.reshard");
  }
  return config;
}

template <ZeroStage stage>
ExchangePlan plan(const ParamValues& values, const ExchangeScope& scope) {
  const ZeroConfig config = config_of<stage>(values);
  const ZeroLayout layout(config, scope);
  const auto bytes = [](std::int64_t elements, DType type) {
    return elements * static_cast<std::int64_t>(size_of(type));
  };
  ExchangePlan plan;
  plan.weight_bytes = bytes(layout.weight_size, scope.compute_type);
  plan.gathered_bytes = bytes(layout.gathered_size, scope.compute_type);
  plan.gradient_bytes = bytes(layout.gradient_size, scope.gradient_type);
  plan.full_gradient_bytes = bytes(layout.full_gradient_size, scope.gradient_type);
  plan.calls = layout.calls;
  plan.owned = layout.owned(scope.table);
  plan.stored =
      share_of(plan.owned, scope.coordinates.extent(replica_axes), scope.coordinates.index(replica_axes));
  plan.reduces_each_micro_batch = config.divides_gradients();
  plan.keeps_weights = !config.divides_weights();
  return plan;
}

template <ZeroStage stage>
std::unique_ptr<GradientExchange> make(const ParamValues& values, const ExchangeScope& scope,
                                       ComputeBackend& backend, MemoryLedger& ledger,
                                       const ProcessGrid& grid) {
  Communicator* replicas = scope.coordinates.extent(replica_axes) > 1 ? &grid.group(replica_axes) : nullptr;
  return std::make_unique<Zero>(config_of<stage>(values), scope, backend, ledger, grid.group({Axis::shard}),
                                replicas);
}

}  // namespace

extern constinit const ExchangeKind zero1_exchange{
    .name = "zero1",
    .doc = "optimizer states are divided among the ranks",
    .params = zero1_params,
    .shards = true,
    .gathers_within_passes = false,
    .plan = plan<ZeroStage::optimizer_states>,
    .make = make<ZeroStage::optimizer_states>,
};
extern constinit const ExchangeKind zero2_exchange{
    .name = "zero2",
    .doc = "optimizer states and gradients are divided",
    .params = {},
    .shards = true,
    .gathers_within_passes = false,
    .plan = plan<ZeroStage::gradients>,
    .make = make<ZeroStage::gradients>,
};
extern constinit const ExchangeKind zero3_exchange{
    .name = "zero3",
    .doc = "optimizer states, gradients and weights are divided",
    .params = zero3_params,
    .shards = true,
    .gathers_within_passes = true,
    .plan = plan<ZeroStage::parameters>,
    .make = make<ZeroStage::parameters>,
};

Zero::Zero(const ZeroConfig& config, const ExchangeScope& scope, ComputeBackend& backend,
           MemoryLedger& ledger, Communicator& shards, Communicator* replicas)
    : GradientExchange(scope.table),
      config_(config),
      backend_(backend),
      compute_type_(scope.compute_type),
      gradient_type_(scope.gradient_type),
      shards_(shards),
      replicas_(replicas),
      layout_(config, scope) {
  const auto num_units = static_cast<std::size_t>(table().num_units());
  const auto buffer = [&](MemoryCategory category, std::int64_t elements, DType type, const char* label,
                          bool is_window) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(type);
    DeviceBuffer made = is_window ? DeviceBuffer(backend, ledger, category, bytes, label, shards)
                                  : DeviceBuffer(backend, ledger, category, bytes, label);
    backend.run(Fill{.y = {made.data(), type, {elements}}, .value = 0.0F});
    return made;
  };
  weights_ = buffer(MemoryCategory::parameters, layout_.weight_size, compute_type_, "mylos::zero::weights",
                    !config.divides_weights());
  if (config.divides_weights()) {
    gathered_ = buffer(MemoryCategory::gathered_weights, layout_.gathered_size, compute_type_,
                       "mylos::zero::gathered_weights", true);
  }
  if (layout_.has_gradients) {
    gradients_ = buffer(MemoryCategory::gradients, layout_.gradient_size, gradient_type_,
                        "mylos::zero::gradients", !config.divides_gradients());
    if (config.divides_gradients()) {
      full_gradients_ = buffer(MemoryCategory::full_gradients, layout_.full_gradient_size, gradient_type_,
                               "mylos::zero::full_gradients", true);
    }
  }
  versions_.resize(num_units);
  publications_.resize(num_units);
  full_gradient_of_.assign(num_units, -1);
  has_sum_.assign(num_units, false);
  sums_.reserve(num_units);
  gathers_.resize(num_units);
  gathered_at_.resize(num_units);
  if (!config.divides_weights()) std::ranges::generate(versions_, new_weight_version);
}

// Does not wait while an exception propagates: the job is about to end, and other ranks may never join the
// collectives.
Zero::~Zero() {
  if (std::uncaught_exceptions() == 0) Zero::settle();
}

TensorRef Zero::whole(const DeviceBuffer& buffer, DType type, int unit) const {
  return TensorRef(buffer.data(), type, {layout_.whole_size})
      .flat(layout_.unit(unit).whole, layout_.padded(unit));
}

TensorRef Zero::own(const DeviceBuffer& buffer, DType type, bool is_divided, int unit) const {
  const std::int64_t part = layout_.unit(unit).part;
  if (!is_divided) return whole(buffer, type, unit).flat(layout_.rank * part, part);
  return TensorRef(buffer.data(), type, {layout_.own_size}).flat(layout_.unit(unit).own, part);
}

TensorRef Zero::weights(const UnitPart& part) const {
  TensorRef view =
      own_weights(part.unit).flat(part.begin - layout_.owned(table(), part.unit).begin, part.count);
  view.version = versions_[static_cast<std::size_t>(part.unit)];
  return view;
}

TensorRef Zero::gradient(const UnitPart& part) const {
  return own_gradient(part.unit).flat(part.begin - layout_.owned(table(), part.unit).begin, part.count);
}

std::vector<UnitPart> Zero::stored() const {
  return replicas_ == nullptr ? owned() : share_of(owned(), replicas_->size(), replicas_->rank());
}

void Zero::begin(UnitSequence sequence) {
  sequence_ = sequence;
  num_acquired_ = 0;
  num_completed_ = 0;
}

UnitView Zero::acquire(const UnitAccess& access) {
  const std::size_t acquisition = sequence().acquisitions.place(num_acquired_++);
  const auto unit = static_cast<std::size_t>(access.unit);
  const std::int64_t size = table().unit(access.unit).size;
  UnitView view;
  if (access.reads_weights && config_.divides_weights()) {
    view.weights = gathered_weights(access.unit, acquisition).flat(0, size);
  } else if (access.reads_weights) {
    publications_[unit].wait();
    view.weights = whole(weights_, compute_type_, access.unit).flat(0, size);
    view.weights.version = versions_[unit];
  }
  if (access.adds_gradients) {
    view.gradients = (config_.divides_gradients() ? begun_gradient(access.unit, acquisition)
                                                  : whole(gradients_, gradient_type_, access.unit))
                         .flat(0, size);
  }
  return view;
}

TensorRef Zero::gathered_weights(int unit, std::size_t acquisition) {
  const auto memory_of = [&](int gathered) {
    return TensorRef(gathered_.data(), compute_type_, {layout_.gathered_size})
        .flat(gathered_at_[static_cast<std::size_t>(gathered)], layout_.padded(gathered));
  };
  for (const ZeroLayout::Gather& gather :
       std::ranges::equal_range(sequence().gathers, acquisition, {}, &ZeroLayout::Gather::start)) {
    const auto index = static_cast<std::size_t>(gather.unit);
    gathered_at_[index] = gather.offset;
    gathers_[index] = shards_.all_gather(own_weights(gather.unit), memory_of(gather.unit));
  }
  gathers_[static_cast<std::size_t>(unit)].wait();
  return memory_of(unit);
}

TensorRef Zero::full_gradient(int unit) const {
  return TensorRef(full_gradients_.data(), gradient_type_, {layout_.full_gradient_size})
      .flat(full_gradient_of_[static_cast<std::size_t>(unit)], layout_.padded(unit));
}

TensorRef Zero::begun_gradient(int unit, std::size_t acquisition) {
  std::int64_t& place = full_gradient_of_[static_cast<std::size_t>(unit)];
  if (place >= 0) return full_gradient(unit);
  if (reduction_ && reduction_->unit == unit) finish_reduction();
  place = sequence().gradients_of[acquisition];
  const TensorRef gradient = full_gradient(unit);
  for (const GradientRange& gap : layout_.unit(unit).gaps)
    backend_.run(Fill{.y = gradient.flat(gap.begin, gap.end - gap.begin), .value = 0.0F});
  return gradient;
}

void Zero::release(int /*unit*/) {
  shards_.progress();
}

bool Zero::starts_reduction(const GradientRange& range) const {
  return range.begin == layout_.unit(range.unit).last_completed;
}

void Zero::gradient_ready(const GradientRange& range) {
  const bool is_last = sequence().is_last[sequence().completions.place(num_completed_++)];
  if (!starts_reduction(range)) return;
  const TensorRef sum = own_gradient(range.unit);
  TensorRef terms;
  if (config_.divides_gradients()) {
    const auto unit = static_cast<std::size_t>(range.unit);
    terms = full_gradient(range.unit);
    const TensorRef own_terms = terms.flat(layout_.rank * sum.size(), sum.size());
    if (has_sum_[unit]) backend_.run(DropoutAdd{.x = sum, .residual = own_terms, .y = own_terms});
    has_sum_[unit] = true;
    full_gradient_of_[unit] = -1;
  } else {
    terms = whole(gradients_, gradient_type_, range.unit);
  }
  Request request = shards_.reduce_scatter(terms, sum, ReduceOp::sum);
  finish_reduction();
  reduction_ = Reduction{range.unit, is_last, std::move(request)};
}

void Zero::finish_reduction() {
  if (!reduction_) return;
  reduction_->request.wait();
  if (reduction_->is_last && replicas_ != nullptr)
    sums_.push_back(replicas_->all_reduce(own_gradient(reduction_->unit), ReduceOp::sum));
  reduction_.reset();
}

void Zero::reduce() {
  finish_reduction();
  for (Request& sum : sums_) sum.wait();
  sums_.clear();
  has_sum_.assign(has_sum_.size(), false);
}

void Zero::publish(int unit) {
  if (config_.divides_weights()) return;
  const auto index = static_cast<std::size_t>(unit);
  versions_[index] = new_weight_version();
  if (layout_.ranks == 1) return;
  publications_[index].wait();
  publications_[index] = shards_.all_gather(own_weights(unit), whole(weights_, compute_type_, unit));
}

void Zero::settle() {
  for (Request& publication : publications_) publication.wait();
}

}  // namespace mylos
