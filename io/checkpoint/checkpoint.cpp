// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <fcntl.h>
#include <map>
#include <sys/statvfs.h>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/joined.hpp"
#include "io/agree.hpp"
#include "io/checkpoint/checkpoint_manifest.hpp"
#include "io/file_util.hpp"
#include "io/hdf5_handle.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr int max_rank = 8;
constexpr std::int64_t max_tensor_size = std::int64_t{1} << 48U;
constexpr std::int64_t max_tensors = 1'000'000;
constexpr std::int64_t chunk_elements = std::int64_t{1} << 20U;  // 4 MiB
constexpr std::int64_t max_chunk_bytes = std::int64_t{64} << 20U;
// Of a rank in one collective call, 16 MiB: HDF5 copies the chunks of a call.
constexpr std::int64_t max_transfer = std::int64_t{4} << 20U;
constexpr std::int64_t checksum_bytes = 4;

using Extents = std::vector<hsize_t>;

Extents to_extents(const std::vector<std::int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("({})", joined(shape, ", "));
}

/// Rows of full width as far as they fit; the rows of a tensor divided evenly, so that the last chunk wastes
/// little.
Extents chunk_shape(const std::vector<std::int64_t>& shape) {
  Extents chunk(shape.size(), 1);
  std::int64_t room = chunk_elements;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const std::int64_t parts = (shape[d] + room - 1) / room;
    const std::int64_t extent = (shape[d] + parts - 1) / parts;
    chunk[d] = static_cast<hsize_t>(extent);
    room = std::max<std::int64_t>(1, room / extent);
  }
  return chunk;
}

/// What a tensor takes in the file: whole chunks, each with its checksum.
std::int64_t stored_bytes(const Extents& shape, const Extents& chunk) {
  std::int64_t chunks = 1;
  auto chunk_bytes = static_cast<std::int64_t>(sizeof(float));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    chunks *= static_cast<std::int64_t>((shape[d] + chunk[d] - 1) / chunk[d]);
    chunk_bytes *= static_cast<std::int64_t>(chunk[d]);
  }
  return chunks * (chunk_bytes + checksum_bytes);
}

/// A box that HDF5 moves in one call, and the array in memory whose first elements along each dimension it
/// is.
struct Transfer {
  Extents start;
  Extents count;
  Extents memory;
  float* data = nullptr;
};

/// The dataspaces of a transfer in file and memory; a null one selects nothing.
std::pair<H5Dataspace, H5Dataspace> spaces_of(const Extents& shape, const Transfer* transfer) {
  const auto simple = [](const Extents& extents) {
    return H5Dataspace(h5_check(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                                ExitCode::internal, "dataspace"));
  };
  const auto select = [](const H5Dataspace& space, const Extents& start, const Extents& count) {
    h5_check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
             ExitCode::internal, "selection");
  };
  H5Dataspace in_file = simple(shape);
  H5Dataspace in_memory = simple(transfer != nullptr ? transfer->memory : Extents(shape.size(), 1));
  if (transfer == nullptr) {
    h5_check(H5Sselect_none(in_file.get()), ExitCode::internal, "selection");
    h5_check(H5Sselect_none(in_memory.get()), ExitCode::internal, "selection");
  } else {
    select(in_file, transfer->start, transfer->count);
    if (transfer->memory != transfer->count) select(in_memory, Extents(shape.size(), 0), transfer->count);
  }
  return {std::move(in_file), std::move(in_memory)};
}

