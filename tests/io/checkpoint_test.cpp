// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints written and read by one or several ranks, and what can be wrong with one.
#include "io/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <random>

#include <gtest/gtest.h>
#include <mpi.h>

#include "core/base/error.hpp"
#include "io/agree.hpp"
#include "io/checkpoint/checkpoint_manifest.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

enum class Partition { even, first_only, uneven, interleaved, columns };

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::array<char, 4096> name{};
    if (io_.rank() == 0) {
      scratch_ = std::make_unique<ScratchDirectory>();
      scratch_->path().string().copy(name.data(), name.size() - 1);
    }
    if (io_.comm() != MPI_COMM_NULL) MPI_Bcast(name.data(), name.size(), MPI_CHAR, 0, MPI_COMM_WORLD);
    directory_ = fs::path(name.data()) / "checkpoints";
  }
  ~CheckpointTest() override { barrier(); }

  void barrier() const {
    if (io_.comm() != MPI_COMM_NULL) run_collectively(MPI_COMM_WORLD, [] {});
  }

  /// Runs `work` on rank 0 while the others wait.
  void on_root(const std::function<void()>& work) const {
    barrier();
    if (io_.rank() == 0) work();
    barrier();
  }

  /// This rank's ranges (first element, count) of a tensor of `size` elements; none for `columns`.
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges(std::int64_t size, Partition partition) const {
    const std::int64_t n = io_.size();
    const std::int64_t r = io_.rank();
    switch (partition) {
      case Partition::even: {
        const std::int64_t each = (size + n - 1) / n;  // the last ranks may have fewer or none
        const std::int64_t begin = std::min(size, r * each);
        return {{begin, std::min(size, begin + each) - begin}};
      }
      case Partition::first_only:
        if (r == 0) return {{0, size}};
        return {};
      case Partition::uneven: {  // triangular: rank r has a share of r + 1
        const std::int64_t total = n * (n + 1) / 2;
        const std::int64_t begin = size * (r * (r + 1) / 2) / total;
        return {{begin, size * ((r + 1) * (r + 2) / 2) / total - begin}};
      }
      case Partition::interleaved: {
        const std::int64_t block = size / 7 + 1;
        std::vector<std::pair<std::int64_t, std::int64_t>> mine;
        for (std::int64_t i = r; i * block < size; i += n)
          mine.emplace_back(i * block, std::min(block, size - i * block));
        return mine;
      }
      case Partition::columns:
        break;
    }
    return {};
  }

  /// This rank's share of the columns (last dimension) of a tensor, in memory with two more columns.
  std::vector<TensorPart> columns(const TensorInfo& tensor, const std::function<float(std::int64_t)>& value) {
    const std::int64_t width = tensor.shape.back();
    const std::int64_t begin = width * io_.rank() / io_.size();
    const std::int64_t count = width * (io_.rank() + 1) / io_.size() - begin;
    const std::int64_t rows = tensor.size() / width;
    std::vector<float>& data = memory_.emplace_back(static_cast<std::size_t>(rows * (count + 2)), -2.0F);
    TensorPart part{.box = Box::whole(tensor.shape), .data = data.data() + 1, .stride = {}};
    part.box.start.back() = begin;
    part.box.count.back() = count;
    part.stride.assign(tensor.shape.size(), 1);
    for (std::size_t d = tensor.shape.size() - 1; d > 0; --d) {
      const bool is_last = d + 1 == tensor.shape.size();
      part.stride[d - 1] = part.stride[d] * (is_last ? count + 2 : tensor.shape[d]);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < count; ++i)
        part.data[row * (count + 2) + i] = value(row * width + begin + i);
    }
    return {part};
  }

  /// This rank's share of the checkpoint of `step`.
  CheckpointContent content(std::int64_t step, Partition partition) {
    CheckpointContent result;
    memory_.clear();
    result.state = {step, fmt::format("{{\"step\": {}}}", step)};
    const auto tensors = small_tensors();
    for (const auto& [file, name, t] : small_datasets()) {
      CheckpointTensor tensor{file, {name, tensors[t].shape}, {}};
      if (partition == Partition::columns) {
        tensor.parts = columns(tensor.info, [&, t = t](std::int64_t i) { return element(t, i, step); });
      }
      for (const auto& [begin, count] : ranges(tensors[t].size(), partition)) {
        auto& data = memory_.emplace_back(static_cast<std::size_t>(count));
        for (std::int64_t i = 0; i < count; ++i)
          data[static_cast<std::size_t>(i)] = element(t, begin + i, step);
        for (TensorPart& part : parts_of_range(tensor.info, begin, count, data.data()))
          tensor.parts.push_back(std::move(part));
      }
      result.tensors.push_back(std::move(tensor));
    }
    return result;
  }

  void write(std::int64_t step, Partition partition = Partition::uneven) {
    CheckpointStore(io_, io_, directory_, settings_).write(content(step, partition));
  }

  /// Overwrites only the elements of a part, not the memory between them.
  static void clear(const TensorPart& part) {
    for (std::int64_t i = 0; i < part.box.size(); ++i) {
      std::int64_t rest = i;
      float* element = part.data;
      for (std::size_t d = part.stride.size(); d-- > 0;) {
        element += rest % part.box.count[d] * part.stride[d];
        rest /= part.box.count[d];
      }
      *element = -1.0F;
    }
  }

  void expect_content(CheckpointReader& reader, std::int64_t step, Partition partition) {
    EXPECT_EQ(reader.state().step, step);
    EXPECT_EQ(reader.state().json, fmt::format("{{\"step\": {}}}", step));
    for (CheckpointTensor& tensor : content(step, partition).tensors) {
      const auto expected = memory_;
      for (const TensorPart& part : tensor.parts) clear(part);
      reader.read(tensor);
      EXPECT_EQ(memory_, expected) << tensor.info.name;
    }
  }

  /// The error of opening step `step`, as "code message"; "whole" if it opens.
  std::string open_error(std::int64_t step) {
    try {
      open_newest(io_, directory_, step, [](const std::string&) {});
      return "whole";
    } catch (const Error& error) {
      return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
  }

  std::vector<std::int64_t> steps() { return steps_in(directory_); }

  /// The names of the entries in the abandoned-<n> directories.
  std::vector<std::string> abandoned() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (!entry.path().filename().string().starts_with("abandoned-")) continue;
      for (const auto& inner : fs::directory_iterator(entry.path()))
        names.push_back(inner.path().filename().string());
    }
    return names;
  }

  fs::path path(std::int64_t step) { return CheckpointStore(io_, io_, directory_, settings_).path_of(step); }

  IoThread io_;
  std::unique_ptr<ScratchDirectory> scratch_;
  fs::path directory_;
  CheckpointSettings settings_;
  std::string warning_;
  std::vector<std::vector<float>> memory_;
};

