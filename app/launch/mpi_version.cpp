// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/mpi_version.hpp"

#include <algorithm>
#include <string_view>

#include <mpi.h>

namespace mylos {

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view all(text, static_cast<std::size_t>(length));
  std::string line(all.substr(0, all.find_first_of("\n\r")));
  std::ranges::replace(line, '\t', ' ');
  return line;
}

}  // namespace mylos
