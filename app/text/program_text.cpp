// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/program_text.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/launch/session.hpp"
#include "core/base/join.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

namespace {

std::string_view name_of(Access access) {
  constexpr std::array<std::string_view, 4> names = {"reads", "writes", "adds to", "uses"};
  return names[static_cast<std::size_t>(access)];
}

/// Formats the passes of one rank.
class ProgramText {
 public:
  ProgramText(const RankProgram& program, std::vector<const PluginDescriptor*> backends)
      : program_(program), backends_(std::move(backends)) {}

  std::string text_of(std::string_view title, const Pass& pass) const {
    double flops = 0.0;
    std::int64_t bytes = 0;
    std::size_t operations = 0;
    std::string lines;
    std::size_t number = 0;
    for_each_entry(pass, program_.pool(), [&](const Entry& entry, const EntryPlace&) {
      flops += flops_of(entry);
      bytes += bytes_of(entry);
      operations += std::holds_alternative<Await>(entry.operation) ? 0 : 1;
      lines += text_of(number++, entry);
    });
    return fmt::format("\n{}: {} operations, {:.3f} GFLOP, {:.3f} GB\n{}", title, operations, 1e-9 * flops,
                       1e-9 * static_cast<double>(bytes), lines);
  }

 private:
  std::string text_of(std::size_t number, const Entry& entry) const {
    std::string text = std::visit(
        [&]<class Op>(const Op& op) {
          std::string lines = fmt::format("{:5} {} ({}): {:.6f} GFLOP, {:.6f} GB, {}:{}\n", number, Op::name,
                                          place_of_work(Op::name, entry), 1e-9 * flops_of(entry),
                                          1e-9 * static_cast<double>(bytes_of(entry)),
                                          entry.where.file_name(), entry.where.line());
          Op::operands(
              op, [&](const char* name, const TensorRef& tensor, Access access, const auto&... /*adds*/) {
                if (tensor) lines += text_of(name, tensor, access);
              });
          return lines;
        },
        entry.operation);
    for (const GradientRange& range : entry.completes) {
      text += fmt::format("        completes the gradient of {}, elements {} to {}\n",
                          program_.table().unit(range.unit).name, range.begin, range.end);
    }
    return text;
  }

  std::string text_of(const char* name, const TensorRef& tensor, Access access) const {
    const Place place = place_of(tensor);
    std::string line = fmt::format(
        "        {:<7} {:<12} {} ({}), {}", name_of(access), name, mylos::name_of(tensor.dtype),
        join(std::span(tensor.shape.data(), tensor.rank), ", "), program_.storages().at(place.storage).name);
    if (place.offset > 0) line += fmt::format(" + {} bytes", place.offset);
    return line + "\n";
  }

  /// Returns the axes and the payload of a call; of an operation, the name of the first backend that has a
  /// kernel for it, "in parts" if none has one, or "no backend found" if there are no backends.
  std::string place_of_work(std::string_view operation, const Entry& entry) const {
    if (const std::optional<ListedCall> call = listed_call(entry)) {
      return fmt::format("{} bytes over {}", call->payload_bytes,
                         ProcessGrid::label(program_.coordinates(), call->group));
    }
    if (communicates(entry)) return "communication";
    for (const PluginDescriptor* backend : backends_) {
      if (std::ranges::find(backend->operations, operation) != backend->operations.end())
        return std::string(backend->name);
    }
    return backends_.empty() ? "no backend found" : "in parts";
  }

  const RankProgram& program_;
  std::vector<const PluginDescriptor*> backends_;
};

/// Names the actions of a rank.
class ActionNames {
 public:
  explicit ActionNames(const RankProgram& program)
      : chunks_(program.config().cuts().chunks), stages_(program.coordinates().extent(Axis::pipeline)) {}

