// SPDX-License-Identifier: BSD-3-Clause
// Machine files: what a machine can do, in the syntax of decks. `mylos measure` writes them, `mylos plan` and
// parallel.stages = auto read them (docs/planner.md).
#pragma once

#include <string>
#include <string_view>

#include "parallel/plan/machine.hpp"

namespace mylos {

/// Parses a machine file. Throws ExitCode::usage with all problems, each with its line.
Machine parse_machine(std::string_view text, const std::string& file_name);

/// Reads the machine file at `path`. Throws like `read_text_file` and `parse_machine`.
Machine read_machine(const std::string& path);

/// The sections [products], [attention], [operations] and [collectives] with the rows of a machine's tables.
std::string machine_tables_text(const Machine& machine);

}  // namespace mylos
