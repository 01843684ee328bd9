// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/read_totals.hpp"

#include <algorithm>
#include <utility>

namespace mylos {

void ReadCounter::continue_at(std::int64_t sample, const ReadTotals& before) {
  tokens_before_ = before.tokens - sample * data_.seq_len();
  std::vector<ReadTotals::Source> left = before.sources;  // equal sources are matched in their order
  for (std::size_t source = 0; source < epochs_before_.size(); ++source) {
    if (before.sources.empty()) break;
    const auto same = std::ranges::find(left, data_.identity(source), &ReadTotals::Source::content);
    epochs_before_[source] = (same == left.end() ? 0.0 : same->epochs) - data_.epochs(source, sample);
    if (same != left.end()) left.erase(same);
  }
  paused_ = std::move(left);
}

ReadTotals ReadCounter::at(std::int64_t sample) const {
  ReadTotals totals{.tokens = tokens_before_ + sample * data_.seq_len(), .sources = {}};
  for (std::size_t source = 0; source < epochs_before_.size(); ++source) {
    totals.sources.push_back(
        {.content = data_.identity(source), .epochs = epochs_before_[source] + data_.epochs(source, sample)});
  }
  totals.sources.insert(totals.sources.end(), paused_.begin(), paused_.end());
  return totals;
}

}  // namespace mylos
