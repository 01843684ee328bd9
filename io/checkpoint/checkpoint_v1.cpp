// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/checkpoint_v1.hpp"

#include <array>
#include <fcntl.h>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr int max_rank = 8;
constexpr std::int64_t max_tensor_size = std::int64_t{1} << 48U;
constexpr std::int64_t max_tensors = 1'000'000;
constexpr std::int64_t max_chunk_bytes = std::int64_t{64} << 20U;
// The most that one HDF5 call reads, unless one row is larger.
constexpr std::int64_t max_transfer_bytes = std::int64_t{16} << 20U;
constexpr std::int64_t checksum_bytes = 4;

using Extents = std::vector<hsize_t>;

Extents to_extents(const std::vector<std::int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

/// The bytes that a tensor occupies in the file: whole chunks, each with its checksum.
std::int64_t stored_bytes(const Extents& shape, const Extents& chunk) {
  std::int64_t chunks = 1;
  auto chunk_bytes = static_cast<std::int64_t>(sizeof(float));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    chunks *= static_cast<std::int64_t>((shape[d] + chunk[d] - 1) / chunk[d]);
    chunk_bytes *= static_cast<std::int64_t>(chunk[d]);
  }
  return chunks * (chunk_bytes + checksum_bytes);
}

/// The dataspaces of a part in the file and in memory. In memory, the part is the corner at index 0 of an
/// array whose extents follow from the strides.
std::pair<H5Dataspace, H5Dataspace> spaces_of(const std::vector<std::int64_t>& shape,
                                              const TensorPart& part) {
  const auto simple = [](const Extents& extents) {
    return H5Dataspace(h5_check(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                                ExitCode::internal, "dataspace"));
  };
  const auto select = [](const H5Dataspace& space, const Extents& start, const Extents& count) {
    h5_check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
             ExitCode::internal, "selection");
  };
  const Extents count = to_extents(part.box.count);
  Extents memory = count;
  for (std::size_t d = 1; d < memory.size(); ++d)
    memory[d] = static_cast<hsize_t>(part.stride[d - 1] / part.stride[d]);
  H5Dataspace in_file = simple(to_extents(shape));
  H5Dataspace in_memory = simple(memory);
  select(in_file, to_extents(part.box.start), count);
  if (memory != count) select(in_memory, Extents(shape.size(), 0), count);
  return {std::move(in_file), std::move(in_memory)};
}

/// Rejects formats other than that of HDF5 1.10, whose metadata has checksums. Called before HDF5 parses the
/// file.
void check_superblock(const fs::path& path) {
  constexpr std::array<unsigned char, 9> expected = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n', 3};
  std::array<unsigned char, expected.size()> head{};
  std::error_code error;
  if (fs::file_size(path, error) >= head.size() && !error) {
    const FileDescriptor fd = open_file(path, O_RDONLY);
    read_fully(fd.get(), path, head.data(), head.size(), 0);
  }
  if (head != expected) fail(ExitCode::bad_data, "{} is not an HDF5 file of format 1.10", path.string());
}

}  // namespace

ChunkedTensors::ChunkedTensors(fs::path path) : path_(std::move(path)) {
  check_superblock(path_);
  file_bytes_ = static_cast<std::int64_t>(fs::file_size(path_));
  const H5Properties access = h5_serial_access();
  file_ = H5File(check(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access.get()), "open"));
  scan("", 0);
}

void ChunkedTensors::read(const TensorInfo& wanted, const std::vector<TensorPart>& parts) const {
  const H5Dataset dataset = open(wanted.name);
  for (const TensorPart& part : parts) {
    for (const TensorPart& rows : cut(part, max_transfer_bytes)) {
      const auto [in_file, in_memory] = spaces_of(wanted.shape, rows);
      check(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, in_memory.get(), in_file.get(), H5P_DEFAULT, rows.data),
            wanted.name);
    }
  }
}

H5Dataset ChunkedTensors::open(const std::string& name) const {
  const H5Properties access(check(H5Pcreate(H5P_DATASET_ACCESS), name));
  // Room for a few chunks: several of a rank's parts may share one.
  constexpr std::size_t cache_slots = 127;
  constexpr std::size_t cache_bytes = std::size_t{16} << 20U;
  check(H5Pset_chunk_cache(access.get(), cache_slots, cache_bytes, H5D_CHUNK_CACHE_W0_DEFAULT), name);
  return H5Dataset(check(H5Dopen2(file_.get(), name.c_str(), access.get()), name));
}

