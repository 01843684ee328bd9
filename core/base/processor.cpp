// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/processor.hpp"

#include <initializer_list>
#include <string_view>

namespace mylos {

namespace {

using enum ProcessorFeature;

constexpr std::uint32_t all_of(std::initializer_list<ProcessorFeature> features) {
  std::uint32_t bits = 0;
  for (const ProcessorFeature feature : features) bits |= bit_of(feature);
  return bits;
}

/// The levels of the x86-64 psABI, the largest first.
constexpr struct {
  std::string_view name;
  std::uint32_t features;
} levels[] = {
    {"x86-64-v4", all_of({sse3, ssse3, sse4_1, sse4_2, popcnt, avx, avx2, fma, f16c, bmi, bmi2, lzcnt, movbe,
                          avx512f, avx512cd, avx512bw, avx512dq, avx512vl})},
    {"x86-64-v3",
     all_of({sse3, ssse3, sse4_1, sse4_2, popcnt, avx, avx2, fma, f16c, bmi, bmi2, lzcnt, movbe})},
    {"x86-64-v2", all_of({sse3, ssse3, sse4_1, sse4_2, popcnt})},
    {"x86-64", 0},
};

/// What the compiler was told to use.
constexpr std::uint32_t compiled_features() {
  std::uint32_t bits = 0;
#ifdef __SSE3__
  bits |= bit_of(sse3);
#endif
#ifdef __SSSE3__
  bits |= bit_of(ssse3);
#endif
#ifdef __SSE4_1__
  bits |= bit_of(sse4_1);
#endif
#ifdef __SSE4_2__
  bits |= bit_of(sse4_2);
#endif
#ifdef __POPCNT__
  bits |= bit_of(popcnt);
#endif
#ifdef __AVX__
  bits |= bit_of(avx);
#endif
#ifdef __AVX2__
  bits |= bit_of(avx2);
#endif
#ifdef __FMA__
  bits |= bit_of(fma);
#endif
#ifdef __F16C__
  bits |= bit_of(f16c);
#endif
#ifdef __BMI__
  bits |= bit_of(bmi);
#endif
#ifdef __BMI2__
  bits |= bit_of(bmi2);
#endif
#ifdef __LZCNT__
  bits |= bit_of(lzcnt);
#endif
#ifdef __MOVBE__
  bits |= bit_of(movbe);
#endif
#ifdef __GFNI__
  bits |= bit_of(gfni);
#endif
#ifdef __AVXVNNI__
  bits |= bit_of(avx_vnni);
#endif
#ifdef __AVX512F__
  bits |= bit_of(avx512f);
#endif
#ifdef __AVX512CD__
  bits |= bit_of(avx512cd);
#endif
#ifdef __AVX512BW__
  bits |= bit_of(avx512bw);
#endif
#ifdef __AVX512DQ__
  bits |= bit_of(avx512dq);
#endif
#ifdef __AVX512VL__
  bits |= bit_of(avx512vl);
#endif
#ifdef __AVX512IFMA__
  bits |= bit_of(avx512ifma);
#endif
#ifdef __AVX512VBMI__
  bits |= bit_of(avx512vbmi);
#endif
#ifdef __AVX512VBMI2__
  bits |= bit_of(avx512vbmi2);
#endif
#ifdef __AVX512VNNI__
  bits |= bit_of(avx512vnni);
#endif
#ifdef __AVX512BITALG__
  bits |= bit_of(avx512bitalg);
#endif
#ifdef __AVX512VPOPCNTDQ__
  bits |= bit_of(avx512vpopcntdq);
#endif
#ifdef __AVX512BF16__
  bits |= bit_of(avx512bf16);
#endif
#ifdef __AVX512FP16__
  bits |= bit_of(avx512fp16);
#endif
#ifdef __AVX512VP2INTERSECT__
  bits |= bit_of(avx512vp2intersect);
#endif
  return bits;
}

}  // namespace

constinit const std::uint32_t processor_needs = compiled_features();

std::string processor_text(std::uint32_t features) {
#if defined(__x86_64__)
  for (const auto& level : levels) {
    if ((features & level.features) != level.features) continue;
    std::string text(level.name);
    const std::uint32_t more = features & ~level.features;
    if (more == 0) return text;
    char names[512];
    return text.append(", ").append(names, write_features(more, names, sizeof(names)));
  }
#endif
  return features == 0 ? "what its architecture has" : "";
}

}  // namespace mylos
