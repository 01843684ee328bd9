// SPDX-License-Identifier: BSD-3-Clause
// InstructionSet: what the processor can do, as far as MYLOS_CPU lets mylos use it.
#pragma once

#include <cstdint>

namespace mylos {

/// Each has those before it. avx2 has FMA and F16C, avx512 what x86-64-v4 has.
enum class InstructionSet : std::uint8_t { baseline, avx2, avx512, avx512_bf16 };

/// The largest that this processor has and the environment variable MYLOS_CPU (avx2, avx512 or avx512_bf16)
/// allows; read once. Throws ExitCode::usage if the variable has another value.
InstructionSet instruction_set();

/// Whether MYLOS_CPU is set: larger instruction sets than the above, AMX for one, must not be used either.
bool is_instruction_set_limited();

}  // namespace mylos