/// The parts, cut along the first dimension to a bounded size, if possible between chunks: a chunk
/// that two transfers write would be read, checked and written twice.
std::vector<Transfer> transfers_of(const TensorInfo& info, std::span<const TensorPart> parts) {
  const Extents chunk = chunk_shape(info.shape);
  std::vector<Transfer> transfers;
  for (const TensorPart& part : parts) {
    if (part.box.size() == 0) continue;
    const std::size_t rank = info.shape.size();
    const std::int64_t row = part.box.size() / part.box.count[0];
    const auto chunk_rows = static_cast<std::int64_t>(chunk[0]);
    const std::int64_t most = std::max<std::int64_t>(1, max_transfer / row);
    const std::int64_t grain = most < chunk_rows ? most : most / chunk_rows * chunk_rows;
    Transfer transfer{.start = {part.box.start.begin(), part.box.start.end()},
                      .count = {part.box.count.begin(), part.box.count.end()},
                      .memory = Extents(rank),
                      .data = part.data};
    for (std::size_t d = 1; d < rank; ++d)
      transfer.memory[d] = static_cast<hsize_t>(part.stride[d - 1] / part.stride[d]);
    const std::int64_t end = part.box.start[0] + part.box.count[0];
    for (std::int64_t begin = part.box.start[0]; begin < end;) {
      const std::int64_t next = std::min(end, (begin / grain + 1) * grain);
      transfer.start[0] = static_cast<hsize_t>(begin);
      transfer.count[0] = transfer.memory[0] = static_cast<hsize_t>(next - begin);
      transfer.data = part.data + (begin - part.box.start[0]) * part.stride[0];
      transfers.push_back(transfer);
      begin = next;
    }
  }
  return transfers;
}

void check_parts(const TensorInfo& info, std::span<const TensorPart> parts) {
  for (const TensorPart& part : parts) {
    require(part.box.fits(info.shape) && part.stride.size() == info.shape.size() && part.stride.back() == 1,
            "parts inside their tensor");
  }
}

/// A file that all ranks write together. Unless it was closed the destructor gives its handles up without
/// closing them: after a failed collective call closing would wait for ever for ranks that are elsewhere. The
/// job ends anyway.
class CollectiveFile {
 public:
  CollectiveFile(MPI_Comm comm, fs::path path) : path_(std::move(path)) {
    H5Properties access = h5_serial_access();
    transfer_ =
        H5Properties(h5_check(H5Pcreate(H5P_DATASET_XFER), ExitCode::internal, "transfer properties"));
    if (comm != MPI_COMM_NULL) {
      check(H5Pset_fapl_mpio(access.get(), comm, MPI_INFO_NULL), "MPI access");
      check(H5Pset_dxpl_mpio(transfer_.get(), H5FD_MPIO_COLLECTIVE), "collective access");
    }
    // Formats from 1.10 on carry checksums in all metadata.
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_LATEST), "format version");
    // MPI-IO reads what comes before a colon as the name of a file system.
    const bool colon = comm != MPI_COMM_NULL && path_.string().find(':') != std::string::npos;
    const std::string name = (colon ? "ufs:" : "") + path_.string();
    file_ = H5File(check(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), "create"));
  }
  ~CollectiveFile() {
    for (auto& [name, dataset] : datasets_) dataset.release();
    file_.release();
  }
  CollectiveFile(CollectiveFile&&) = default;
  CollectiveFile& operator=(CollectiveFile&&) = delete;

  void create(const TensorInfo& info) {
    if (const std::size_t slash = info.name.find('/'); slash != std::string::npos) {
      create_group(info.name.substr(0, slash));
    }
    const Extents shape = to_extents(info.shape);
    const Extents chunk = chunk_shape(info.shape);
    const H5Dataspace space(
        check(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), info.name));
    const H5Properties creation(check(H5Pcreate(H5P_DATASET_CREATE), info.name));
    check(H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data()), info.name);
    check(H5Pset_fletcher32(creation.get()), info.name);
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), info.name);
    check(H5Pset_obj_track_times(creation.get(), false), info.name);
    datasets_.emplace_back(
        info.name, H5Dataset(check(H5Dcreate2(file_.get(), info.name.c_str(), H5T_IEEE_F32LE, space.get(),
                                              H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                                   info.name)));
  }

  /// Collective: writes `transfer`, or nothing if it is null, to the dataset created as `index`-th.
  void write(std::size_t index, const TensorInfo& info, const Transfer* transfer) {
    const auto [in_file, in_memory] = spaces_of(to_extents(info.shape), transfer);
    const float none = 0.0F;
    check(H5Dwrite(datasets_[index].second.get(), H5T_NATIVE_FLOAT, in_memory.get(), in_file.get(),
                   transfer_.get(), transfer != nullptr ? transfer->data : &none),
          info.name);
  }

  void close() {
    for (auto& [name, dataset] : datasets_) check(dataset.close(), name);
    datasets_.clear();
    check(file_.close(), "close");
  }

  const fs::path& path() const { return path_; }

 private:
  template <class Result>
  Result check(Result result, const std::string& what) const {
    return h5_check(result, ExitCode::io, fmt::format("cannot write {}: {}", path_.string(), what));
  }

  void create_group(const std::string& name) {
    if (!groups_.empty() && groups_.back() == name) return;
    H5Group group(check(H5Gcreate2(file_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), name));
    check(group.close(), name);
    groups_.push_back(name);
  }

  fs::path path_;
  H5Properties transfer_;
  H5File file_;
  std::vector<std::pair<std::string, H5Dataset>> datasets_;
  std::vector<std::string> groups_;
};