  /// "forward 2 of chunk 1", "send activations of micro-batch 2 to stage 1"
  std::string text_of(const Action& action) const {
    if (is_message(action.kind)) return title_of(action, fmt::format("micro-batch {}", action.micro_batch));
    if (!is_of_micro_batch(action.kind)) return std::string(name_of(action.kind));
    return fmt::format("{} {}{}", name_of(action.kind), action.micro_batch, chunk_text(action, chunks_ > 1));
  }
  /// "forward of chunk 1 of `micro_batches`", "send activations of `micro_batches` to stage 1"
  std::string title_of(const Action& action, const std::string& micro_batches) const {
    if (!is_of_micro_batch(action.kind)) return std::string(name_of(action.kind));
    if (!is_message(action.kind)) {
      return fmt::format("{}{} of {}", name_of(action.kind), chunk_text(action, chunks_ > 1), micro_batches);
    }
    const bool is_forward =
        action.kind == ActionKind::send_forward || action.kind == ActionKind::receive_forward;
    return fmt::format("{} {} of {}{} {} stage {}", is_sent(action.kind) ? "send" : "receive",
                       is_forward ? "activations" : "gradients", micro_batches,
                       chunk_text(action, chunks_ > stages_), is_sent(action.kind) ? "to" : "from",
                       action.peer_stage >= 0 ? action.peer_stage : action.peer);
  }

 private:
  static std::string chunk_text(const Action& action, bool is_named) {
    return is_named ? fmt::format(" of chunk {}", action.chunk) : "";
  }

  int chunks_;
  int stages_;
};

/// The micro-batches that run the same entries of a program.
struct SamePasses {
  const Pass* pass = nullptr;
  Action action;
  std::vector<std::string> micro_batches;
};

/// The passes and messages of a step; those that are alike, once.
std::vector<SamePasses> passes_of(const RankProgram& program) {
  std::vector<SamePasses> all;
  const Schedule& schedule = program.schedule();
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    const Pass& pass = program.pass_of(i);
    const auto is_same = [&](const SamePasses& other) {
      const bool is_same_message = is_message(action.kind) && other.action.peer == action.peer;
      return other.action.kind == action.kind && other.action.chunk == action.chunk &&
             (is_same_message || other.pass->program == pass.program) &&
             other.pass->inserted == pass.inserted;
    };
    auto same = std::ranges::find_if(all, is_same);
    if (same == all.end())
      same = all.insert(all.end(), {.pass = &pass, .action = action, .micro_batches = {}});
    if (is_of_micro_batch(action.kind)) same->micro_batches.push_back(std::to_string(action.micro_batch));
  }
  return all;
}

}  // namespace

std::string program_text(const Setup& setup, int rank) {
  const RunConfig& config = setup.config;
  const auto ranks = static_cast<int>(config.parallel.world_size());
  const RankProgram program(config, config.parallel.coordinates(rank));
  const Schedule& schedule = program.schedule();
  const ActionNames names(program);
  std::vector<std::string> actions;
  for (const Action& action : schedule.actions) {
    actions.push_back(names.text_of(action));
    if (action.ahead > 0) actions.back() += fmt::format(" ({} ahead)", action.ahead);
  }
  std::string text = fmt::format(
      "rank {} of {}: {} x {} tokens per micro-batch, {:.3f} GB of activations\nstep: {}\n", rank, ranks,
      config.train.micro_batch, config.train.seq_len,
      1e-9 * static_cast<double>(program.places().bytes(MemoryCategory::activations)), join(actions, ", "));
  const ProgramText printer(program, compute_plugins(setup.plugins, config));
  for (const SamePasses& same : passes_of(program)) {
    const std::string micro_batches = fmt::format(
        "micro-batch{} {}", same.micro_batches.size() > 1 ? "es" : "", join(same.micro_batches, ", "));
    text += printer.text_of(names.title_of(same.action, micro_batches), *same.pass);
  }
  text += printer.text_of("publish", program.publication());
  const auto add = [&](const std::string& title, const ForwardList& list) {
    for (std::size_t i = 0; i < list.passes.size(); ++i) {
      const Action& action = list.actions[i];
      const bool is_alone = list.passes.size() == 1;
      text += printer.text_of(is_alone ? title : fmt::format("{}, {}", title, names.text_of(action)),
                              list.passes[i]);
    }
  };
  add("evaluate", program.evaluation());
  for (std::size_t i = 0; i < program.cached().size(); ++i)
    add("over the cache, " + prefix_of(config.cache.passes[i]), program.cached()[i]);
  return text;
}

}  // namespace mylos