void ChunkedTensors::scan(const std::string& prefix, int depth) {
  const std::string where = prefix.empty() ? "/" : prefix;
  const H5Group group(check(H5Gopen2(file_.get(), where.c_str(), H5P_DEFAULT), where));
  H5G_info_t info{};
  check(H5Gget_info(group.get(), &info), where);
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    if (static_cast<std::int64_t>(tensors_.size()) >= max_tensors) fail_at(where, "holds too many datasets");
    std::array<char, 512> buffer{};
    const ssize_t length = check(H5Lget_name_by_idx(group.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i,
                                                    buffer.data(), buffer.size(), H5P_DEFAULT),
                                 where);
    if (length == 0 || static_cast<std::size_t>(length) >= buffer.size()) fail_at(where, "holds a bad name");
    const std::string name = prefix + buffer.data();
    H5L_info_t link{};
    check(H5Lget_info(group.get(), buffer.data(), &link, H5P_DEFAULT), name);
    if (link.type != H5L_TYPE_HARD) fail_at(name, "is not a hard link");
    const H5Object object(check(H5Oopen(group.get(), buffer.data(), H5P_DEFAULT), name));
    const H5I_type_t kind = H5Iget_type(object.get());
    if (kind == H5I_DATASET) {
      tensors_.push_back(describe(object.get(), name));
    } else if (kind == H5I_GROUP && depth == 0) {
      scan(name + "/", depth + 1);
    } else {
      fail_at(name, "is neither a dataset nor a group of datasets");
    }
  }
}

TensorInfo ChunkedTensors::describe(hid_t dataset, const std::string& name) const {
  const H5Type type(check(H5Dget_type(dataset), name));
  if (check(H5Tequal(type.get(), H5T_IEEE_F32LE), name) == 0) fail_at(name, "is not of type float32");

  const H5Dataspace space(check(H5Dget_space(dataset), name));
  if (H5Sget_simple_extent_type(space.get()) != H5S_SIMPLE) fail_at(name, "is not an array");
  const int rank = check(H5Sget_simple_extent_ndims(space.get()), name);
  if (rank < 1 || rank > max_rank) fail_at(name, fmt::format("has {} dimensions", rank));
  Extents shape(static_cast<std::size_t>(rank));
  Extents most(shape.size());
  check(H5Sget_simple_extent_dims(space.get(), shape.data(), most.data()), name);
  if (shape != most) fail_at(name, "is extendible");
  check_size(shape, max_tensor_size, name);

  const H5Properties creation(check(H5Dget_create_plist(dataset), name));
  if (H5Pget_layout(creation.get()) != H5D_CHUNKED) fail_at(name, "is not chunked");
  Extents chunk(shape.size());
  if (check(H5Pget_chunk(creation.get(), rank, chunk.data()), name) != rank)
    fail_at(name, "has chunks with a different number of dimensions");
  check_size(chunk, max_chunk_bytes / static_cast<std::int64_t>(sizeof(float)), name);
  unsigned flags = 0;
  std::size_t values = 0;
  if (check(H5Pget_nfilters(creation.get()), name) != 1 ||
      H5Pget_filter2(creation.get(), 0, &flags, &values, nullptr, 0, nullptr, nullptr) !=
          H5Z_FILTER_FLETCHER32) {
    fail_at(name, "does not have Fletcher32 as its only filter");
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (chunk[d] > shape[d]) fail_at(name, "has chunks larger than itself");
  }
  const std::int64_t stored = stored_bytes(shape, chunk);
  if (stored > file_bytes_ || static_cast<std::int64_t>(H5Dget_storage_size(dataset)) != stored) {
    fail_at(name, "lacks chunks");
  }
  return {name, {shape.begin(), shape.end()}};
}

void ChunkedTensors::check_size(const Extents& extents, std::int64_t limit, const std::string& name) const {
  hsize_t room = static_cast<hsize_t>(limit);
  for (const hsize_t extent : extents) {
    if (extent < 1 || extent > room) fail_at(name, fmt::format("has extents ({})", join(extents, ", ")));
    room /= extent;
  }
}

void ChunkedTensors::fail_at(const std::string& name, const std::string& problem) const {
  fail(ExitCode::bad_data, "{}: {} {}", path_.string(), name, problem);
}

}  // namespace mylos
