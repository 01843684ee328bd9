// SPDX-License-Identifier: BSD-3-Clause
// A tool for Kokkos (KOKKOS_TOOLS_LIBS): writes a line per event into the file MYLOS_TOOL_OUTPUT.RANK. Lines
// are "region NAME", "end", "kernel NAME", "allocate SPACE LABEL BYTES" and "free SPACE LABEL BYTES".
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

struct SpaceName {
  char name[64];
};

std::FILE* output() {
  static std::FILE* const file = [] {
    const char* name = std::getenv("MYLOS_TOOL_OUTPUT");
    const char* rank = std::getenv("PMI_RANK");
    return std::fopen((std::string(name) + "." + (rank == nullptr ? "0" : rank)).c_str(), "w");
  }();
  return file;
}

void note_kernel(const char* name) {
  std::fprintf(output(), "kernel %s\n", name);
}

}  // namespace

extern "C" {

void kokkosp_init_library(int /*sequence*/, std::uint64_t /*version*/, std::uint32_t /*devices*/,
                          void* /*info*/) {
  output();
}
void kokkosp_finalize_library() {
  std::fclose(output());
}
void kokkosp_push_profile_region(const char* name) {
  std::fprintf(output(), "region %s\n", name);
}
void kokkosp_pop_profile_region() {
  std::fputs("end\n", output());
}
void kokkosp_begin_parallel_for(const char* name, std::uint32_t /*device*/, std::uint64_t* /*id*/) {
  note_kernel(name);
}
void kokkosp_begin_parallel_reduce(const char* name, std::uint32_t /*device*/, std::uint64_t* /*id*/) {
  note_kernel(name);
}
void kokkosp_begin_parallel_scan(const char* name, std::uint32_t /*device*/, std::uint64_t* /*id*/) {
  note_kernel(name);
}
void kokkosp_allocate_data(SpaceName space, const char* label, const void* /*data*/, std::uint64_t bytes) {
  std::fprintf(output(), "allocate %s %s %llu\n", space.name, label, static_cast<unsigned long long>(bytes));
}
void kokkosp_deallocate_data(SpaceName space, const char* label, const void* /*data*/, std::uint64_t bytes) {
  std::fprintf(output(), "free %s %s %llu\n", space.name, label, static_cast<unsigned long long>(bytes));
}
}
