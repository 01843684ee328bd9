// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <fcntl.h>
#include <iterator>
#include <map>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/agree.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_manifest.hpp"
#include "io/file_util.hpp"
#include "io/parallel_for.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t read_bytes = std::int64_t{4} << 20U;  // per part read, unless one row is larger

}  // namespace

struct CheckpointReader::Impl {
  explicit Impl(IoThread& thread) : io(thread) {}

  const std::vector<PlacedTensor>& tensors_of(const std::string& file) const {
    const auto found = tensors.find(file);
    if (found == tensors.end()) fail(ExitCode::bad_data, "{} has no {}", path.string(), file);
    return found->second;
  }

  IoThread& io;
  fs::path path;
  CheckpointState state;
  std::map<std::string, std::vector<PlacedTensor>> tensors;  // by file
  std::map<std::string, TensorFile> files;
};

CheckpointReader::CheckpointReader(IoThread& io, const fs::path& checkpoint, std::optional<std::int64_t> step)
    : impl_(std::make_unique<Impl>(io)) {
  constexpr std::size_t max_state_bytes = std::size_t{16} << 20U;
  impl_->path = checkpoint;
  Manifest manifest;
  io.run([&] {
    run_collectively(io.comm(), [&] { manifest = read_whole_manifest(checkpoint, step); });
    run_collectively(io.comm(), [&] {
      const auto problems = check_digests(
          checkpoint, manifest,
          {.first = io.rank(), .stride = io.size(), .threads = io.threads(), .from_disk = false});
      if (!problems.empty()) fail(ExitCode::bad_data, "{}", join(problems, "\n"));
    });
    run_collectively(io.comm(), [&] {
      impl_->state.step = manifest.step;
      impl_->state.json = read_text_file(checkpoint / "state.json", max_state_bytes);
      for (const ManifestFile& file : manifest.files) {
        if (!file.name.ends_with(".h5")) continue;
        std::vector<PlacedTensor>& tensors = impl_->tensors[file.name];
        impl_->files.emplace(file.name, TensorFile(checkpoint / file.name, O_RDONLY));
        for (const ManifestTensor& tensor : file.tensors) tensors.push_back(tensor.placed);
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

bool CheckpointReader::has(const std::string& file) const {
  return impl_->tensors.contains(file);
}

std::vector<TensorInfo> CheckpointReader::tensors(const std::string& file) const {
  std::vector<TensorInfo> tensors;
  for (const PlacedTensor& tensor : impl_->tensors_of(file)) tensors.push_back(tensor.info);
  return tensors;
}

void CheckpointReader::read(const CheckpointTensor& wanted) const {
  check_parts(wanted.info, wanted.parts);
  const auto& [name, shape] = wanted.info;
  const std::vector<PlacedTensor>& tensors = impl_->tensors_of(wanted.file);
  const auto found =
      std::ranges::find(tensors, name, [](const PlacedTensor& tensor) { return tensor.info.name; });
  const std::string file = (impl_->path / wanted.file).string();
  if (found == tensors.end()) {
    fail(ExitCode::bad_data, "{}: no dataset {}, which should have shape {}", file, name,
         wanted.info.shape_text());
  }
  if (found->info.shape != shape) {
    fail(ExitCode::bad_data, "{}: dataset {} has shape {}; the model needs {}", file, name,
         found->info.shape_text(), wanted.info.shape_text());
  }
  std::vector<TensorPart> cuts;
  for (const TensorPart& part : wanted.parts)
    std::ranges::move(cut(part, read_bytes), std::back_inserter(cuts));
  const TensorFile& content = impl_->files.at(wanted.file);
  parallel_for(cuts.size(), impl_->io.threads(), [&](std::size_t i) { content.read(*found, cuts[i]); });
}

std::optional<CheckpointReader> open_newest(IoThread& io, const fs::path& directory,
                                            std::optional<std::int64_t> step, const Warn& warn) {
  const auto open = [&](std::int64_t wanted) {
    return CheckpointReader(io, directory / step_name(wanted), wanted);
  };
  if (step) return open(*step);

  std::vector<std::int64_t> steps;
  io.run([&] {
    run_collectively(io.comm(), [&] {
      if (io.rank() == 0) steps = list_steps(directory);
    });
    broadcast_from_root(io.comm(), steps);
  });
  for (auto newest = steps.rbegin(); newest != steps.rend(); ++newest) {
    try {
      return open(*newest);
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
    return check_digests(checkpoint, read_whole_manifest(checkpoint), {});
  } catch (const Error& error) {
    return {error.what()};
  }
}

}  // namespace mylos
