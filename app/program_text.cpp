// SPDX-License-Identifier: BSD-3-Clause
#include "app/program_text.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "app/session.hpp"
#include "core/base/join.hpp"
#include "core/model/model_programs.hpp"
#include "parallel/engine/activation_plan.hpp"

namespace mylos {

namespace {

std::string_view name_of(Access access) {
  constexpr std::array<std::string_view, 4> names = {"reads", "writes", "adds to", "uses"};
  return names[static_cast<std::size_t>(access)];
}

/// Formats the programs of one run.
class ProgramText {
 public:
  ProgramText(const ParameterTable& table, const ModelPrograms& programs,
              std::vector<const PluginDescriptor*> backends)
      : table_(table), programs_(programs), backends_(std::move(backends)) {}

  std::string text_of(std::string_view title, const Program& program) const {
    double flops = 0.0;
    std::int64_t bytes = 0;
    const auto awaits = std::ranges::count_if(
        program.entries, [](const Entry& entry) { return std::holds_alternative<Await>(entry.operation); });
    for (const Entry& entry : program.entries) {
      flops += flops_of(entry);
      bytes += bytes_of(entry);
    }
    std::string text =
        fmt::format("\n{}: {} operations, {:.3f} GFLOP, {:.3f} GB\n", title,
                    std::ssize(program.entries) - awaits, 1e-9 * flops, 1e-9 * static_cast<double>(bytes));
    for (std::size_t i = 0; i < program.entries.size(); ++i) text += text_of(i, program.entries[i]);
    return text;
  }

 private:
  std::string text_of(std::size_t index, const Entry& entry) const {
    std::string text = std::visit(
        [&]<class Op>(const Op& op) {
          const std::string_view runs = communicates(entry) ? "communication" : backend_of(Op::name);
          std::string lines = fmt::format(
              "{:5} {} ({}): {:.6f} GFLOP, {:.6f} GB, {}:{}\n", index, Op::name, runs, 1e-9 * flops_of(entry),
              1e-9 * static_cast<double>(bytes_of(entry)), entry.where.file_name(), entry.where.line());
          Op::operands(
              op, [&](const char* name, const TensorRef& tensor, Access access, const auto&... /*adds*/) {
                if (tensor) lines += text_of(name, tensor, access);
              });
          return lines;
        },
        entry.operation);
    for (const UnitAccess& access : entry.acquires) {
      const char* both = access.reads_weights && access.adds_gradients ? " and " : "";
      text += fmt::format("        acquires {}{}{} of {}\n", access.reads_weights ? "weights" : "", both,
                          access.adds_gradients ? "gradients" : "", table_.unit(access.unit).name);
    }
    for (const GradientRange& range : entry.completes) {
      text += fmt::format("        completes the gradient of {}, elements {} to {}\n",
                          table_.unit(range.unit).name, range.begin, range.end);
    }
    for (const int unit : entry.releases)
      text += fmt::format("        releases {}\n", table_.unit(unit).name);
    return text;
  }

  std::string text_of(const char* name, const TensorRef& tensor, Access access) const {
    const Place place = place_of(tensor);
    const Root& root = programs_.roots.all()[static_cast<std::size_t>(place.root)];
    std::string line =
        fmt::format("        {:<7} {:<12} {} ({}), {}", name_of(access), name, mylos::name_of(tensor.dtype),
                    join(std::span(tensor.shape.data(), tensor.rank), ", "), root.name);
    if (place.offset > 0) line += fmt::format(" + {} bytes", place.offset);
    return line + "\n";
  }

  /// Returns the name of the first backend that has a kernel for `operation`, "in parts" if none has one, or
  /// "no backend found" if there are no backends.
  std::string_view backend_of(std::string_view operation) const {
    for (const PluginDescriptor* backend : backends_) {
      if (std::ranges::find(backend->operations, operation) != backend->operations.end())
        return backend->name;
    }
    return backends_.empty() ? "no backend found" : "in parts";
  }

  const ParameterTable& table_;
  const ModelPrograms& programs_;
  std::vector<const PluginDescriptor*> backends_;
};

}  // namespace

std::string program_text(const Setup& setup) {
  const RunConfig& config = setup.config;
  const Coordinates rank_0 = config.parallel.first();
  const ParameterTable table = config.table(rank_0);
  const Schedule schedule = config.parallel.schedule->make(static_cast<int>(config.train.accumulation));
  const ModelPrograms programs = record_programs(config.model, table, config.programs(schedule, rank_0));
  const ActivationPlan plan(programs.roots, passages_of(schedule, programs));

  std::vector<std::string> actions;
  for (const Action& action : schedule.actions) {
    actions.emplace_back(name_of(action.kind));
    if (is_of_micro_batch(action.kind)) {
      actions.back() += fmt::format(" {}", action.micro_batch);
      if (schedule.chunks > 1) actions.back() += fmt::format(" of chunk {}", action.chunk);
    }
    if (action.ahead > 0) actions.back() += fmt::format(" ({} ahead)", action.ahead);
  }
  std::string text =
      fmt::format("rank 0 of {}: {} x {} tokens per micro-batch, {:.3f} GB of activations\nstep: {}\n",
                  config.parallel.world_size(), config.train.micro_batch, config.train.seq_len,
                  1e-9 * static_cast<double>(plan.bytes()), join(actions, ", "));
  const ProgramText printer(table, programs, compute_plugins(setup.plugins, config));
  for (std::size_t c = 0; c < programs.chunks.size(); ++c) {
    const std::string chunk = schedule.chunks > 1 ? fmt::format(" of chunk {}", c) : "";
    const ChunkPrograms& own = programs.chunks[c];
    text += printer.text_of("forward" + chunk, own.forward);
    text += printer.text_of((own.backward.size() > 1 ? "backward_input" : "backward") + chunk,
                            own.backward.front());
    if (own.backward.size() > 1) text += printer.text_of("backward_weight" + chunk, own.backward.back());
  }
  text += printer.text_of("evaluate", programs.evaluate);
  text += printer.text_of("generate", programs.generate);
  return text;
}

}  // namespace mylos
