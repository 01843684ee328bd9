// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/instruction_set.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/base/processor.hpp"

namespace mylos {

namespace {

InstructionSet of_processor() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return InstructionSet::baseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return InstructionSet::avx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? InstructionSet::avx512_bf16 : InstructionSet::avx512;
#else
  return InstructionSet::baseline;
#endif
}

}  // namespace

std::string_view name_of(InstructionSet set) {
  constexpr std::array<std::string_view, 4> names = {"baseline", "avx2", "avx512", "avx512_bf16"};
  return names[static_cast<std::size_t>(set)];
}

InstructionSet instruction_set() {
  static const InstructionSet set =
      std::min(of_processor(), instruction_set_limit().value_or(InstructionSet::avx512_bf16));
  return set;
}

InstructionSet instruction_set_of_build() {
  using enum ProcessorFeature;
  const auto has = [](ProcessorFeature feature) { return (processor_needs & bit_of(feature)) != 0; };
  if (has(avx512bw)) return has(avx512bf16) ? InstructionSet::avx512_bf16 : InstructionSet::avx512;
  return has(avx2) ? InstructionSet::avx2 : InstructionSet::baseline;
}

std::optional<InstructionSet> instruction_set_limit() {
  const char* variable = std::getenv("MYLOS_CPU");
  if (variable == nullptr || *variable == '\0') return std::nullopt;
  for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512, InstructionSet::avx512_bf16})
    if (variable == name_of(set)) return set;
  fail(ExitCode::usage, "MYLOS_CPU is '{}', but must be avx2, avx512 or avx512_bf16", variable);
}

}  // namespace mylos
