// SPDX-License-Identifier: BSD-3-Clause
// CallSite: the entry of a program whose call a thread is making, for reports and records.
#pragma once

#include <cstddef>
#include <source_location>
#include <string_view>

namespace mylos {

struct CallSite {
  std::string_view program;  ///< "backward"
  std::size_t number = 0;    ///< of the entry in its pass
  std::source_location where;
  int layer = -1;  ///< of the transformer block whose entry it is, from 0; -1 of none
  /// The call may be under way for long before anybody waits for it, so only the wait counts.
  bool is_awaited_late = false;
};

/// Returns the entry whose call this thread is making, or null outside of programs.
const CallSite* current_call_site();

/// Makes calls of this thread calls of `site`, which must outlive this object.
class CallSiteScope {
 public:
  explicit CallSiteScope(const CallSite& site);
  ~CallSiteScope();
  CallSiteScope(const CallSiteScope&) = delete;
  CallSiteScope& operator=(const CallSiteScope&) = delete;
};

}  // namespace mylos
