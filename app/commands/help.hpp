// SPDX-License-Identifier: BSD-3-Clause
// Texts about plugins for `mylos help plugins` and `mylos inspect`.
#pragma once

#include <string>

#include "core/plugin.hpp"

namespace mylos {

/// Describes a plugin, and says why it cannot be loaded or used if that is so.
std::string plugin_text(const PluginInfo& plugin);

}  // namespace mylos
