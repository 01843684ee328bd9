// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/outer_job.hpp"

#include <cstdlib>
#include <string>
#include <unistd.h>
#include <vector>

namespace mylos::test {

void leave_outer_job() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    if (variable.starts_with("SLURM_")) names.push_back(variable.substr(0, variable.find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

}  // namespace mylos::test
