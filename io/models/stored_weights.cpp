// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/stored_weights.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "core/base/error.hpp"
#include "io/models/finite.hpp"
#include "io/models/place_rows.hpp"

namespace mylos {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "stored weights are little endian");

namespace {

// Few enough for the processor's cache, enough to make a disk access worthwhile; more than the longest row.
constexpr std::int64_t block_limit = std::int64_t{1} << 20U;

/// A box of the matrix in the file, and where its elements go.
struct StoredBox {
  std::int64_t first_row, rows, first_column, columns;
  float* data;
  std::int64_t row_stride, column_stride;

  StoredBox(const StoredTensor& stored, const TensorPart& part) : data(part.data) {
    const bool is_matrix = part.box.count.size() == 2;
    require(part.box.count.size() == (is_matrix ? 2U : 1U) && (is_matrix || !stored.transposed),
            "a stored tensor is a vector or a matrix");
    const std::size_t row = stored.transposed ? 1 : 0;
    const std::size_t column = is_matrix ? 1 - row : 0;
    first_row = is_matrix ? part.box.start[row] : 0;
    rows = is_matrix ? part.box.count[row] : 1;
    row_stride = is_matrix ? part.stride[row] : 0;
    first_column = part.box.start[column];
    columns = part.box.count[column];
    column_stride = part.stride[column];
    require(first_row >= 0 && first_row + rows <= stored.rows && first_column >= 0 &&
                first_column + columns <= stored.columns,
            "a box inside its stored tensor");
  }
};

template <class T>
[[noreturn]] void refuse_value(const StoredTensor& stored, const fs::path& file, std::span<const T> values,
                               const StoredBox& box, std::int64_t row) {
  const auto bad = std::ranges::find_if_not(values, [](T value) { return is_finite(value); });
  const std::int64_t place = bad - values.begin();
  std::int64_t r = box.first_row + row + place / box.columns;
  std::int64_t c = box.first_column + place % box.columns;
  if (stored.transposed) std::swap(r, c);
  const std::string at = stored.rows == 1 ? fmt::format("{}", c) : fmt::format("{}, {}", r, c);
  fail(ExitCode::bad_data, "{}: tensor {} is {} at [{}]", file.string(), stored.name,
       static_cast<float>(*bad), at);
}

}  // namespace

std::size_t StoredWeights::add(FileDescriptor open, fs::path file) {
  files_.push_back({std::move(open), std::move(file)});
  return files_.size() - 1;
}

void StoredWeights::read(const StoredTensor& stored, const TensorPart& part) const {
  const StoredBox box(stored, part);
  if (box.rows == 0 || box.columns == 0) return;
  const File& file = files_[stored.file];
  const auto element = static_cast<std::int64_t>(size_of(stored.dtype));
  const std::int64_t row_bytes = box.columns * element;
  require(row_bytes <= block_limit, "a row of a stored tensor fits a block");
  const std::int64_t most_rows = std::min(box.rows, block_limit / row_bytes);
  // Blocks of whole rows of the file are contiguous.
  const std::int64_t rows_at_once = box.columns == stored.columns ? most_rows : 1;
  dispatch_float(stored.dtype, [&]<class T>(T) {
    const auto block = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(most_rows * box.columns));
    for (std::int64_t row = 0; row < box.rows; row += most_rows) {
      const std::int64_t rows = std::min(most_rows, box.rows - row);
      for (std::int64_t r = 0; r < rows; r += rows_at_once) {
        const std::int64_t bytes = std::min(rows_at_once, rows - r) * row_bytes;
        const std::int64_t first = (box.first_row + row + r) * stored.columns + box.first_column;
        bytes_requested_ += bytes;
        read_fully(file.open.get(), file.path, block.get() + r * box.columns, static_cast<std::size_t>(bytes),
                   stored.offset + first * element);
      }
      const std::span<const T> values(block.get(), static_cast<std::size_t>(rows * box.columns));
      if (!are_finite(values)) refuse_value(stored, file.path, values, box, row);
      place_rows(values.data(), rows, box.columns, box.data + row * box.row_stride, box.row_stride,
                 box.column_stride);
    }
  });
}

}  // namespace mylos