TEST_F(CheckpointTest, AnyPartitionReadsWhatAnyOtherWrote) {
  constexpr std::array partitions = {Partition::even, Partition::first_only, Partition::uneven,
                                     Partition::interleaved, Partition::columns};
  std::int64_t step = 0;
  for (const Partition written : partitions) {
    write(++step, written);
    CheckpointReader reader(io_, path(step));
    for (const Partition read : partitions) expect_content(reader, step, read);
    EXPECT_EQ(reader.tensors("weights.h5").size(), 4U);
    EXPECT_EQ(reader.tensors("optimizer.h5").size(), 4U);
  }
}

TEST_F(CheckpointTest, PhasesComeInOrderOnEveryRank) {
  std::vector<std::string> phases;
  CheckpointStore store(io_, io_, directory_, settings_,
                        [&](CheckpointPhase phase, std::int64_t) { phases.emplace_back(name_of(phase)); });
  store.write(content(1, Partition::even));
  store.finish();
  EXPECT_EQ(phases, (std::vector<std::string>{"begin", "create", "write", "fsync", "manifest", "rename",
                                              "verify", "purge", "done"}));
}

TEST_F(CheckpointTest, IsWrittenWhileTheCallerAndHdf5GoOn) {
  IoThread hdf5;
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  CheckpointStore store(io_, hdf5, directory_, settings_, [&](CheckpointPhase phase, std::int64_t) {
    if (phase == CheckpointPhase::manifest) may_go.wait();
  });
  EXPECT_FALSE(store.finish());
  const CheckpointContent first = content(1, Partition::even);
  store.start(first);
  hdf5.run([] {});
  EXPECT_FALSE(store.poll());
  EXPECT_TRUE(steps().empty());
  go.set_value();
  const std::optional<WrittenCheckpoint> written = store.finish();
  ASSERT_TRUE(written);
  EXPECT_EQ(written->step, 1);
  std::int64_t elements = 0;
  for (const CheckpointTensor& tensor : first.tensors) elements += tensor.info.size();
  EXPECT_EQ(written->bytes, 4 * elements);
  EXPECT_FALSE(store.poll());
  EXPECT_EQ(open_error(1), "whole");
}

