// SPDX-License-Identifier: BSD-3-Clause
// Texts about plugins for `mylos help plugins` and `mylos inspect`.
#pragma once

#include <string>

#include "core/plugin.hpp"

namespace mylos {

/// What a plugin is, or why it cannot be used.
std::string plugin_text(const PluginInfo& plugin);

}  // namespace mylos
