// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/step/step_report.hpp"

#include <utility>

#include <fmt/format.h>

#include "parallel/plan/run_plan.hpp"

namespace mylos {

namespace {

constexpr StepPhase phases[] = {StepPhase::data, StepPhase::forward, StepPhase::backward,
                                StepPhase::communication, StepPhase::optimizer};

std::int64_t tokens_of(const RunConfig& config) {
  return config.train.global_batch * config.train.seq_len;
}

double tokens_per_second(const ReportRow& row) {
  return static_cast<double>(tokens_of(row.configuration.config)) / row.measurement.step_seconds();
}

/// The share of `gflops` per rank that the model's floating-point operations reach.
double share_of(double gflops, const ReportRow& row, const ReportContext& context) {
  const RunConfig& config = row.configuration.config;
  const double flops = model_flops_per_token(config.model, row.measurement.parameters, config.train.seq_len);
  return 1e-9 * flops * tokens_per_second(row) / (gflops * context.ranks);
}

double mfu(const ReportRow& row, const ReportContext& context) {
  return share_of(1e3 * context.peak_tflops, row, context);
}

double mebibytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

/// Exposed communication time per call, in ms.
double exposed_ms_per_call(const Measurement& measurement) {
  if (measurement.reduce_calls == 0) return 0.0;
  return 1e3 * measurement.phase_seconds(StepPhase::communication) /
         static_cast<double>(measurement.reduce_calls);
}

/// The text of a published figure; empty if there is no figure.
std::string published(double value, int digits) {
  return value > 0.0 ? fmt::format("{:.{}f}", value, digits) : "";
}

}  // namespace

std::string step_tables(const std::vector<ReportRow>& rows, const ReportContext& context) {
  const RunConfig& config = rows.front().configuration.config;
  std::string text = fmt::format(
      "{} parameters, {} x {} tokens per step, {}; {} rank{} of {} thread{}, comm {}, compute {}\n",
      rows.front().measurement.parameters, config.train.global_batch, config.train.seq_len,
      name_of(config.train.dtype), context.ranks, context.ranks == 1 ? "" : "s", config.backend.threads,
      config.backend.threads == 1 ? "" : "s", config.backend.comm, context.compute);
  text += fmt::format(
      "Medians of {} steps; times in ms, maximum over the ranks; MFU refers to {:.3f} TFLOP/s per rank, "
      "{}.\n\n",
      rows.front().measurement.steps.size(), context.peak_tflops,
      config.peak_tflops > 0.0 ? "from the deck" : "a measured matrix product");

  text += fmt::format("{:<18} {:>9} {:>6} {:>9} {:>17}", "", "tokens/s", "MFU %", "step", "quartiles");
  for (const StepPhase phase : phases) text += fmt::format(" {:>13}", name_of(phase));
  text += fmt::format(" {:>9}\n", "covered %");
  for (const ReportRow& row : rows) {
    const Measurement& m = row.measurement;
    text += fmt::format("{:<18} {:>9.0f} {:>6.1f} {:>9.2f} {:>8.2f} {:>8.2f}", row.configuration.name,
                        tokens_per_second(row), 100.0 * mfu(row, context), 1e3 * m.step_seconds(),
                        1e3 * m.step_seconds(0.25), 1e3 * m.step_seconds(0.75));
    for (const StepPhase phase : phases) text += fmt::format(" {:>13.2f}", 1e3 * m.phase_seconds(phase));
    text += fmt::format(" {:>9.1f}\n", 100.0 * m.coverage());
  }

  if (rows.size() > 1) {
    const Measurement& first = rows.front().measurement;
    text += fmt::format("\nMedian ratios to {} in the same round\n{:<18} {:>9} {:>13}\n",
                        rows.front().configuration.name, "", "step", name_of(StepPhase::optimizer));
    for (const ReportRow& row : rows)
      text += fmt::format("{:<18} {:>9.3f} {:>13.3f}\n", row.configuration.name,
                          row.measurement.step_ratio(first),
                          row.measurement.phase_ratio(first, StepPhase::optimizer));
  }

  text += fmt::format("\n{:<18}", "Memory, MB");
  for (int i = 0; i < num_memory_categories; ++i)
    text += fmt::format(" {:>13}", name_of(static_cast<MemoryCategory>(i)));
  text += "\n";
  for (const ReportRow& row : rows) {
    text += fmt::format("{:<18}", row.configuration.name);
    for (const std::int64_t bytes : row.measurement.memory)
      text += fmt::format(" {:>13.3f}", 1e-6 * static_cast<double>(bytes));
    if (row.measurement.device_bytes > 0)
      text +=
          fmt::format("  the device counts {:.3f}", 1e-6 * static_cast<double>(row.measurement.device_bytes));
    text += "\n";
  }
  return text;
}

std::string ceiling_table(const std::vector<ReportRow>& rows, const ReportContext& context) {
  const StepCeiling& ceiling = context.ceiling;
  std::string text =
      ceiling.gemm
          ? fmt::format(
                "GEMM ceiling: {:.1f} GFLOP/s per rank, the model's matrix products in their fastest "
                "layouts, on all ranks at the same time\n",
                *ceiling.gemm)
          : "GEMM ceiling: not measured, without oneDNN or its fast products of this type\n";
  if (ceiling.registers)
    text += fmt::format("Register ceiling: {:.1f} GFLOP/s per rank, {} on registers\n",
                        ceiling.registers->gflops, ceiling.registers->instruction);
  for (const ReportRow& row : rows) {
    if (ceiling.gemm)
      text += fmt::format("{:<18} reaches {:.1f} % of the GEMM ceiling\n", row.configuration.name,
                          100.0 * share_of(*ceiling.gemm, row, context));
    if (ceiling.registers)
      text += fmt::format("{:<18} reaches {:.1f} % of the register ceiling\n", row.configuration.name,
                          100.0 * share_of(ceiling.registers->gflops, row, context));
  }
  return text;
}

std::string exchange_table(const std::vector<ReportRow>& rows) {
  std::string text =
      "Exposed: time in all-reduce after the backward pass, which nothing hid (what a library does while a "
      "call\n"
      "is started counts as backward); ms per call: exposed / calls.\n"
      "Published: 2 x T4, GPT-2 medium-like, batch 32, context 64; its calls are not said to be of one "
      "step.\n\n";
  text +=
      fmt::format("{:<18} {:>9} {:>7} {:>9} {:>7} {:>6} {:>9} {:>9} | {:>9} {:>7} {:>9} {:>7} {:>6} {:>9}\n",
                  "", "step", "to 1st", "exposed", "%", "calls", "ms/call", "MiB", "published", "to 1st",
                  "all-red.", "%", "calls", "ms/call");
  const double first = rows.front().measurement.step_seconds();
  const double first_published = rows.front().published->step_ms;
  for (const ReportRow& row : rows) {
    const Measurement& m = row.measurement;
    const DdpStudyRow& study = *row.published;
    const double exposed = m.phase_seconds(StepPhase::communication);
    text += fmt::format(
        "{:<18} {:>9.2f} {:>7.3f} {:>9.2f} {:>7.1f} {:>6} {:>9.3f} {:>9.2f} | {:>9.1f} {:>7.3f} {:>9} {:>7} "
        "{:>6} "
        "{:>9}\n",
        row.configuration.name, 1e3 * m.step_seconds(), m.step_seconds() / first, 1e3 * exposed,
        100.0 * exposed / m.step_seconds(), m.reduce_calls, exposed_ms_per_call(m), mebibytes(m.reduce_bytes),
        study.step_ms, study.step_ms / first_published, published(study.all_reduce_ms, 0),
        published(100.0 * study.all_reduce_ms / study.step_ms, 1), published(study.calls, 0),
        published(study.call_ms, 1));
  }
  return text;
}

std::string step_csv(const std::vector<ReportRow>& rows, const ReportContext& context) {
  std::string text;
  for (const ReportRow& row : rows) {
    const RunConfig& config = row.configuration.config;
    const Measurement& m = row.measurement;
    std::vector<std::pair<std::string, std::string>> cells = {
        {"configuration", row.configuration.name},
        {"ranks", std::to_string(context.ranks)},
        {"threads", std::to_string(config.backend.threads)},
        {"compute", config.backend.compute},
        {"comm", config.backend.comm},
        {"dtype", std::string(name_of(config.train.dtype))},
        {"parameters", std::to_string(m.parameters)},
        {"tokens_per_step", std::to_string(tokens_of(config))},
        {"steps", std::to_string(m.steps.size())},
        {"tokens_per_second", fmt::format("{:.2f}", tokens_per_second(row))},
        {"peak_tflops_per_rank", fmt::format("{:.4f}", context.peak_tflops)},
        {"mfu", fmt::format("{:.4f}", mfu(row, context))},
        {"step_ms", fmt::format("{:.3f}", 1e3 * m.step_seconds())},
        {"step_ms_lower_quartile", fmt::format("{:.3f}", 1e3 * m.step_seconds(0.25))},
        {"step_ms_upper_quartile", fmt::format("{:.3f}", 1e3 * m.step_seconds(0.75))}};
    for (const StepPhase phase : phases)
      cells.emplace_back(fmt::format("{}_ms", name_of(phase)),
                         fmt::format("{:.3f}", 1e3 * m.phase_seconds(phase)));
    cells.emplace_back("phase_coverage", fmt::format("{:.4f}", m.coverage()));
    cells.emplace_back("reduce_calls", std::to_string(m.reduce_calls));
    cells.emplace_back("reduce_bytes", std::to_string(m.reduce_bytes));
    cells.emplace_back("exposed_ms_per_call", fmt::format("{:.4f}", exposed_ms_per_call(m)));
    for (std::size_t i = 0; i < m.memory.size(); ++i)
      cells.emplace_back(fmt::format("memory_{}_bytes", name_of(static_cast<MemoryCategory>(i))),
                         std::to_string(m.memory[i]));
    cells.emplace_back("memory_device_bytes", std::to_string(m.device_bytes));
    const DdpStudyRow study = row.published != nullptr ? *row.published : DdpStudyRow{};
    cells.emplace_back("published_step_ms", published(study.step_ms, 1));
    cells.emplace_back("published_all_reduce_ms", published(study.all_reduce_ms, 1));
    cells.emplace_back("published_calls", published(study.calls, 0));
    cells.emplace_back("published_ms_per_call", published(study.call_ms, 1));
    const auto add_ceiling = [&](const char* name, const char* share, std::optional<double> gflops) {
      cells.emplace_back(name, gflops ? fmt::format("{:.2f}", *gflops) : "");
      cells.emplace_back(share, gflops ? fmt::format("{:.4f}", share_of(*gflops, row, context)) : "");
    };
    const auto& registers = context.ceiling.registers;
    add_ceiling("gemm_ceiling_gflops", "share_of_ceiling", context.ceiling.gemm);
    add_ceiling("register_ceiling_gflops", "share_of_register_ceiling",
                registers ? std::optional(registers->gflops) : std::nullopt);

    const auto line = [&](auto take) {
      for (std::size_t i = 0; i < cells.size(); ++i) text += (i == 0 ? "" : ",") + take(cells[i]);
      text += "\n";
    };
    if (text.empty()) line([](const auto& cell) { return cell.first; });
    line([](const auto& cell) { return cell.second; });
  }
  return text;
}

}  // namespace mylos
