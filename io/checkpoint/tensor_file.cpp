// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/tensor_file.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <set>
#include <span>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"
#include "io/hdf5_handle.hpp"

namespace mylos {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "tensors are little endian in a file");

namespace {

// Elements that are digested and read or written at a time: few enough for the processor's cache, enough to
// make a disk access worthwhile.
constexpr std::int64_t block_elements = std::int64_t{1} << 18U;
// Direct I/O reads and writes whole pages of the kernel's page size. It is not used for runs shorter than
// `least_direct`, because partial pages are a large part of them.
const std::size_t page = std::max<std::size_t>(4096, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
const std::size_t least_direct = 16 * page;

/// Whether floats can lie in memory at the same offset within a page as in the file. HDF5 aligns only tensors
/// of at least `alignment` bytes, and only to that: a tensor may begin at an offset that is not a multiple of
/// alignof(float), and then goes through the page cache.
bool holds_floats(std::int64_t offset) {
  return offset % static_cast<std::int64_t>(alignof(float)) == 0;
}

/// Whether `memory` and `offset` lie at the same place within a page, as direct I/O requires.
bool is_congruent(const void* memory, std::int64_t offset) {
  return reinterpret_cast<std::uintptr_t>(memory) % page == static_cast<std::size_t>(offset) % page;
}

/// Memory for a block, at the same offset within a page as in the file if floats can lie there.
class PagedBlock {
 public:
  std::byte* place_for(std::int64_t offset, std::size_t bytes) {
    const std::size_t lead = holds_floats(offset) ? static_cast<std::size_t>(offset) % page : 0;
    if (const std::size_t needed = lead + bytes + 2 * page; size_ < needed) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(needed);
      size_ = needed;
    }
    void* begin = memory_.get();
    std::size_t space = size_;
    return static_cast<std::byte*>(std::align(page, page, begin, space)) + lead;
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

/// Elements of a box that are contiguous both in the tensor and in memory.
struct Run {
  std::int64_t position = 0;  ///< of the first element in the flattened tensor
  std::int64_t offset = 0;    ///< of the first element in memory
  std::int64_t count = 0;
};

/// Calls visit(run) for the runs of a box, in row-major order, cut at multiples of `block_elements` of the
/// tensor.
template <class Visit>
void for_each_run(const std::vector<std::int64_t>& shape, const Box& box,
                  const std::vector<std::int64_t>& stride, const Visit& visit) {
  if (box.size() == 0) return;
  // The dimensions `inner` and later form one run.
  std::size_t inner = shape.size() - 1;
  std::int64_t length = box.count[inner];
  while (inner > 0 && box.count[inner] == shape[inner] && stride[inner - 1] == length)
    length *= box.count[--inner];
  std::vector<std::int64_t> pitch(shape.size(), 1);  // strides of the dense tensor
  for (std::size_t d = shape.size(); d-- > 1;) pitch[d - 1] = pitch[d] * shape[d];
  std::vector<std::int64_t> index(inner, 0);
  while (true) {
    Run run;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const std::int64_t i = d < inner ? index[d] : 0;
      run.position += (box.start[d] + i) * pitch[d];
      run.offset += i * stride[d];
    }
    for (std::int64_t first = 0; first < length;) {
      const std::int64_t position = run.position + first;
      const std::int64_t count = std::min(block_elements - position % block_elements, length - first);
      visit(Run{position, run.offset + first, count});
      first += count;
    }
    std::size_t d = inner;
    while (d > 0 && ++index[d - 1] == box.count[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

std::size_t bytes_of(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t infinity = 0x7f80'0000U;
  std::uint32_t largest = 0;
  for (const float value : values)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & ~(1U << 31U));
  return largest < infinity;
}

/// Reserves the file's disk space or, if the file system cannot, checks that it is free, so that a full disk
/// is detected before the first tensor is written.
void reserve(const fs::path& path, std::int64_t bytes) {
  const FileDescriptor file = open_file(path, O_WRONLY | O_NOFOLLOW);
  const WatchedCall call(CallKind::io, "fallocate", path.native(), static_cast<std::uint64_t>(bytes));
  // fallocate(2) keeps the bytes that HDF5 has written. posix_fallocate(3) would write every block if the
  // file system cannot reserve space.
  int reason = 0;
  do {
    if (::fallocate(file.get(), 0, 0, bytes) == 0) return;
    reason = errno;
  } while (reason == EINTR);
  struct statvfs disk {};
  double free = 0.0;
  if (::fstatvfs(file.get(), &disk) == 0)
    free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (reason == EOPNOTSUPP && free < static_cast<double>(bytes)) reason = ENOSPC;
  if (reason == EOPNOTSUPP) return;
  fail(ExitCode::io, "no space for {}, which needs {:.1f} MB ({:.1f} MB are free): {}", path.string(),
       static_cast<double>(bytes) * 1e-6, free * 1e-6, std::strerror(reason));
}

}  // namespace

TensorFile::TensorFile(fs::path path, int flags)
    : path_(std::move(path)), access_(flags), file_(open_file(path_, flags)) {}

void TensorFile::write_at(std::int64_t offset, std::size_t bytes, const std::byte* from) const {
  std::size_t direct = 0;
  const std::size_t head = std::min(bytes, (page - static_cast<std::size_t>(offset) % page) % page);
  if (direct_ && bytes >= least_direct && holds_floats(offset)) {
    const auto at = offset + static_cast<std::int64_t>(head);
    const WatchedCall call(CallKind::io, "write", path_.native(), bytes);
    const ssize_t n = ::pwrite(direct_.get(), from + head, (bytes - head) / page * page, at);
    if (n < 0 && errno != EINVAL && errno != EINTR)
      fail(ExitCode::io, "cannot write {} at offset {}: {}", path_.string(), at, std::strerror(errno));
    direct = static_cast<std::size_t>(std::max<ssize_t>(n, 0));
  }
  const std::size_t rest = head + direct;
  write_fully(file_.get(), path_, from, head, offset);
  write_fully(file_.get(), path_, from + rest, bytes - rest, offset + static_cast<std::int64_t>(rest));
}

void TensorFile::read_at(std::int64_t offset, std::size_t bytes, std::byte* to) const {
  if (direct_ && bytes >= least_direct && holds_floats(offset)) {
    const std::size_t lead = static_cast<std::size_t>(offset) % page;
    const std::size_t pages = (lead + bytes + page - 1) / page * page;
    const WatchedCall call(CallKind::io, "read", path_.native(), bytes);
    const ssize_t n = ::pread(direct_.get(), to - lead, pages, offset - static_cast<std::int64_t>(lead));
    if (n >= static_cast<ssize_t>(lead + bytes)) return;
  }
  read_fully(file_.get(), path_, to, bytes, offset);
}

Digest TensorFile::write(const PlacedTensor& tensor, const TensorPart& part) const {
  Digester digester;
  PagedBlock block;
  for_each_run(tensor.info.shape, part.box, part.stride, [&](const Run& run) {
    const auto count = static_cast<std::size_t>(run.count);
    const std::size_t bytes = bytes_of(run.count);
    const auto at = tensor.offset + static_cast<std::int64_t>(bytes_of(run.position));
    auto* copy = reinterpret_cast<float*>(block.place_for(at, bytes));
    const float* data = copy;
    if (part.source) {
      part.source(part.first + run.offset, {copy, count});
    } else if (direct_ && !is_congruent(part.data + run.offset, at)) {
      std::copy_n(part.data + run.offset, count, copy);
    } else {
      data = part.data + run.offset;
    }
    if (!all_finite({data, count})) {
      fail(ExitCode::numerical, "{} holds values that are not finite; no checkpoint was written",
           tensor.info.name);
    }
    digester.add(data, bytes);
    write_at(at, bytes, reinterpret_cast<const std::byte*>(data));
  });
  return digester.digest();
}

void TensorFile::read(const PlacedTensor& tensor, const TensorPart& part) const {
  for_each_run(tensor.info.shape, part.box, part.stride, [&](const Run& run) {
    const auto at = tensor.offset + static_cast<std::int64_t>(bytes_of(run.position));
    read_fully(file_.get(), path_, part.data + run.offset, bytes_of(run.count), at);
  });
}

Digest TensorFile::digest_of(const PlacedTensor& tensor, const Box& box) const {
  Digester digester;
  PagedBlock block;
  // Dense strides in memory, so that the runs are as long as the tensor allows.
  std::vector<std::int64_t> stride(box.count.size(), 1);
  for (std::size_t d = stride.size(); d-- > 1;) stride[d - 1] = stride[d] * box.count[d];
  for_each_run(tensor.info.shape, box, stride, [&](const Run& run) {
    const std::size_t bytes = bytes_of(run.count);
    const auto at = tensor.offset + static_cast<std::int64_t>(bytes_of(run.position));
    std::byte* content = block.place_for(at, bytes);
    read_at(at, bytes, content);
    digester.add(content, bytes);
  });
  return digester.digest();
}

Digest TensorFile::digest_of(std::int64_t begin, std::int64_t end) const {
  constexpr std::int64_t block_bytes = std::int64_t{1} << 20U;
  Digester digester;
  std::vector<char> block(static_cast<std::size_t>(std::min(block_bytes, end - begin)));
  for (std::int64_t at = begin; at < end; at += block_bytes) {
    const auto bytes = static_cast<std::size_t>(std::min(block_bytes, end - at));
    read_fully(file_.get(), path_, block.data(), bytes, at);
    digester.add(block.data(), bytes);
  }
  return digester.digest();
}

void TensorFile::sync() const {
  sync_file(file_.get(), path_);
}

void TensorFile::bypass_cache() {
  direct_ = FileDescriptor(::open(path_.c_str(), access_ | O_CLOEXEC | O_DIRECT));
  // Cached pages are dropped because not all bytes are read through `direct_`.
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

void TensorFile::read_ahead() const {
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

std::vector<PlacedTensor> lay_out_tensors(const fs::path& path, const std::vector<TensorInfo>& tensors,
                                          std::int64_t alignment) {
  const WatchedCall call(CallKind::io, "lay out", path.native());
  const auto check = [&](auto result, const std::string& what) {
    return h5_check(result, ExitCode::io, fmt::format("cannot write {}: {}", path.string(), what));
  };
  // Without times, the same tensors yield the same file.
  const auto without_times = [&](hid_t kind, const std::string& what) {
    H5Properties creation(check(H5Pcreate(kind), what));
    check(H5Pset_obj_track_times(creation.get(), false), what);
    return creation;
  };
  const H5Properties access = h5_serial_access();
  // In this format the metadata has checksums.
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "format version");
  const auto bytes = static_cast<hsize_t>(alignment);
  check(H5Pset_alignment(access.get(), bytes, bytes), "alignment");
  const H5Properties of_file = without_times(H5P_FILE_CREATE, "file properties");
  H5File file(check(H5Fcreate(path.c_str(), H5F_ACC_EXCL, of_file.get(), access.get()), "create"));
  std::set<std::string> groups;
  std::vector<PlacedTensor> placed;
  for (const TensorInfo& tensor : tensors) {
    const std::string& name = tensor.name;
    const std::string group = name.substr(0, name.find('/'));
    if (group != name && groups.insert(group).second) {
      const H5Properties creation = without_times(H5P_GROUP_CREATE, group);
      H5Group made(
          check(H5Gcreate2(file.get(), group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), group));
      check(made.close(), group);
    }
    const std::vector<hsize_t> shape(tensor.shape.begin(), tensor.shape.end());
    const H5Dataspace space(
        check(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), name));
    const H5Properties creation = without_times(H5P_DATASET_CREATE, name);
    check(H5Pset_layout(creation.get(), H5D_CONTIGUOUS), name);
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), name);
    check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), name);
    H5Dataset dataset(check(H5Dcreate2(file.get(), name.c_str(), H5T_IEEE_F32LE, space.get(), H5P_DEFAULT,
                                       creation.get(), H5P_DEFAULT),
                            name));
    const haddr_t offset = H5Dget_offset(dataset.get());
    if (offset == HADDR_UNDEF)
      fail(ExitCode::io, "cannot write {}: HDF5 gave {} no offset", path.string(), name);
    check(dataset.close(), name);
    placed.push_back({tensor, static_cast<std::int64_t>(offset)});
  }
  check(file.close(), "close");
  reserve(path, static_cast<std::int64_t>(fs::file_size(path)));
  return placed;
}

}  // namespace mylos