TEST_F(CheckpointTest, AnErrorBehindTheCallerIsThrownByTheNextCall) {
  CheckpointStore store(io_, io_, directory_, settings_, [](CheckpointPhase phase, std::int64_t) {
    if (phase == CheckpointPhase::rename) throw Error(ExitCode::io, "a fault");
  });
  store.start(content(1, Partition::even));
  EXPECT_THROW(store.finish(), Error);
  const CheckpointContent second = content(2, Partition::even);
  store.start(second);
  EXPECT_THROW(store.write(second), Error);
  EXPECT_TRUE(steps().empty());
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  for (const std::int64_t step : {10, 20, 30}) write(step);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{20, 30}));
}

TEST_F(CheckpointTest, KeepsMilestonesForGood) {
  settings_.retention.keep_every = 20;
  for (const std::int64_t step : {10, 20, 30, 40, 50, 60}) write(step);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{20, 40, 50, 60}));
}

TEST_F(CheckpointTest, DamagedOnesDoNotCount) {
  write(1);
  write(2);
  on_root([&] { fs::resize_file(path(2) / "weights.h5", 100); });
  write(3);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3}));
  write(4);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{3, 4}));
}

TEST_F(CheckpointTest, NothingGoesBeforeItsSuccessorWasReadBack) {
  write(1);
  write(2);
  CheckpointStore store(io_, io_, directory_, settings_, [&](CheckpointPhase phase, std::int64_t) {
    if (phase != CheckpointPhase::verify) return;
    on_root([&] {
      std::string text = slurp(path(3) / "weights.h5");
      text[text.size() / 2] ^= 1;
      spill(path(3) / "weights.h5", text);
    });
  });
  store.write(content(3, Partition::even));
  try {
    store.finish();
    ADD_FAILURE() << "read back whole";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find("dataset wte.weight"), std::string::npos) << error.what();
  }
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3}));
}

TEST_F(CheckpointTest, WhatARestartGivesUpIsMovedAway) {
  for (const std::int64_t step : {10, 20, 30}) write(step);
  {
    CheckpointStore store(io_, io_, directory_, settings_, {},
                          [&](const std::string& text) { warning_ += text; });
    store.abandon_after(20);
  }
  if (io_.rank() == 0) {
    EXPECT_NE(warning_.find("checkpoints of later steps, 30 (4.4 MB), are now in"), std::string::npos)
        << warning_;
  }
  EXPECT_EQ(steps(), std::vector<std::int64_t>{20});
  EXPECT_EQ(abandoned(), (std::vector<std::string>{"step_000030"}));
  barrier();
  write(25);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{20, 25}));
  EXPECT_EQ(abandoned(), (std::vector<std::string>{"step_000030"}));
  barrier();
  settings_.retention.keep_abandoned = 0;
  write(30);
  EXPECT_EQ(abandoned(), std::vector<std::string>{});
}