// --- Reading
// --------------------------------------------------------------------------------------------------------
//
// Ranks read with the serial driver, each what it needs, and agree on the outcome: no call into HDF5 waits
// for another rank, so that a file which only one rank fails to read hangs nobody.

/// Refuses what HDF5 should not even look at: formats before 1.10, whose metadata has no checksums.
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

class TensorFile {
 public:
  explicit TensorFile(fs::path path) : path_(std::move(path)) {
    check_superblock(path_);
    file_bytes_ = static_cast<std::int64_t>(fs::file_size(path_));
    const H5Properties access = h5_serial_access();
    file_ = H5File(check(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access.get()), "open"));
    scan("", 0);
  }

  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  void read(const TensorInfo& wanted, std::span<const TensorPart> parts) const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const TensorInfo& tensor) { return tensor.name == wanted.name; });
    if (found == tensors_.end()) {
      fail(ExitCode::bad_data, "{}: no dataset {}, which should have shape {}", path_.string(), wanted.name,
           shape_text(wanted.shape));
    }
    if (found->shape != wanted.shape) {
      fail(ExitCode::bad_data, "{}: dataset {} has shape {}, the model needs {}", path_.string(), wanted.name,
           shape_text(found->shape), shape_text(wanted.shape));
    }
    check_parts(wanted, parts);
    const H5Dataset dataset = open(wanted.name);
    for (const Transfer& transfer : transfers_of(wanted, parts)) {
      const auto [in_file, in_memory] = spaces_of(to_extents(wanted.shape), &transfer);
      check(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, in_memory.get(), in_file.get(), H5P_DEFAULT,
                    transfer.data),
            wanted.name);
    }
  }

  /// Where the chunks of each dataset lie, neighbours joined.
  std::vector<DatasetExtent> dataset_extents() const {
    std::vector<DatasetExtent> extents;
    for (const TensorInfo& tensor : tensors_) {
      const H5Dataset dataset = open(tensor.name);
      const H5Dataspace space(check(H5Dget_space(dataset.get()), tensor.name));
      hsize_t chunks = 0;
      check(H5Dget_num_chunks(dataset.get(), space.get(), &chunks), tensor.name);
      std::vector<DatasetExtent> mine;
      for (hsize_t i = 0; i < chunks; ++i) {
        haddr_t begin = 0;
        hsize_t bytes = 0;
        check(H5Dget_chunk_info(dataset.get(), space.get(), i, nullptr, nullptr, &begin, &bytes),
              tensor.name);
        mine.push_back(
            {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(begin + bytes), tensor.name});
      }
      std::sort(mine.begin(), mine.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
      for (const DatasetExtent& chunk : mine) {
        const bool continues =
            !extents.empty() && extents.back().dataset == chunk.dataset && extents.back().end == chunk.begin;
        if (continues) {
          extents.back().end = chunk.end;
        } else {
          extents.push_back(chunk);
        }
      }
    }
    return extents;
  }

 private:
  template <class Result>
  Result check(Result result, const std::string& what) const {
    return h5_check(result, ExitCode::bad_data, fmt::format("cannot read {}: {}", path_.string(), what));
  }

  H5Dataset open(const std::string& name) const {
    const H5Properties access(check(H5Pcreate(H5P_DATASET_ACCESS), name));
    // Room for a few chunks, so that the parts of a rank within one chunk read it once.
    constexpr std::size_t cache_slots = 127;
    constexpr std::size_t cache_bytes = std::size_t{16} << 20U;
    check(H5Pset_chunk_cache(access.get(), cache_slots, cache_bytes, H5D_CHUNK_CACHE_W0_DEFAULT), name);
    return H5Dataset(check(H5Dopen2(file_.get(), name.c_str(), access.get()), name));
  }

  /// Collects the datasets of the root (depth 0) or of a group in it. Links other than hard ones lead out of
  /// the file and are refused, as is everything deeper: hard links can form cycles.
  void scan(const std::string& prefix, int depth) {
    const std::string where = prefix.empty() ? "/" : prefix;
    const H5Group group(check(H5Gopen2(file_.get(), where.c_str(), H5P_DEFAULT), where));
    H5G_info_t info{};
    check(H5Gget_info(group.get(), &info), where);
    for (hsize_t i = 0; i < info.nlinks; ++i) {
      if (static_cast<std::int64_t>(tensors_.size()) >= max_tensors)
        fail_at(where, "holds too many datasets");
      std::array<char, 512> buffer{};
      const ssize_t length = check(H5Lget_name_by_idx(group.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i,
                                                      buffer.data(), buffer.size(), H5P_DEFAULT),
                                   where);
      if (length == 0 || static_cast<std::size_t>(length) >= buffer.size())
        fail_at(where, "holds a bad name");
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

  /// Checks everything that reading relies on: type, shape, chunks, the one filter, and that all chunks are
  /// there.
  TensorInfo describe(hid_t dataset, const std::string& name) const {
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
      fail_at(name, "has odd chunks");
    check_size(chunk, max_chunk_bytes / static_cast<std::int64_t>(sizeof(float)), name);
    unsigned flags = 0;
    std::size_t values = 0;
    if (check(H5Pget_nfilters(creation.get()), name) != 1 ||
        H5Pget_filter2(creation.get(), 0, &flags, &values, nullptr, 0, nullptr, nullptr) !=
            H5Z_FILTER_FLETCHER32) {
      fail_at(name, "has other filters than Fletcher32");
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

  void check_size(const Extents& extents, std::int64_t limit, const std::string& name) const {
    hsize_t room = static_cast<hsize_t>(limit);
    for (const hsize_t extent : extents) {
      if (extent < 1 || extent > room) fail_at(name, fmt::format("has extents ({})", joined(extents, ", ")));
      room /= extent;
    }
  }

  [[noreturn]] void fail_at(const std::string& name, const std::string& problem) const {
    fail(ExitCode::bad_data, "{}: {} {}", path_.string(), name, problem);
  }

  fs::path path_;
  std::int64_t file_bytes_ = 0;
  H5File file_;
  std::vector<TensorInfo> tensors_;
};

// --- Directories
// ----------------------------------------------------------------------------------------------------

constexpr const char* step_prefix = "step_";
constexpr const char* temporary_suffix = ".tmp";
constexpr const char* replaced_suffix = ".old";

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:06}", step_prefix, step);
}

/// The step of a directory's name, or nothing where it is not exactly what `step_name` makes.
std::optional<std::int64_t> step_of(const std::string& name) {
  const std::size_t skip = std::string(step_prefix).size();
  if (name.size() <= skip) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + skip, name.data() + name.size(), step);
  if (error != std::errc() || step_name(step) != name) return std::nullopt;
  return step;
}

/// The steps that have a directory, ascending.
std::vector<std::int64_t> list_steps(const fs::path& directory) {
  std::vector<std::int64_t> steps;
  if (!fs::exists(directory)) return steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (const auto step = step_of(entry.path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

/// Under a name that says so, then for good: a kill in between leaves no checkpoint that is half there.
void remove_checkpoint(const fs::path& checkpoint) {
  const fs::path temporary = checkpoint.string() + temporary_suffix;
  fs::rename(checkpoint, temporary);
  fs::remove_all(temporary);
}

/// Tidies after a killed writer. A replaced checkpoint whose successor is not in place goes back to its name.
void remove_leftovers(const fs::path& directory) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) entries.push_back(entry.path());
  for (const fs::path& entry : entries) {
    const fs::path target = entry.parent_path() / entry.stem();
    if (!step_of(target.filename().string())) continue;
    if (entry.extension() == replaced_suffix && !fs::exists(target)) {
      fs::rename(entry, target);
    } else if (entry.extension() == replaced_suffix || entry.extension() == temporary_suffix) {
      fs::remove_all(entry);
    }
  }
}

void check_space(const fs::path& directory, const CheckpointContent& content) {
  constexpr std::int64_t per_file = std::int64_t{1} << 16U;
  constexpr std::int64_t per_tensor = 2048;  // object header, link, chunk index, manifest
  std::int64_t needed = 4 * per_file + static_cast<std::int64_t>(content.state.json.size());
  for (const CheckpointContent::Tensor& tensor : content.tensors) {
    needed += per_tensor + stored_bytes(to_extents(tensor.info.shape), chunk_shape(tensor.info.shape));
  }
  struct statvfs disk {};
  if (::statvfs(directory.c_str(), &disk) != 0) {
    fail(ExitCode::io, "cannot read the free space of {}: {}", directory.string(),
         std::generic_category().message(errno));
  }
  const double available = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (available < static_cast<double>(needed)) {
    fail(ExitCode::io, "no space for a checkpoint in {}: it needs {:.1f} MB, {:.1f} MB are free",
         directory.string(), static_cast<double>(needed) * 1e-6, available * 1e-6);
  }
}

// --- The writer
// -----------------------------------------------------------------------------------------------------

/// One checkpoint being written, on the I/O thread of every rank.
class Writer {
 public:
  Writer(const IoThread& io, const fs::path& directory, const CheckpointPhaseHook& hook,
         const CheckpointContent& content)
      : comm_(io.comm()),
        rank_(io.rank()),
        size_(io.size()),
        directory_(directory),
        target_(directory / step_name(content.state.step)),
        temporary_(target_.string() + temporary_suffix),
        hook_(hook),
        content_(content) {}

  void run(std::int64_t keep) {
    prepare();
    write_tensors();
    sync_files();
    write_manifest();
    rename_into_place();
    purge(keep);
    phase(CheckpointPhase::done);
  }

 private:
  void phase(CheckpointPhase phase) const {
    if (hook_) hook_(phase);
  }

  /// Runs `work` on rank 0; its errors are everyone's.
  void on_root(const std::function<void()>& work) const {
    agreed(comm_, [&] {
      if (rank_ == 0) work();
    });
  }

  void prepare() {
    std::vector<std::int64_t> own;  // for each tensor the number of boxes, then start and count of each
    agreed(comm_, [&] {
      phase(CheckpointPhase::begin);
      for (const CheckpointContent::Tensor& tensor : content_.tensors) {
        const auto& shape = tensor.info.shape;
        require(
            !shape.empty() && shape.size() <= max_rank && *std::min_element(shape.begin(), shape.end()) > 0,
            "a tensor of a checkpoint has 1 to 8 dimensions, none empty");
        check_parts(tensor.info, tensor.parts);
        own.push_back(static_cast<std::int64_t>(tensor.parts.size()));
        for (const TensorPart& part : tensor.parts) {
          own.insert(own.end(), part.box.start.begin(), part.box.start.end());
          own.insert(own.end(), part.box.count.begin(), part.box.count.end());
        }
      }
    });
    const std::vector<std::vector<std::int64_t>> all = gathered_at_root(comm_, own);
    on_root([&] { check_cover(all); });
    on_root([&] {
      make_directory(directory_);
      remove_leftovers(directory_);
      check_space(directory_, content_);
      make_directory(temporary_);
    });
  }

  /// Throws unless the boxes of all ranks cover each tensor disjointly and completely.
  void check_cover(const std::vector<std::vector<std::int64_t>>& all) const {
    std::vector<std::size_t> next(all.size(), 0);
    for (const CheckpointContent::Tensor& tensor : content_.tensors) {
      const auto rank = static_cast<std::ptrdiff_t>(tensor.info.shape.size());
      std::vector<Box> boxes;
      for (std::size_t r = 0; r < all.size(); ++r) {
        for (std::int64_t left = all[r][next[r]++]; left > 0; --left) {
          const auto start = all[r].begin() + static_cast<std::ptrdiff_t>(next[r]);
          boxes.push_back({.start = {start, start + rank}, .count = {start + rank, start + 2 * rank}});
          next[r] += 2 * static_cast<std::size_t>(rank);
        }
      }
      if (!cover_once(tensor.info.shape, boxes)) {
        fail(ExitCode::internal, "the ranks' parts do not cover {} of shape {} exactly once",
             tensor.info.name, shape_text(tensor.info.shape));
      }
    }
  }

  void write_tensors() {
    std::vector<std::vector<Transfer>> transfers;
    std::vector<std::int64_t> rounds;
    for (const CheckpointContent::Tensor& tensor : content_.tensors) {
      transfers.push_back(transfers_of(tensor.info, tensor.parts));
      rounds.push_back(static_cast<std::int64_t>(transfers.back().size()));
    }
    agreed_max(comm_, rounds);

    phase(CheckpointPhase::create);
    std::map<std::string, CollectiveFile> files;
    std::map<std::string, std::size_t> num_datasets;
    std::vector<std::size_t> index;  // of the tensor in its file
    for (const CheckpointContent::Tensor& tensor : content_.tensors) {
      auto file = files.find(tensor.file);
      if (file == files.end()) {
        file = files.emplace(tensor.file, CollectiveFile(comm_, temporary_ / tensor.file)).first;
        file_names_.push_back(tensor.file);
      }
      file->second.create(tensor.info);
      index.push_back(num_datasets[tensor.file]++);
    }

    phase(CheckpointPhase::write);
    for (std::size_t t = 0; t < content_.tensors.size(); ++t) {
      const CheckpointContent::Tensor& tensor = content_.tensors[t];
      for (std::int64_t round = 0; round < rounds[t]; ++round) {
        const auto r = static_cast<std::size_t>(round);
        files.at(tensor.file)
            .write(index[t], tensor.info, r < transfers[t].size() ? &transfers[t][r] : nullptr);
      }
    }

    phase(CheckpointPhase::close);
    for (const std::string& name : file_names_) files.at(name).close();
  }

  void sync_files() {
    agreed(comm_, [&] {
      phase(CheckpointPhase::fsync);
      for (const std::string& name : file_names_) sync_path(temporary_ / name);
      if (rank_ == 0) write_text_file(temporary_ / "state.json", content_.state.json);
    });
  }

  /// Rank 0 cuts the files into pieces, all ranks compute the digests of their share.
  void write_manifest() {
    Manifest manifest;
    manifest.step = content_.state.step;
    std::vector<std::int64_t> cuts;  // file, begin, end of each piece
    agreed(comm_, [&] {
      phase(CheckpointPhase::manifest);
      if (rank_ != 0) return;
      for (const std::string& name : file_names_) {
        const fs::path path = temporary_ / name;
        const auto bytes = static_cast<std::int64_t>(fs::file_size(path));
        manifest.files.push_back(cut_into_pieces(name, bytes, TensorFile(path).dataset_extents()));
      }
      const auto bytes = static_cast<std::int64_t>(content_.state.json.size());
      manifest.files.push_back(cut_into_pieces("state.json", bytes, {}));
      for (std::size_t f = 0; f < manifest.files.size(); ++f) {
        const ManifestFile& file = manifest.files[f];
        for (std::size_t i = 0; i < file.pieces.size(); ++i) {
          cuts.insert(cuts.end(), {static_cast<std::int64_t>(f), file.begin(i), file.pieces[i].end});
        }
      }
    });
    agreed_with_root(comm_, cuts);

    std::vector<std::string> names = file_names_;
    names.emplace_back("state.json");
    const std::size_t num_pieces = cuts.size() / 3;
    std::vector<std::uint64_t> digests(2 * num_pieces, 0);
    agreed(comm_, [&] {
      for (auto i = static_cast<std::size_t>(rank_); i < num_pieces; i += static_cast<std::size_t>(size_)) {
        const Digest digest = digest_of(temporary_ / names[static_cast<std::size_t>(cuts[3 * i])],
                                        cuts[3 * i + 1], cuts[3 * i + 2]);
        digests[2 * i] = digest.high;
        digests[2 * i + 1] = digest.low;
      }
    });
    agreed_bit_or(comm_, digests);

    on_root([&] {
      std::size_t i = 0;
      for (ManifestFile& file : manifest.files) {
        for (ManifestPiece& piece : file.pieces) {
          piece.digest = Digest{digests[2 * i], digests[2 * i + 1]}.text();
          ++i;
        }
      }
      write_text_file(temporary_ / "manifest.json", manifest_text(manifest));
    });
  }

  void rename_into_place() {
    agreed(comm_, [&] {
      phase(CheckpointPhase::rename);
      if (rank_ != 0) return;
      const fs::path replaced = target_.string() + replaced_suffix;
      if (fs::exists(target_)) fs::rename(target_, replaced);
      fs::rename(temporary_, target_);
      sync_path(directory_);
      fs::remove_all(replaced);
    });
  }

  /// Later steps are of a run that a restart from an earlier step gave up; they would be taken for this
  /// one's.
  void purge(std::int64_t keep) {
    agreed(comm_, [&] {
      phase(CheckpointPhase::purge);
      if (rank_ != 0) return;
      std::vector<std::int64_t> steps = list_steps(directory_);
      std::int64_t kept = 0;
      for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        if (*step <= content_.state.step && kept++ < keep) continue;
        remove_checkpoint(directory_ / step_name(*step));
      }
    });
  }

  MPI_Comm comm_;
  int rank_;
  int size_;
  fs::path directory_;
  fs::path target_;
  fs::path temporary_;
  const CheckpointPhaseHook& hook_;
  const CheckpointContent& content_;
  std::vector<std::string> file_names_;
};

}  // namespace

