// SPDX-License-Identifier: BSD-3-Clause
// The subcommands. Each returns the exit code of the process; errors are thrown.
#pragma once

#include <string>

#include "app/command_line.hpp"

namespace mylos {

int run_train(const CommandLine& line);
int run_eval(const CommandLine& line);
int run_generate(const CommandLine& line);
int run_tokenize(const CommandLine& line);
int run_inspect(const CommandLine& line);
int run_report(const CommandLine& line);
int run_help(const CommandLine& line);

}  // namespace mylos
