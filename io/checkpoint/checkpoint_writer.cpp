// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <iterator>
#include <map>
#include <numeric>
#include <sys/vfs.h>
#include <system_error>
#include <utility>

#include "core/base/clock.hpp"
#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/agree.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_manifest.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

using Integers = std::vector<std::int64_t>;

constexpr std::int64_t digest_bytes = std::int64_t{64} << 20U;  // most per digest, unless one row is larger

/// Appends the boxes of parts as integers: their number, then start and count of each.
void append_boxes(const std::vector<TensorPart>& parts, Integers& integers) {
  integers.push_back(static_cast<std::int64_t>(parts.size()));
  for (const TensorPart& part : parts) {
    integers.insert(integers.end(), part.box.start.begin(), part.box.start.end());
    integers.insert(integers.end(), part.box.count.begin(), part.box.count.end());
  }
}

std::vector<Box> take_boxes(const Integers& integers, std::size_t& next, std::size_t rank) {
  std::vector<Box> boxes(static_cast<std::size_t>(integers[next++]));
  for (Box& box : boxes) {
    for (std::vector<std::int64_t>* extents : {&box.start, &box.count}) {
      const auto begin = integers.begin() + static_cast<std::ptrdiff_t>(next);
      extents->assign(begin, begin + static_cast<std::ptrdiff_t>(rank));
      next += rank;
    }
  }
  return boxes;
}

}  // namespace

/// One checkpoint being written, on the store's thread `io` of every rank.
class CheckpointStore::Writer {
 public:
  Writer(CheckpointStore& store, const CheckpointContent& content)
      : store_(store),
        comm_(store.io_.comm()),
        rank_(store.io_.rank()),
        target_(store.path_of(content.state.step)),
        temporary_(target_.string() + temporary_suffix),
        content_(content) {}

  void run() {
    gather_boxes();
    lay_out();
    write_parts();
    write_manifest();
    rename_into_place();
  }

 private:
  void phase(CheckpointPhase phase) const { store_.hook_(phase, content_.state.step); }

  /// Tells rank 0 which boxes every rank writes, one per digest, and creates the directory.
  void gather_boxes() {
    Integers own;
    run_collectively(comm_, [&] {
      phase(CheckpointPhase::begin);
      for (const CheckpointTensor& tensor : content_.tensors) {
        check_parts(tensor.info, tensor.parts);
        std::vector<TensorPart>& cuts = cuts_.emplace_back();
        for (const TensorPart& part : tensor.parts)
          std::ranges::move(cut(part, digest_bytes), std::back_inserter(cuts));
        append_boxes(cuts, own);
      }
    });
    boxes_ = gather_to_root(comm_, own);
    run_collectively(comm_, [&] {
      if (rank_ != 0) return;
      check_cover();
      make_directory(store_.directory_);
      remove_leftovers(store_.directory_, store_.warn_);
      std::error_code error;
      if (!fs::create_directory(temporary_, error))
        fail(ExitCode::io, "cannot create {}: {}", temporary_.string(),
             error ? error.message() : "it exists and holds files that mylos did not write");
    });
  }

  /// Throws unless the boxes of all ranks contain each element of each tensor exactly once.
  void check_cover() const {
    std::vector<std::size_t> next(boxes_.size(), 0);
    for (const CheckpointTensor& tensor : content_.tensors) {
      std::vector<Box> all;
      for (std::size_t r = 0; r < boxes_.size(); ++r)
        std::ranges::move(take_boxes(boxes_[r], next[r], tensor.info.shape.size()), std::back_inserter(all));
      if (!cover_once(tensor.info.shape, std::move(all))) {
        fail(ExitCode::internal, "the ranks' parts do not cover {} of shape {} exactly once",
             tensor.info.name, tensor.info.shape_text());
      }
    }
  }

  std::vector<std::string> file_names() const {
    std::vector<std::string> names;
    for (const CheckpointTensor& tensor : content_.tensors) {
      if (std::ranges::find(names, tensor.file) == names.end()) names.push_back(tensor.file);
    }
    return names;
  }

  /// Rank 0 creates the HDF5 files and broadcasts the tensors' offsets.
  void lay_out() {
    Integers offsets(content_.tensors.size());
    run_collectively(comm_, [&] {
      phase(CheckpointPhase::create);
      if (rank_ != 0) return;
      for (const std::string& name : file_names()) {
        std::vector<TensorInfo> tensors;
        std::vector<std::size_t> places;
        for (std::size_t t = 0; t < content_.tensors.size(); ++t) {
          if (content_.tensors[t].file != name) continue;
          tensors.push_back(content_.tensors[t].info);
          places.push_back(t);
        }
        std::vector<PlacedTensor> placed;
        store_.hdf5_.run(
            [&] { placed = lay_out_tensors(temporary_ / name, tensors, store_.settings_.alignment); });
        for (std::size_t i = 0; i < placed.size(); ++i) offsets[places[i]] = placed[i].offset;
      }
    });
    broadcast_from_root(comm_, offsets);
    for (std::size_t t = 0; t < offsets.size(); ++t)
      placed_.push_back({.info = content_.tensors[t].info, .offset = offsets[t]});
  }

