// SPDX-License-Identifier: BSD-3-Clause
// Compiled for any x86-64: what runs before other code, which may use instructions that this processor lacks.
// So it calls nothing that could be inlined from a header elsewhere, and allocates nothing.
#include <cstddef>
#include <cstdint>
#include <unistd.h>

#include "core/base/processor.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mylos {

namespace {

/// A text that is cut if it does not fit.
struct Text {
  char* begin;
  std::size_t capacity;
  std::size_t size = 0;

  void add(const char* more) {
    for (; *more != '\0' && size < capacity; ++more) begin[size++] = *more;
  }
};

enum class Register : std::uint8_t { eax, ebx, ecx, edx };

/// Where CPUID shows a feature: Intel, "Software Developer's Manual", volume 2, CPUID.
struct CpuidBit {
  const char* name;
  unsigned leaf;
  unsigned subleaf;
  Register reg;
  int bit;
};

// In the order of ProcessorFeature.
constexpr CpuidBit features[num_processor_features] = {
    {"SSE3", 1, 0, Register::ecx, 0},
    {"SSSE3", 1, 0, Register::ecx, 9},
    {"SSE4.1", 1, 0, Register::ecx, 19},
    {"SSE4.2", 1, 0, Register::ecx, 20},
    {"POPCNT", 1, 0, Register::ecx, 23},
    {"AVX", 1, 0, Register::ecx, 28},
    {"AVX2", 7, 0, Register::ebx, 5},
    {"FMA", 1, 0, Register::ecx, 12},
    {"F16C", 1, 0, Register::ecx, 29},
    {"BMI1", 7, 0, Register::ebx, 3},
    {"BMI2", 7, 0, Register::ebx, 8},
    {"LZCNT", 0x80000001U, 0, Register::ecx, 5},
    {"MOVBE", 1, 0, Register::ecx, 22},
    {"GFNI", 7, 0, Register::ecx, 8},
    {"AVX-VNNI", 7, 1, Register::eax, 4},
    {"AVX512F", 7, 0, Register::ebx, 16},
    {"AVX512CD", 7, 0, Register::ebx, 28},
    {"AVX512BW", 7, 0, Register::ebx, 30},
    {"AVX512DQ", 7, 0, Register::ebx, 17},
    {"AVX512VL", 7, 0, Register::ebx, 31},
    {"AVX512_IFMA", 7, 0, Register::ebx, 21},
    {"AVX512_VBMI", 7, 0, Register::ecx, 1},
    {"AVX512_VBMI2", 7, 0, Register::ecx, 6},
    {"AVX512_VNNI", 7, 0, Register::ecx, 11},
    {"AVX512_BITALG", 7, 0, Register::ecx, 12},
    {"AVX512_VPOPCNTDQ", 7, 0, Register::ecx, 14},
    {"AVX512_BF16", 7, 1, Register::eax, 5},
    {"AVX512_FP16", 7, 0, Register::edx, 23},
    {"AVX512_VP2INTERSECT", 7, 0, Register::edx, 8},
};

#if defined(__x86_64__)

/// The part of XCR0 that says which registers the system saves: nothing of AVX without it.
std::uint32_t saved_registers() {
  constexpr unsigned osxsave = 1U << 27U;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & osxsave) == 0) return 0;
  __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return eax;
}

bool is_saved(ProcessorFeature feature, std::uint32_t saved) {
  constexpr std::uint32_t avx_state = 0x6;
  constexpr std::uint32_t avx512_state = 0xe6;
  switch (feature) {
    case ProcessorFeature::avx:
    case ProcessorFeature::avx2:
    case ProcessorFeature::fma:
    case ProcessorFeature::f16c:
    case ProcessorFeature::avx_vnni:
      return (saved & avx_state) == avx_state;
    default:
      return feature < ProcessorFeature::avx512f || (saved & avx512_state) == avx512_state;
  }
}

std::uint32_t features_of_processor() {
  const std::uint32_t saved = saved_registers();
  std::uint32_t found = 0;
  for (int i = 0; i < num_processor_features; ++i) {
    const CpuidBit& own = features[i];
    unsigned registers[4] = {};
    if (__get_cpuid_count(own.leaf, own.subleaf, &registers[0], &registers[1], &registers[2],
                          &registers[3]) == 0)
      continue;
    const auto feature = static_cast<ProcessorFeature>(i);
    const bool is_there = (registers[static_cast<int>(own.reg)] >> static_cast<unsigned>(own.bit) & 1U) != 0;
    if (is_there && is_saved(feature, saved)) found |= bit_of(feature);
  }
  return found;
}

void add_processor_name(Text& text) {
  constexpr unsigned first = 0x80000002U;
  constexpr int leaves = 3;
  unsigned name[4 * leaves + 1] = {};  // ends with a 0
  for (int i = 0; i < leaves; ++i) {
    unsigned* part = name + 4 * i;
    if (__get_cpuid(first + static_cast<unsigned>(i), part, part + 1, part + 2, part + 3) == 0) return;
  }
  text.add(" (");
  text.add(reinterpret_cast<const char*>(name));
  text.add(")");
}

/// The first constructor of the first library of mylos that is initialised.
__attribute__((constructor(101))) void check_processor() {
  const std::uint32_t lacking = processor_needs & ~features_of_processor();
  if (lacking == 0) return;
  char buffer[1024];
  Text text{buffer, sizeof(buffer) - 1};
  text.add("mylos: this build (MYLOS_ARCH=");
  text.add(processor_option());
  text.add(") needs a processor with ");
  text.size += write_features(lacking, buffer + text.size, text.capacity - text.size);
  text.add(", which this one");
  add_processor_name(text);
  text.add(
      " lacks; build it for this processor with -DMYLOS_ARCH=native, or for many with the preset portable");
  buffer[text.size++] = '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, buffer, text.size);
  _exit(2);
}

#endif

}  // namespace

std::size_t write_features(std::uint32_t wanted, char* text, std::size_t size) {
  Text names{text, size};
  for (int i = 0; i < num_processor_features; ++i) {
    if ((wanted & bit_of(static_cast<ProcessorFeature>(i))) == 0) continue;
    if (names.size > 0) names.add(", ");
    names.add(features[i].name);
  }
  return names.size;
}

const char* processor_option() {
  return MYLOS_ARCH_TEXT;
}

}  // namespace mylos
