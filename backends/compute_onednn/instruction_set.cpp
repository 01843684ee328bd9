// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/instruction_set.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/base/error.hpp"

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

InstructionSet limit_from(const char* variable) {
  if (variable == nullptr) return InstructionSet::avx512_bf16;
  const std::string_view word = variable;
  if (word == "avx2") return InstructionSet::avx2;
  if (word == "avx512") return InstructionSet::avx512;
  if (word == "avx512_bf16") return InstructionSet::avx512_bf16;
  fail(ExitCode::usage, "MYLOS_CPU is '{}', but must be avx2, avx512 or avx512_bf16", word);
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet set = std::min(of_processor(), limit_from(std::getenv("MYLOS_CPU")));
  return set;
}

bool is_instruction_set_limited() {
  return std::getenv("MYLOS_CPU") != nullptr;
}

}  // namespace mylos