  void write_parts() {
    run_collectively(comm_, [&] {
      phase(CheckpointPhase::write);
      std::map<std::string, TensorFile> files;
      for (const std::string& name : file_names()) {
        const auto file = files.emplace(name, TensorFile(temporary_ / name, O_WRONLY | O_NOFOLLOW)).first;
        file->second.bypass_cache();  // faster than the page cache, and does not fill it
      }
      for (std::size_t t = 0; t < placed_.size(); ++t) {
        const TensorFile& file = files.at(content_.tensors[t].file);
        for (const TensorPart& part : cuts_[t]) digests_.push_back(file.write(placed_[t], part));
      }
      phase(CheckpointPhase::fsync);
      for (const auto& [name, file] : files) file.sync();
      if (rank_ == 0) write_text_file(temporary_ / "state.json", content_.state.json);
    });
  }

  void write_manifest() {
    Integers own;
    for (const Digest& digest : digests_) {
      own.push_back(static_cast<std::int64_t>(digest.high));
      own.push_back(static_cast<std::int64_t>(digest.low));
    }
    const std::vector<Integers> digests = gather_to_root(comm_, own);
    run_collectively(comm_, [&] {
      phase(CheckpointPhase::manifest);
      if (rank_ != 0) return;
      const std::string text = manifest_text(make_manifest(digests));
      if (text.size() > max_manifest_bytes) {
        fail(ExitCode::internal, "the manifest of {} parts has {} bytes; no more than {} could be read again",
             std::accumulate(
                 digests.begin(), digests.end(), std::size_t{0},
                 [](std::size_t sum, const Integers& of_rank) { return sum + of_rank.size() / 2; }),
             text.size(), max_manifest_bytes);
      }
      write_text_file(temporary_ / "manifest.json", text);
    });
  }

  /// Called on rank 0, which has the boxes and digests of all ranks, in the order of the tensors.
  Manifest make_manifest(const std::vector<Integers>& digests) const {
    std::map<std::string, std::vector<ManifestTensor>> tensors;  // by file
    std::vector<std::size_t> box(boxes_.size(), 0);              // position in each rank's `boxes_`
    std::vector<std::size_t> digest(digests.size(), 0);          // position in each rank's `digests`
    for (std::size_t t = 0; t < placed_.size(); ++t) {
      ManifestTensor tensor{.placed = placed_[t], .parts = {}};
      for (std::size_t r = 0; r < boxes_.size(); ++r) {
        for (Box& part : take_boxes(boxes_[r], box[r], placed_[t].info.shape.size())) {
          const auto high = static_cast<std::uint64_t>(digests[r][digest[r]++]);
          const auto low = static_cast<std::uint64_t>(digests[r][digest[r]++]);
          tensor.parts.push_back({.box = std::move(part), .digest = Digest{high, low}.text()});
        }
      }
      tensors[content_.tensors[t].file].push_back(std::move(tensor));
    }
    Manifest manifest{.step = content_.state.step, .files = {}};
    for (const std::string& name : file_names()) {
      ManifestFile& file = manifest.files.emplace_back();
      file.name = name;
      file.bytes = static_cast<std::int64_t>(fs::file_size(temporary_ / name));
      file.tensors = std::move(tensors[name]);
      std::vector<PlacedTensor> placed;
      for (const ManifestTensor& tensor : file.tensors) placed.push_back(tensor.placed);
      file.pieces = pieces_around(placed, file.bytes);
      const TensorFile content(temporary_ / name, O_RDONLY);
      for (ManifestPiece& piece : file.pieces)
        piece.digest = content.digest_of(piece.begin, piece.end).text();
    }
    const auto bytes = static_cast<std::int64_t>(content_.state.json.size());
    ManifestFile& state = manifest.files.emplace_back();
    state = {.name = "state.json", .bytes = bytes, .pieces = pieces_around({}, bytes), .tensors = {}};
    for (ManifestPiece& piece : state.pieces) piece.digest = digest_of(content_.state.json).text();
    return manifest;
  }

  void rename_into_place() {
    run_collectively(comm_, [&] {
      phase(CheckpointPhase::rename);
      if (rank_ != 0) return;
      if (fs::exists(fs::symlink_status(target_))) store_.abandon_steps({content_.state.step});
      rename_file(temporary_, target_);
      sync_path(store_.directory_);
    });
  }

