// SPDX-License-Identifier: BSD-3-Clause
// For tests with files: a scratch directory, whole files, a small checkpoint, and child processes that run
// io_child.
#pragma once

#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "io/checkpoint/checkpoint.hpp"
#include "tests/support/parts_of_range.hpp"

namespace mylos::test {

namespace fs = std::filesystem;

/// A new directory; the destructor removes it with its contents.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (fs::canonical(fs::temp_directory_path()) / "mylos-io-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchDirectory() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline std::string slurp(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const fs::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
}

/// Starts io_child, which lies next to the test program. Its standard output and error go to `output`.
inline pid_t start_child(const std::vector<std::string>& arguments, const fs::path& output = "/dev/null") {
  const std::string program = fs::read_symlink("/proc/self/exe").parent_path() / "io_child";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // HDF5 itself leaks when it refuses a file
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

/// The exit code of a child, or 1000 + signal.
inline int wait_for_child(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

inline int run_child(const std::vector<std::string>& arguments, const fs::path& output = "/dev/null") {
  return wait_for_child(start_child(arguments, output));
}

/// The tensors of a small model: odd shapes, one tensor that takes several reads, one with a single element.
inline std::vector<TensorInfo> small_tensors() {
  return {{"wte.weight", {1100, 1001}}, {"h.0.view", {4, 3, 5, 2}}, {"h.0.attn.bias", {7}}, {"scale", {1}}};
}

/// A dataset in a checkpoint of the small model: its file, its name, and the index of the tensor that gives
/// its elements.
struct SmallDataset {
  std::string file;
  std::string name;
  std::size_t tensor;
};
inline std::vector<SmallDataset> small_datasets() {
  return {{"weights.h5", "wte.weight", 0},
          {"weights.h5", "h.0.view", 1},
          {"weights.h5", "h.0.attn.bias", 2},
          {"weights.h5", "scale", 3},
          {"optimizer.h5", "first_moment/h.0.view", 1},
          {"optimizer.h5", "first_moment/h.0.attn.bias", 2},
          {"optimizer.h5", "second_moment/h.0.view", 1},
          {"optimizer.h5", "second_moment/h.0.attn.bias", 2}};
}

inline float element(std::size_t tensor, std::int64_t index, std::int64_t step) {
  return static_cast<float>((index * 31 + static_cast<std::int64_t>(tensor) * 17 + step * 7) % 65521) *
             0.25F -
         11.0F;
}

/// The whole checkpoint, as one process writes it; `memory` holds its data.
inline CheckpointContent whole_content(std::int64_t step, std::vector<std::vector<float>>& memory) {
  CheckpointContent content;
  content.state = {step, fmt::format("{{\"step\": {}}}", step)};
  const std::vector<TensorInfo> tensors = small_tensors();
  for (const auto& [file, name, t] : small_datasets()) {
    std::vector<float>& data = memory.emplace_back(static_cast<std::size_t>(tensors[t].size()));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = element(t, static_cast<std::int64_t>(i), step);
    const TensorInfo info{name, tensors[t].shape};
    content.tensors.push_back({file, info, parts_of_range(info, 0, info.size(), data.data())});
  }
  return content;
}

/// The steps of `directory` that have a manifest, ascending.
inline std::vector<std::int64_t> steps_in(const fs::path& directory) {
  std::vector<std::int64_t> steps = list_steps(directory);
  std::erase_if(
      steps, [&](std::int64_t step) { return !fs::exists(directory / step_name(step) / "manifest.json"); });
  return steps;
}

inline void write_whole(IoThread& io, const fs::path& directory, std::int64_t step) {
  std::vector<std::vector<float>> memory;
  CheckpointStore(io, io, directory, {}).write(whole_content(step, memory));
}

}  // namespace mylos::test
