// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/shared_directory.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <unistd.h>

#include "app/launch/setup.hpp"
#include "core/base/clock.hpp"
#include "core/base/error.hpp"
#include "core/base/host.hpp"
#include "core/base/say.hpp"
#include "core/base/watched_call.hpp"
#include "io/agree.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view probe_prefix = ".mylos-shared-";

std::string random_text() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

/// Files of one name and content in all directories, for the lifetime of this object.
class Probes {
 public:
  Probes(const std::vector<SharedDirectory>& directories, const std::string& name, std::string_view content) {
    try {
      for (const SharedDirectory& directory : directories) write(directory.path / name, content);
    } catch (...) {  // no destructor will run
      remove();
      throw;
    }
  }
  ~Probes() { remove(); }
  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;

 private:
  void write(const fs::path& file, std::string_view content) {
    FileDescriptor open = open_file(file, O_WRONLY | O_CREAT | O_EXCL);
    files_.push_back(file);
    write_fully(open.get(), file, content.data(), content.size(), 0);
    check_call(open.close(), "write", file);  // NFS writes when a file is closed
  }
  void remove() {
    for (const fs::path& file : files_) ::unlink(file.c_str());
  }

  std::vector<fs::path> files_;
};

/// Whether `directory` has a file `name` with that content. Looks into all folders on the way first, because
/// NFS remembers for up to a minute that a name did not exist, unless it finds that the folder has changed.
bool sees(const fs::path& directory, const std::string& name, std::string_view content) {
  const fs::path file = directory / name;
  const WatchedCall call(CallKind::io, "look", file.native());
  std::error_code unknown;
  fs::path folder;
  for (const fs::path& part : fs::absolute(directory, unknown)) {
    folder /= part;
    if (DIR* listing = ::opendir(folder.c_str())) {
      static_cast<void>(::readdir(listing));
      ::closedir(listing);
    }
  }
  const FileDescriptor open(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::array<char, 64> text{};
  const ssize_t bytes = open ? ::pread(open.get(), text.data(), text.size(), 0) : -1;
  return bytes >= 0 && std::string_view(text.data(), static_cast<std::size_t>(bytes)) == content;
}

/// What rank 0 makes of a look of all ranks.
struct Verdict {
  enum Kind : std::int64_t { look_again, all_see, stopped, not_seen };
  std::int64_t kind = look_again;
  std::int64_t rank = 0;       // the first that does not see
  std::int64_t directory = 0;  // the first that this rank does not see
};

/// Lets all ranks look until all see the file in every directory, at most until rank 0's `end`. The looks are
/// rounds, so that no rank is in one call for long, whatever the watchdog's limits are.
Verdict look(const std::vector<SharedDirectory>& directories, const std::string& name,
             std::string_view content, Clock::time_point end, const StopSignals& signals) {
  constexpr std::chrono::milliseconds longest_pause{200};
  const auto num_directories = std::ssize(directories);
  std::int64_t seen = 0;
  for (std::chrono::milliseconds pause{5};; pause = std::min(2 * pause, longest_pause)) {
    while (seen < num_directories && sees(directories[static_cast<std::size_t>(seen)].path, name, content))
      ++seen;
    const auto ranks = gather_to_root(MPI_COMM_WORLD, {seen, signals.received()});
    Verdict verdict;
    if (!ranks.empty()) {
      const auto blind =
          std::ranges::find_if(ranks, [&](const auto& rank) { return rank[0] < num_directories; });
      if (blind == ranks.end()) {
        verdict.kind = Verdict::all_see;
      } else if (std::ranges::any_of(ranks, [](const auto& rank) { return rank[1] != 0; })) {
        verdict.kind = Verdict::stopped;
      } else if (Clock::now() >= end) {
        verdict = {Verdict::not_seen, blind - ranks.begin(), (*blind)[0]};
      }
    }
    std::vector<std::int64_t> values = {verdict.kind, verdict.rank, verdict.directory};
    broadcast_from_root(MPI_COMM_WORLD, values);
    if (values[0] != Verdict::look_again) return {values[0], values[1], values[2]};
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

void check_shared(const Launch& launch, const std::vector<SharedDirectory>& directories,
                  const StopSignals& signals) {
  const MpiRuntime& mpi = launch.mpi();
  if (mpi.rank() == 0) {
    for (const SharedDirectory& directory : directories) remove_probes(directory.path);
  }
  if (mpi.size() == 1) return;
  const std::string name = mpi.broadcast(std::string(probe_prefix) + random_text());
  const std::string content = mpi.broadcast(random_text());
  constexpr std::chrono::seconds longest_wait{60};
  const auto end = Clock::now() + longest_wait;  // of rank 0
  std::optional<Probes> probes;
  launch.agree([&] {
    if (mpi.rank() == 0) probes.emplace(directories, name, content);
  });
  const Verdict verdict = look(directories, name, content, end, signals);
  launch.agree([&] {
    if (verdict.kind == Verdict::stopped) fail(ExitCode::preempted, "stopped by a signal");
    if (verdict.kind == Verdict::not_seen) {
      const SharedDirectory& directory = directories[static_cast<std::size_t>(verdict.directory)];
      std::error_code unknown;
      const std::string place = fs::absolute(directory.path, unknown).string();
      const std::vector<std::string> hosts = gather_texts(MPI_COMM_WORLD, host_name());
      const std::vector<std::string> places = gather_texts(MPI_COMM_WORLD, place);
      const auto blind = static_cast<std::size_t>(verdict.rank);
      const bool is_elsewhere = places[blind] != places[0];
      fail(ExitCode::usage,
           "{} \"{}\" is not the same directory on every node: rank {} on {} does not see what rank 0 on {} "
           "wrote; {}",
           directory.key, directory.path.string(), blind, hosts[blind], hosts[0],
           is_elsewhere ? fmt::format("it looks in {}, not in {}", places[blind], places[0])
                        : "give a directory on a file system that all nodes share");
    }
    for (const SharedDirectory& directory : directories) {
      if (::access(directory.path.c_str(), W_OK | X_OK) != 0)
        fail(ExitCode::io, "{} \"{}\" cannot be written on {}: {}", directory.key, directory.path.string(),
             host_name(), std::strerror(errno));
    }
  });
}

bool is_probe(const fs::path& file) {
  return file.filename().native().starts_with(probe_prefix);
}

void remove_probes(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_probe(entry->path())) ::unlink(entry->path().c_str());
  }
}

}  // namespace mylos
