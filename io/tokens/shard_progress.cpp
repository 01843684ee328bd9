// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/shard_progress.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

Json position_json(const ShardPosition& position) {
  return Json::object(
      {{"shards", position.shards}, {"document", position.document}, {"token", position.token}});
}

ShardPosition parse_position(const Json& json) {
  return {
      .shards = json.integer("shards"), .document = json.integer("document"), .token = json.integer("token")};
}

}  // namespace

void write_progress(const fs::path& file, const ShardProgress& progress) {
  std::vector<Json::Member> settings;
  for (const auto& [name, value] : progress.settings) settings.emplace_back(name, value);
  write_text_file(file, Json::object({{"settings", Json::object(settings)},
                                      {"train", position_json(progress.positions[0])},
                                      {"val", position_json(progress.positions[1])},
                                      {"done", progress.done}})
                                .dump(2) +
                            "\n");
}

std::optional<ShardProgress> read_progress(const fs::path& file) {
  std::error_code not_there;
  if (!fs::exists(file, not_there)) return std::nullopt;
  const std::string text = read_text_file(file);
  return at_place(file.string(), [&] {
    const Json json = Json::parse(text);
    ShardProgress progress{.settings = {},
                           .positions = {parse_position(json.at("train")), parse_position(json.at("val"))},
                           .done = json.boolean("done")};
    const Json settings = json.at("settings");
    for (const auto& [name, value] : settings.members())
      progress.settings.emplace_back(name, settings.text(name));
    return progress;
  });
}

void check_same_settings(const fs::path& file, const ShardProgress& before, const ShardProgress& now) {
  const auto value_of = [](const ShardProgress& progress, const std::string& name) -> std::string {
    const auto found =
        std::ranges::find(progress.settings, name, &std::pair<std::string, std::string>::first);
    return found == progress.settings.end() ? "nothing" : found->second;
  };
  for (const ShardProgress* progress : {&now, &before}) {
    for (const auto& [name, value] : progress->settings) {
      const std::string old_value = value_of(before, name);
      const std::string new_value = value_of(now, name);
      if (old_value != new_value)
        fail(ExitCode::usage, "{} belongs to a run with {} = {}, not {}", file.string(), name, old_value,
             new_value);
    }
  }
}

}  // namespace mylos
