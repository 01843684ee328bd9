// SPDX-License-Identifier: BSD-3-Clause
// What the code of this build needs of the processor. Before anything else runs, processor_check.cpp ends a
// process with exit code 2 if its processor lacks any of it.
#pragma once

#include <cstdint>
#include <string>

namespace mylos {

/// Instructions that compilers use unasked, as bits of processor_needs.
enum class ProcessorFeature : std::uint8_t {
  sse3,
  ssse3,
  sse4_1,
  sse4_2,
  popcnt,
  avx,
  avx2,
  fma,
  f16c,
  bmi,
  bmi2,
  lzcnt,
  movbe,
  gfni,
  avx_vnni,
  avx512f,
  avx512cd,
  avx512bw,
  avx512dq,
  avx512vl,
  avx512ifma,
  avx512vbmi,
  avx512vbmi2,
  avx512vnni,
  avx512bitalg,
  avx512vpopcntdq,
  avx512bf16,
  avx512fp16,
  avx512vp2intersect,
};
inline constexpr int num_processor_features = 29;

constexpr std::uint32_t bit_of(ProcessorFeature feature) {
  return std::uint32_t{1} << static_cast<unsigned>(feature);
}

/// The features for which this build was compiled: those of MYLOS_ARCH.
extern const std::uint32_t processor_needs;

/// The names of features, ", " between them: "SSE3, AVX512F". Writes up to `size` characters and returns
/// their number. Neither allocates nor calls the standard library.
std::size_t write_features(std::uint32_t features, char* text, std::size_t size);

/// "x86-64-v3" or "x86-64-v3, GFNI": the largest level that the features contain, and what they have beyond
/// it; "x86-64" for none.
std::string processor_text(std::uint32_t features);

/// The value of MYLOS_ARCH that this build was configured with.
const char* processor_option();

}  // namespace mylos
