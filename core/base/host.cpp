// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/host.hpp"

#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <string_view>
#include <unistd.h>

#include <fmt/core.h>

namespace mylos {

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::optional<std::int64_t> number_in_environment(const char* name) {
  const char* value = std::getenv(name);
  const std::string_view text = value != nullptr ? value : "";
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number ? std::optional(number) : std::nullopt;
}

std::optional<SlurmJob> slurm_job() {
  const char* id = std::getenv("SLURM_JOB_ID");
  if (id == nullptr || *id == '\0') return std::nullopt;
  return SlurmJob{.id = id, .restarts = number_in_environment("SLURM_RESTART_COUNT").value_or(0)};
}

std::string own_process() {
  const std::optional<SlurmJob> job = slurm_job();
  return fmt::format("process {} on {}{}", ::getpid(), host_name(), job ? ", Slurm job " + job->id : "");
}

}  // namespace mylos
