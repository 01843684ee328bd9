// SPDX-License-Identifier: BSD-3-Clause
// What an installation offers besides `mylos help`, from the same tables: completion for bash and man pages.
#pragma once

#include <span>
#include <string>

#include "app/commands/commands.hpp"
#include "core/param_spec.hpp"

namespace mylos {

/// Returns a script for bash that completes commands, their options, deck keys and the choices of both.
std::string bash_completion(std::span<const ParamSpec> keys);

/// Returns the page mylos.1 or, if `command` is not null, that of a command (mylos-train.1), in the macros of
/// man(7).
std::string man_page(const Command* command);

}  // namespace mylos