std::int64_t TensorInfo::size() const {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

std::vector<TensorPart> parts_of_range(const TensorInfo& tensor, std::int64_t begin, std::int64_t count,
                                       float* data) {
  std::vector<TensorPart> parts;
  for (PlacedBox& box : boxes_of_range(tensor.shape, begin, begin + count)) {
    parts.push_back({std::move(box.box), data + box.offset, std::move(box.stride)});
  }
  return parts;
}

CheckpointStore::CheckpointStore(IoThread& io, fs::path directory, std::int64_t keep,
                                 CheckpointPhaseHook hook)
    : io_(io),
      directory_(std::move(directory)),
      keep_(std::max<std::int64_t>(keep, 2)),
      hook_(std::move(hook)) {}

void CheckpointStore::write(const CheckpointContent& content) {
  io_.run([&] { Writer(io_, directory_, hook_, content).run(keep_); });
}

std::vector<std::int64_t> CheckpointStore::steps() const {
  std::vector<std::int64_t> steps = list_steps(directory_);
  std::erase_if(steps, [&](std::int64_t step) { return !fs::exists(path_of(step) / "manifest.json"); });
  return steps;
}

fs::path CheckpointStore::path_of(std::int64_t step) const {
  return directory_ / step_name(step);
}

struct CheckpointReader::Impl {
  explicit Impl(IoThread& thread) : io(thread) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    io.run([this] { files.clear(); });
  }

  const TensorFile& file(const std::string& name) const {
    const auto found = files.find(name);
    if (found == files.end()) fail(ExitCode::bad_data, "{} has no {}", path.string(), name);
    return found->second;
  }

  IoThread& io;
  fs::path path;
  CheckpointState state;
  std::map<std::string, TensorFile> files;
};