/// A checkpoint that contains a user's file is moved away too: otherwise a later restart would take it for
/// the newest.
TEST_F(CheckpointTest, WhatARestartGivesUpIsMovedAwayWithAllItHolds) {
  for (const std::int64_t step : {10, 20}) write(step);
  on_root([&] { spill(path(20) / "notes.txt", "mine"); });
  {
    CheckpointStore store(io_, io_, directory_, settings_);
    store.abandon_after(10);
  }
  EXPECT_EQ(steps(), std::vector<std::int64_t>{10});
  barrier();
  settings_.retention.keep_abandoned = 0;
  write(20);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{10, 20}));
  EXPECT_EQ(abandoned(), std::vector<std::string>{"step_000020"});  // contains more than mylos' own files
}

/// Links, files, directories that contain a checkpoint under another step's name, and names that only
/// resemble abandoned-<n> stay.
TEST_F(CheckpointTest, OnlyItsOwnAbandonedDirectoriesGo) {
  settings_.retention.keep_abandoned = 0;
  write(1);
  const std::string real = "abandoned-20260102T030405Z";
  on_root([&] {
    fs::create_directory(directory_ / "abandoned-good");
    fs::create_directory(directory_.parent_path() / "archive");
    fs::create_directory_symlink(directory_.parent_path() / "archive",
                                 directory_ / "abandoned-20260102T030406Z");
    spill(directory_ / "abandoned-20260102T030407Z", "a file");
    fs::create_directory(directory_ / real);
    fs::copy(path(1), directory_ / real / "step_000003", fs::copy_options::recursive);
    fs::create_directory(directory_ / (real + "-2"));
    fs::copy(path(1), directory_ / (real + "-2") / "step_000001", fs::copy_options::recursive);
    fs::create_directory(directory_ / (real + "-2") / "step_000002.tmp");
  });
  write(2);
  for (const std::string& kept :
       {std::string("abandoned-good"), std::string("abandoned-20260102T030406Z"),
        std::string("abandoned-20260102T030407Z"), real + "/step_000003/weights.h5"}) {
    EXPECT_TRUE(fs::exists(directory_ / kept)) << kept;
  }
  EXPECT_FALSE(fs::exists(directory_ / (real + "-2")));
}

TEST_F(CheckpointTest, TheNewestAbandonedDirectoriesStay) {
  settings_.retention.keep_abandoned = 2;
  write(1);
  const auto place = [&](int year) { return directory_ / fmt::format("abandoned-{}0102T030405Z", year); };
  on_root([&] {
    for (const int year : {2024, 2026, 2023, 2025}) {
      fs::create_directory(place(year));
      fs::copy(path(1), place(year) / "step_000001", fs::copy_options::recursive);
    }
  });
  write(2);
  for (const int year : {2023, 2024, 2025, 2026}) EXPECT_EQ(fs::exists(place(year)), year >= 2025) << year;
}

/// The newest directory is the one that was made last, whatever the clock said, and after the ninth too.
TEST_F(CheckpointTest, TheAbandonedDirectoryThatWasMadeLastIsTheNewest) {
  write(1);
  on_root([&] {
    for (const char* name : {"abandoned-20990102T030405Z", "abandoned-20990102T030405Z-2",
                             "abandoned-20990102T030405Z-10", "abandoned-0009", "abandoned-9999"}) {
      fs::create_directory(directory_ / name);
      fs::copy(path(1), directory_ / name / "step_000001", fs::copy_options::recursive);
    }
  });
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("abandoned-")) found.push_back(name);
    }
    std::ranges::sort(found);
    return found;
  };
  settings_.retention.keep_abandoned = 3;
  write(2);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"abandoned-0009", "abandoned-20990102T030405Z-10", "abandoned-9999"}));
  barrier();
  CheckpointStore(io_, io_, directory_, settings_).abandon_after(1);
  settings_.retention.keep_abandoned = 1;
  write(3);
  EXPECT_EQ(names(), std::vector<std::string>{"abandoned-10000"});
}

