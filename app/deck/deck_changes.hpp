// SPDX-License-Identifier: BSD-3-Clause
// The changes that a restart makes to a run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/param_spec.hpp"

namespace mylos {

/// Something that a restart changes, so that it does not continue bit for bit.
struct RunChange {
  std::string what;  ///< "section.name", or what else has changed
  std::string before, now;
  Effect effect = Effect::results;
  OnRestart on_restart = OnRestart::takes;
  const char* held = "";  ///< as in ParamSpec
};

/// Returns the keys of the resolved deck `now` that may affect results and differ from `before`, in the order
/// of `now`. What `before` lacks had the default of its spec, or "nothing" without a spec.
std::vector<RunChange> deck_changes(const std::string& before, const std::string& now,
                                    std::span<const ParamSpec> specs);

/// Whether one of the changes is that of `what`.
bool has_change(std::span<const RunChange> changes, std::string_view what);

/// "key old -> new, ..."
std::string text_of(std::span<const RunChange> changes);

}  // namespace mylos