  CheckpointStore& store_;
  MPI_Comm comm_;
  int rank_;
  fs::path target_;
  fs::path temporary_;
  const CheckpointContent& content_;
  std::vector<std::vector<TensorPart>> cuts_;  // per tensor
  std::vector<Integers> boxes_;                // on rank 0: per rank, in the order of the tensors
  std::vector<PlacedTensor> placed_;
  std::vector<Digest> digests_;  // of `cuts_`
};

CheckpointStore::CheckpointStore(IoThread& io, IoThread& hdf5, fs::path directory,
                                 CheckpointSettings settings, CheckpointPhaseHook hook, Warn warn)
    : io_(io),
      hdf5_(hdf5),
      directory_(std::move(directory)),
      settings_(settings),
      hook_(hook ? std::move(hook) : [](CheckpointPhase, std::int64_t) {}),
      warn_(warn ? std::move(warn) : [](const std::string&) {}) {}

CheckpointStore::~CheckpointStore() {
  if (finished_.valid()) finished_.wait();
}

void CheckpointStore::check_file_system() {
  io_.run([&] {
    run_collectively(io_.comm(), [&] {
      constexpr auto nfs = 0x6969;
      struct statfs info {};
      if (io_.rank() != 0 || io_.nodes() == 1 || ::statfs(directory_.c_str(), &info) != 0 ||
          info.f_type != nfs)
        return;
      fail(ExitCode::usage,
           "{} lies on NFS, where {} nodes cannot write one file together: choose a parallel file system, "
           "such as Lustre or GPFS, for [run] dir or [checkpoint] dir",
           directory_.string(), io_.nodes());
    });
  });
}

void CheckpointStore::write(const CheckpointContent& content) {
  finish();
  io_.run([&] { write_on_thread(content); });
  finished_ = io_.submit([this] { verify_on_thread(); });
}

void CheckpointStore::start(CheckpointContent content) {
  finish();
  finished_ = io_.submit([this, own = std::move(content)] {
    write_on_thread(own);
    verify_on_thread();
  });
}

void CheckpointStore::write_on_thread(const CheckpointContent& content) {
  const auto start = Clock::now();
  try {
    Writer(*this, content).run();
  } catch (const Error&) {
    // The incomplete checkpoint may fill the disk, and no rank uses it any more.
    if (io_.rank() == 0) remove_leftovers(directory_, warn_);
    throw;
  }
  written_ = {.step = content.state.step, .write_seconds = seconds_since(start)};
  for (const CheckpointTensor& tensor : content.tensors)
    written_.bytes += tensor.info.size() * static_cast<std::int64_t>(sizeof(float));
}

void CheckpointStore::verify_on_thread() {
  const auto start = Clock::now();
  const std::int64_t step = written_.step;
  run_collectively(io_.comm(), [&] {
    hook_(CheckpointPhase::verify, step);
    std::vector<std::string> problems;
    try {
      problems = check_digests(path_of(step), read_whole_manifest(path_of(step), step),
                               {.first = io_.rank(), .stride = io_.size(), .threads = 1, .from_disk = true});
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
    if (!problems.empty())
      fail(ExitCode::io, "the checkpoint that was written fails verification: {}", join(problems, "\n"));
  });
  run_collectively(io_.comm(), [&] {
    hook_(CheckpointPhase::purge, step);
    if (io_.rank() == 0) purge(directory_, step, settings_.retention, abandoned_, warn_);
  });
  run_collectively(io_.comm(), [&] { hook_(CheckpointPhase::done, step); });
  written_.verify_seconds = seconds_since(start);
}

std::optional<WrittenCheckpoint> CheckpointStore::finish() {
  if (!finished_.valid()) return std::nullopt;
  finished_.get();
  return written_;
}

std::optional<WrittenCheckpoint> CheckpointStore::poll() {
  const bool has_ended =
      finished_.valid() && finished_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return has_ended ? finish() : std::nullopt;
}

void CheckpointStore::abandon_after(std::int64_t step) {
  io_.run([&] {
    run_collectively(io_.comm(), [&] {
      if (io_.rank() != 0) return;
      const std::vector<std::int64_t> later = steps_to_abandon(directory_, step);
      if (later.empty()) return;
      std::uintmax_t bytes = 0;
      for (const std::int64_t other : later) bytes += bytes_in(path_of(other));
      const fs::path target = abandon_steps(later);
      warn_(fmt::format("checkpoints of later steps, {} ({:.1f} MB), are now in {}", join(later, " "),
                        static_cast<double>(bytes) * 1e-6, target.string()));
    });
  });
}

fs::path CheckpointStore::abandon_steps(const std::vector<std::int64_t>& steps) {
  return abandoned_.emplace_back(abandon(directory_, steps));
}

fs::path CheckpointStore::path_of(std::int64_t step) const {
  return directory_ / step_name(step);
}

}  // namespace mylos
