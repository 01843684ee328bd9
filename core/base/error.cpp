// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/error.hpp"

#include <filesystem>
#include <new>
#include <system_error>

#include "core/base/memory_shortage.hpp"
#include "core/base/thread_limits.hpp"
#include "core/base/what_is_at.hpp"

namespace mylos {

Error error_of(const std::exception& exception) {
  const std::string what = exception.what();
  if (const auto* known = dynamic_cast<const Error*>(&exception)) return {known->code(), what};
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr)
    return {ExitCode::internal, "out of memory"};
  if (const auto* files = dynamic_cast<const std::filesystem::filesystem_error*>(&exception)) {
    const std::filesystem::path& path = files->path1();
    if (path.empty()) return {ExitCode::io, "cannot read a folder: " + files->code().message()};
    const std::string other = files->path2().empty() ? "" : " with " + files->path2().string();
    return {ExitCode::io, fmt::format("cannot use {}{}: {}; there is {}", path.string(), other,
                                      files->code().message(), what_is_at(path))};
  }
  if (const auto* system = dynamic_cast<const std::system_error*>(&exception)) {
    const bool is_thread = system->code() == std::errc::resource_unavailable_try_again;
    if (is_thread) return {ExitCode::internal, thread_problem()};
    if (system->code() == std::errc::not_enough_memory) return {ExitCode::internal, "out of memory"};
    // fmt's words for a stream
    if (what.starts_with("cannot write to file"))
      return {ExitCode::io, "the output cannot be written: " + system->code().message()};
    return {ExitCode::io, what};
  }
  return {ExitCode::internal, (memory_is_short() ? "out of memory: " : "internal error: ") + what};
}

}  // namespace mylos