/// A launch that moves away twice keeps both, even if it is to keep none: a later launch removes them.
TEST_F(CheckpointTest, WhatThisLaunchMovedAwayStays) {
  settings_.retention = {.keep = 9, .keep_abandoned = 0};
  for (const std::int64_t step : {1, 2, 3}) write(step);
  {
    CheckpointStore store(io_, io_, directory_, settings_);
    store.abandon_after(2);
    on_root([&] { fs::copy(path(1), path(4), fs::copy_options::recursive); });
    store.write(content(4, Partition::even));
    store.finish();
    EXPECT_EQ(abandoned().size(), 2U);
    EXPECT_TRUE(fs::exists(directory_ / "abandoned-0001" / "step_000003"));
    EXPECT_TRUE(fs::exists(directory_ / "abandoned-0002" / "step_000004"));
  }
  barrier();
  write(5);
  EXPECT_EQ(abandoned(), std::vector<std::string>{"step_000004"});  // a user's copy of step 1
}

TEST_F(CheckpointTest, OneOfTheSameStepIsMovedAway) {
  write(1);
  on_root([&] { spill(path(1) / "state.json", "spoilt"); });
  write(1);
  CheckpointReader reader(io_, path(1));
  expect_content(reader, 1, Partition::even);
  EXPECT_EQ(abandoned(), std::vector<std::string>{"step_000001"});
}

TEST_F(CheckpointTest, TidiesAfterAKilledWriter) {
  write(1);
  on_root([&] { fs::create_directory(path(3).string() + ".tmp"); });
  write(4);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 4}));
  EXPECT_FALSE(fs::exists(path(3).string() + ".tmp"));
}

/// Copies of checkpoints, names with other suffixes, and directories with notes stay.
TEST_F(CheckpointTest, WhatOthersMadeIsLeftAlone) {
  write(1);
  write(2);
  on_root([&] {
    fs::copy(path(1), path(999999), fs::copy_options::recursive);
    fs::copy(path(1), path(0), fs::copy_options::recursive);
    fs::copy(path(1), path(1).string() + ".old", fs::copy_options::recursive);
    spill(path(1) / "notes.txt", "the good one");
    fs::create_directory(path(3).string() + ".tmp");
    spill(path(3).string() + ".tmp/notes.txt", "mine");
  });
  const auto newest =
      open_newest(io_, directory_, std::nullopt, [&](const std::string& text) { warning_ += text; });
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->state().step, 2);
  EXPECT_NE(warning_.find("step_999999 is not whole and is passed over"), std::string::npos) << warning_;
  {
    CheckpointStore store(io_, io_, directory_, settings_);
    store.abandon_after(2);
  }
  for (const std::int64_t step : {4, 5, 6}) write(step);
  for (const fs::path& kept : {path(999999), path(0), fs::path(path(1).string() + ".old"), path(1),
                               fs::path(path(3).string() + ".tmp")}) {
    EXPECT_TRUE(fs::exists(kept)) << kept;
  }
  EXPECT_FALSE(fs::exists(path(2)));
  EXPECT_FALSE(fs::exists(path(4)));
}

TEST_F(CheckpointTest, ValuesThatAreNotFiniteAreNotSaved) {
  write(1);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    CheckpointContent bad = content(2, Partition::even);
    if (io_.rank() == 0) bad.tensors[1].parts[0].data[0] = value;
    try {
      CheckpointStore(io_, io_, directory_, settings_).write(bad);
      ADD_FAILURE() << "written: " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::numerical);
      EXPECT_NE(std::string(error.what()).find("h.0.view holds values that are not finite"),
                std::string::npos)
          << error.what();
    }
    barrier();
    EXPECT_EQ(steps(), std::vector<std::int64_t>{1});
    EXPECT_FALSE(fs::exists(path(2).string() + ".tmp"));  // leftovers may fill the disk
    barrier();
  }
  CheckpointContent largest = content(2, Partition::even);
  if (io_.rank() == 0) largest.tensors[1].parts[0].data[0] = -std::numeric_limits<float>::max();
  CheckpointStore(io_, io_, directory_, settings_).write(largest);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
}

