// SPDX-License-Identifier: BSD-3-Clause
// check_shared: whether a directory is the same one on every node.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/launch/launch.hpp"
#include "app/launch/stop_signals.hpp"

namespace mylos {

/// A directory in which all ranks read and write.
struct SharedDirectory {
  std::string key;  ///< the parameter that names it, such as "run.dir"
  std::filesystem::path path;
};

/// Checks that every rank sees, in each directory, a file that rank 0 has just written there under a random
/// name, and may write there. Waits up to a minute for slow metadata, such as NFS's. Ends (AgreedEnd)
/// with ExitCode::usage naming the host of a rank that does not see the file, ExitCode::io if a rank cannot
/// write, ExitCode::preempted if a signal ends the wait. Rank 0 holds the locks of the directories.
/// Collective.
void check_shared(const Launch& launch, const std::vector<SharedDirectory>& directories,
                  const StopSignals& signals);

/// Whether a file is one that `check_shared` writes. If its process was killed, it has stayed.
bool is_probe(const std::filesystem::path& file);

/// Removes such files from a directory that this process has locked.
void remove_probes(const std::filesystem::path& directory);

}  // namespace mylos
