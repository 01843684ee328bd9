// SPDX-License-Identifier: BSD-3-Clause
#include "io/node_sharing.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/base/processors.hpp"
#include "io/agree.hpp"

namespace mylos {

Sharing sharing_on(MPI_Comm node) {
  int place = 0;
  MPI_Comm_rank(node, &place);
  const std::string own = text_of(own_processors());
  const std::vector<std::string> all = gather_texts(node, own);
  const std::optional<CpuQuota> quota = cpu_quota();
  const std::string group = quota ? quota->group : "";
  const std::vector<std::string> groups = gather_texts(node, group);
  return {.processors = static_cast<int>(std::ranges::count(all, own)),
          .index = static_cast<int>(std::count(all.begin(), all.begin() + place, own)),
          .quota = static_cast<int>(std::ranges::count(groups, group)),
          .node = static_cast<int>(all.size())};
}

}  // namespace mylos
