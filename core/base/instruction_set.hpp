// SPDX-License-Identifier: BSD-3-Clause
// InstructionSet: the instructions that the processor has and that MYLOS_CPU allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mylos {

/// Each set includes the sets before it. avx2 includes FMA and F16C; avx512 is x86-64-v4.
enum class InstructionSet : std::uint8_t { baseline, avx2, avx512, avx512_bf16 };

/// Returns "avx2", "avx512", "avx512_bf16" or "baseline".
std::string_view name_of(InstructionSet set);

/// Returns the largest set that this processor has and that the environment variable MYLOS_CPU (avx2, avx512
/// or avx512_bf16) allows. Reads the variable once. Throws if `instruction_set_limit` does.
InstructionSet instruction_set();

/// Returns the set for which this build was compiled, of which the processor may have more.
InstructionSet instruction_set_of_build();

/// Returns the set that MYLOS_CPU names, or nothing if the variable is not set. If it is set, instruction
/// sets that InstructionSet does not list, such as AMX, must not be used either. Throws ExitCode::usage if
/// the value is not avx2, avx512 or avx512_bf16.
std::optional<InstructionSet> instruction_set_limit();

}  // namespace mylos