CheckpointReader::CheckpointReader(IoThread& io, const fs::path& checkpoint)
    : impl_(std::make_unique<Impl>(io)) {
  impl_->path = checkpoint;
  io.run([&] {
    Manifest manifest;
    agreed(io.comm(), [&] {
      manifest = read_manifest(checkpoint);
      check_sizes(checkpoint, manifest);
    });
    agreed(io.comm(), [&] {
      const auto problems = check_digests(checkpoint, manifest, static_cast<std::size_t>(io.rank()),
                                          static_cast<std::size_t>(io.size()));
      if (!problems.empty()) fail(ExitCode::bad_data, "{}", joined(problems, "\n"));
    });
    agreed(io.comm(), [&] {
      impl_->state.step = manifest.step;
      impl_->state.json = read_text_file(checkpoint / "state.json");
      for (const ManifestFile& file : manifest.files) {
        if (file.name.ends_with(".h5")) impl_->files.emplace(file.name, TensorFile(checkpoint / file.name));
      }
    });
  });
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;

const CheckpointState& CheckpointReader::state() const {
  return impl_->state;
}

std::vector<TensorInfo> CheckpointReader::tensors(const std::string& file) const {
  return impl_->file(file).tensors();
}

void CheckpointReader::read(const std::string& file, const TensorInfo& tensor,
                            std::span<const TensorPart> parts) {
  impl_->io.run([&] { agreed(impl_->io.comm(), [&] { impl_->file(file).read(tensor, parts); }); });
}

std::optional<CheckpointReader> open_newest(IoThread& io, const fs::path& directory,
                                            std::optional<std::int64_t> step,
                                            const std::function<void(const std::string&)>& warn) {
  if (step) return CheckpointReader(io, directory / step_name(*step));

  std::vector<std::int64_t> steps;
  io.run([&] {
    agreed(io.comm(), [&] {
      if (io.rank() == 0) steps = list_steps(directory);
    });
    agreed_with_root(io.comm(), steps);
  });
  for (auto newest = steps.rbegin(); newest != steps.rend(); ++newest) {
    try {
      return CheckpointReader(io, directory / step_name(*newest));
    } catch (const Error& error) {
      if (error.code() != ExitCode::bad_data) throw;
      warn(fmt::format("{} is not whole and is passed over: {}", step_name(*newest), error.what()));
    }
  }
  if (!steps.empty())
    fail(ExitCode::bad_data, "none of the {} checkpoints in {} is whole", steps.size(), directory.string());
  return std::nullopt;
}

std::vector<std::string> verify_checkpoint(const fs::path& checkpoint) {
  try {
    const Manifest manifest = read_manifest(checkpoint);
    check_sizes(checkpoint, manifest);
    return check_digests(checkpoint, manifest, 0, 1);
  } catch (const Error& error) {
    return {error.what()};
  }
}

}  // namespace mylos
