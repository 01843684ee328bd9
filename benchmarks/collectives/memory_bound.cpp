// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/collectives/memory_bound.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "benchmarks/ceiling/streaming_store.hpp"
#include "core/base/error.hpp"

namespace mylos {

namespace {

void store_line(const float* line, float* to, bool streaming) {
  if (streaming) {
    stream_line(line, to);
  } else {
    std::memcpy(to, line, line_floats * sizeof(float));
  }
}

/// Writes the sums of whole lines of K buffers to every buffer of `to`. K is a compile-time constant, so that
/// a line takes a few vector operations.
template <std::size_t K>
void sum_lines_of(const float* const* from, std::span<float* const> to, std::size_t begin, std::size_t end,
                  bool streaming) {
  std::array<const float*, K> in;
  std::copy_n(from, K, in.begin());
  for (std::size_t i = begin; i < end; i += line_floats) {
    std::array<float, line_floats> line;
    for (std::size_t j = 0; j < line_floats; ++j) {
      line[j] = in[0][i + j];
      for (std::size_t r = 1; r < K; ++r) line[j] += in[r][i + j];
    }
    for (float* buffer : to) store_line(line.data(), buffer + i, streaming);
  }
  finish_streaming();
}

void sum_lines(std::span<float* const> from, std::span<float* const> to, std::size_t begin, std::size_t end,
               bool streaming) {
  switch (from.size()) {
    case 1:
      return sum_lines_of<1>(from.data(), to, begin, end, streaming);
    case 2:
      return sum_lines_of<2>(from.data(), to, begin, end, streaming);
    case 3:
      return sum_lines_of<3>(from.data(), to, begin, end, streaming);
    case 4:
      return sum_lines_of<4>(from.data(), to, begin, end, streaming);
    case 8:
      return sum_lines_of<8>(from.data(), to, begin, end, streaming);
    default:
      fail(ExitCode::usage, "the memory bound exists only for 1, 2, 3, 4 and 8 ranks, not {}", from.size());
  }
}

}  // namespace

MemoryBound::MemoryBound(MPI_Comm node, std::size_t bytes) {
  int size = 0;
  MPI_Comm_size(node, &size);
  MPI_Comm_rank(node, &rank_);
  void* own = nullptr;
  constexpr std::size_t page = 4096;
  const auto whole_pages = static_cast<MPI_Aint>((bytes + page) / page * page);
  if (MPI_Win_allocate_shared(whole_pages, 1, MPI_INFO_NULL, node, &own, &window_) != MPI_SUCCESS)
    fail(ExitCode::internal, "no shared window of {} bytes", whole_pages);
  for (int r = 0; r < size; ++r) {
    MPI_Aint length = 0;
    int unit = 0;
    void* base = nullptr;
    MPI_Win_shared_query(window_, r, &length, &unit, &base);
    buffers_.push_back(static_cast<float*>(base));
  }
  std::memset(own, 0, static_cast<std::size_t>(whole_pages));
  MPI_Barrier(node);
}

MemoryBound::~MemoryBound() {
  MPI_Win_free(&window_);
}

MemoryBound::Slice MemoryBound::slice(std::size_t bytes, int rank) const {
  const std::size_t lines = bytes / sizeof(float) / line_floats;
  const auto at = [&](int r) { return lines * static_cast<std::size_t>(r) / buffers_.size() * line_floats; };
  return {at(rank), at(rank + 1)};
}

void MemoryBound::all_reduce(std::size_t bytes, bool streaming) {
  const Slice own = slice(bytes, rank_);
  sum_lines(buffers_, buffers_, own.begin, own.end, streaming);
}

void MemoryBound::reduce_scatter(std::size_t bytes, bool streaming) {
  const Slice own = slice(bytes, rank_);
  sum_lines(buffers_, std::span(buffers_).subspan(static_cast<std::size_t>(rank_), 1), own.begin, own.end,
            streaming);
}

void MemoryBound::all_gather(std::size_t bytes, bool streaming) {
  const auto buffer = [&](int r) { return std::span(buffers_).subspan(static_cast<std::size_t>(r), 1); };
  for (int r = 0; r < static_cast<int>(buffers_.size()); ++r) {
    if (r == rank_) continue;
    const Slice part = slice(bytes, r);
    sum_lines(buffer(r), buffer(rank_), part.begin, part.end, streaming);
  }
}

}  // namespace mylos