TEST_F(CheckpointTest, LargeTensorsAreAligned) {
  settings_.alignment = 1 << 16;
  write(1);
  for (const ManifestFile& file : read_manifest(path(1)).files) {
    for (const ManifestTensor& tensor : file.tensors) {
      const bool is_large = tensor.placed.end() - tensor.placed.offset >= settings_.alignment;
      if (!is_large) continue;
      EXPECT_EQ(tensor.placed.offset % settings_.alignment, 0) << tensor.placed.info.name;
    }
  }
}

TEST_F(CheckpointTest, NoCheckpointIsNone) {
  EXPECT_FALSE(open_newest(io_, directory_, std::nullopt, [](const std::string&) {}).has_value());
  EXPECT_TRUE(open_error(5).starts_with("65 no checkpoint at")) << open_error(5);
}

TEST_F(CheckpointTest, AnotherShapeIsRefusedWithBoth) {
  write(1);
  CheckpointReader reader(io_, path(1));
  const auto message = [&](const TensorInfo& tensor) {
    try {
      reader.read({"weights.h5", tensor, {}});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return std::string(error.what());
    }
    return std::string("read");
  };
  const std::string shapes = message({"h.0.attn.bias", {7, 1}});
  EXPECT_NE(shapes.find("h.0.attn.bias has shape (7); the model needs (7, 1)"), std::string::npos) << shapes;
  const std::string missing = message({"h.7.bias", {3}});
  EXPECT_NE(missing.find("no dataset h.7.bias"), std::string::npos) << missing;
}

TEST_F(CheckpointTest, DamageIsFoundAndNamed) {
  const std::vector<std::string> files = {"weights.h5", "optimizer.h5", "state.json", "manifest.json"};
  write(1);
  write(2);
  std::mt19937 random(1);
  for (const std::string& name : files) {
    const fs::path file = path(2) / name;
    const std::string whole = slurp(file);
    std::string noise = whole;
    for (char& c : noise) c = static_cast<char>(random());
    std::string flipped = whole;
    flipped[flipped.size() / 2] ^= 4;
    for (const std::string& damaged : {whole.substr(0, whole.size() / 2), std::string(), noise, flipped}) {
      on_root([&] { spill(file, damaged); });
      const std::string error = open_error(2);
      EXPECT_TRUE(error.starts_with("65 ")) << name << ": " << error;
      EXPECT_NE(error.find(name), std::string::npos) << error;
      barrier();
    }
    on_root([&] { fs::remove(file); });
    EXPECT_TRUE(open_error(2).starts_with("65 ")) << name;

    std::string warning;
    const auto older =
        open_newest(io_, directory_, std::nullopt, [&](const std::string& text) { warning += text; });
    EXPECT_EQ(older->state().step, 1);
    EXPECT_NE(warning.find("step_000002 is not whole"), std::string::npos) << warning;
    on_root([&] { spill(file, whole); });
    EXPECT_EQ(open_error(2), "whole");
    barrier();
  }
}

TEST_F(CheckpointTest, AFlippedBitNamesItsDataset) {
  write(1);
  for (const ManifestFile& file : read_manifest(path(1)).files) {
    const std::string whole = slurp(path(1) / file.name);
    const auto expect_found = [&](std::int64_t begin, std::int64_t end, const std::string& place) {
      std::string flipped = whole;
      flipped[static_cast<std::size_t>((begin + end) / 2)] ^= 1;
      on_root([&] { spill(path(1) / file.name, flipped); });
      const std::string error = open_error(1);
      EXPECT_TRUE(error.starts_with("65 ")) << error;
      EXPECT_NE(error.find(place), std::string::npos) << error;
      barrier();
    };
    for (const ManifestPiece& piece : file.pieces)
      expect_found(piece.begin, piece.end, "(structure of the file)");
    for (const ManifestTensor& tensor : file.tensors)
      expect_found(tensor.placed.offset, tensor.placed.end(), "dataset " + tensor.placed.info.name);
    on_root([&] { spill(path(1) / file.name, whole); });
  }
  EXPECT_EQ(open_error(1), "whole");
}

