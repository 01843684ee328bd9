// SPDX-License-Identifier: BSD-3-Clause
// Home directories and environment variables at the beginning of a path.
#pragma once

#include <string>
#include <string_view>

namespace mylos {

/// Returns `path` with its beginning replaced as a shell does: `~` and `~USER` by a home directory, `$NAME`
/// and `${NAME}` by the variable's value. A name that really begins with one of these characters is written
/// "./~name". Throws ExitCode::usage, naming the variable or the user, if there is no such variable (or it is
/// empty) or user.
std::string expand_path(std::string_view path);

/// The same for a pattern of glob(3): what is inserted stands for itself.
std::string expand_glob(std::string_view pattern);

/// Returns the pattern of glob(3) that matches `name` only.
std::string quote_glob(std::string_view name);

}  // namespace mylos