TEST_F(CheckpointTest, AnotherFormatVersionIsNamed) {
  write(1);
  const fs::path manifest = path(1) / "manifest.json";
  const std::string written = slurp(manifest);
  const std::string key = "\"version\":";
  const std::size_t at = written.find(key + "2");
  ASSERT_NE(at, std::string::npos) << written;
  for (const char* version : {"1", "3"}) {
    std::string other = written;
    other.replace(at, key.size() + 1, key + version);
    on_root([&] { spill(manifest, other); });
    const std::string error = open_error(1);
    EXPECT_TRUE(error.starts_with("65 ")) << error;
    EXPECT_NE(
        error.find(fmt::format("manifest.json: format version {}; this mylos reads version 2", version)),
        std::string::npos)
        << error;
  }
}

TEST_F(CheckpointTest, AllDamagedIsAnErrorAndNoFreshStart) {
  write(1);
  on_root([&] { fs::remove(path(1) / "manifest.json"); });
  EXPECT_TRUE(steps().empty());
  EXPECT_THROW(open_newest(io_, directory_, std::nullopt, [](const std::string&) {}), Error);
}

TEST_F(CheckpointTest, WhatOneRankFindsAllThrow) {
  const int culprit = io_.size() - 1;
  write(1);
  for (const CheckpointPhase failing : {CheckpointPhase::begin, CheckpointPhase::manifest}) {
    CheckpointStore store(io_, io_, directory_, settings_, [&](CheckpointPhase phase, std::int64_t) {
      if (phase == failing && io_.rank() == culprit) throw Error(ExitCode::io, "a fault");
    });
    try {
      store.write(content(2, Partition::even));
      ADD_FAILURE() << name_of(failing) << " went through";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::io);
      const std::string expected = io_.size() == 1 ? "a fault" : fmt::format("rank {}: a fault", culprit);
      EXPECT_EQ(error.what(), expected);
    }
    EXPECT_EQ(open_error(1), "whole");
    barrier();
  }
}

TEST_F(CheckpointTest, PartsMustCoverTheirTensorOnce) {
  const auto refuses = [&](const CheckpointContent& content) {
    try {
      CheckpointStore(io_, io_, directory_, settings_).write(content);
      ADD_FAILURE() << "written";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_NE(std::string(error.what()).find("h.0.view"), std::string::npos) << error.what();
    }
    barrier();
    EXPECT_FALSE(fs::exists(path(1)));
  };
  CheckpointContent hole = content(1, Partition::even);
  if (io_.rank() == 0) --hole.tensors[1].parts[0].box.count.back();
  refuses(hole);
  // As many elements as the tensor has, with one row twice and another missing.
  CheckpointContent twice = content(1, Partition::first_only);
  if (io_.rank() == 0) {
    TensorPart first = twice.tensors[1].parts[0];
    first.box.count[0] = 3;
    TensorPart again = first;
    again.box.count[0] = 1;
    twice.tensors[1].parts = {first, again};
  }
  refuses(twice);
}

TEST_F(CheckpointTest, APlainFileInTheWayIsAnIoError) {
  on_root([&] { spill(directory_, "no directory"); });
  try {
    write(1);
    ADD_FAILURE() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find(directory_.string()), std::string::npos) << error.what();
  }
}

TEST_F(CheckpointTest, VerifyNeedsNoHdf5) {
  write(1);
  on_root([&] {
    EXPECT_TRUE(verify_checkpoint(path(1)).empty());
    std::string text = slurp(path(1) / "optimizer.h5");
    text[text.size() / 3] ^= 1;
    spill(path(1) / "optimizer.h5", text);
    EXPECT_EQ(verify_checkpoint(path(1)).size(), 1U);
  });
}

}  // namespace
}  // namespace mylos::test
