// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/continued_run.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "app/deck/unchecked_deck.hpp"
#include "app/launch/environment.hpp"
#include "app/train/opened_model.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/thread_limits.hpp"
#include "io/file_util.hpp"
#include "parallel/layout/axis_kinds.hpp"

namespace mylos {

ModelConfig shape_to_continue(const Deck& deck, const std::string& path) {
  UncheckedDeck known(deck);
  std::error_code unknown;
  if (!known.has("run.dir")) return look_at_model(path).model;
  const std::filesystem::path resolved = RunPaths{expand_path(known.text("run.dir"))}.resolved_deck();
  if (std::filesystem::exists(resolved, unknown)) {
    known = UncheckedDeck(read_text_file(resolved));
  } else if (known.has("model.experts") || known.has("model.depth_capacity")) {
    return look_at_model(path).model;  // other keys of experts and depths may be open
  }
  const ModelConfig shape = model_config(known.values());
  const bool is_whole =
      shape.layers > 0 && shape.heads > 0 && shape.width > 0 && shape.context > 0 && shape.vocab > 0;
  return is_whole ? shape : look_at_model(path).model;
}

void reuse_choices(Setup& setup, const RunPaths& paths) {
  if (!std::filesystem::exists(paths.resolved_deck())) return;
  const UncheckedDeck before(read_text_file(paths.resolved_deck()));
  std::string replicas = before.text("parallel.replicas");
  std::erase(replicas, ' ');
  if (replicas != join(setup.config.parallel.replicas, ",")) return;
  for (const AxisKind* kind : rank_factors()) {
    if (before.integer(key_of(kind->key)) != setup.config.parallel.extent_of(*kind)) return;
  }
  const auto keep = [&](std::string& choice, PluginKind kind, const char* key) {
    const auto usable = setup.plugins.usable(kind);
    const bool offered =
        std::ranges::any_of(usable, [&](const auto* plugin) { return plugin->name == before.text(key); });
    if (choice == "auto" && offered) choice = before.text(key);
  };
  BackendConfig& backend = setup.config.backend;
  keep(backend.compute, PluginKind::compute, "backend.compute");
  keep(backend.comm, PluginKind::communication, "backend.comm");
  std::string& algorithm = setup.config.comm.algorithm;
  if (algorithm == "auto" && before.has("comm.algorithm")) algorithm = before.text("comm.algorithm");
  const std::int64_t threads = before.integer("backend.threads");
  const std::optional<ThreadLimit> allotted = slurm_threads(1);
  const std::int64_t most = std::min(openmp_thread_limit(), allotted ? allotted->threads : INT64_MAX);
  if (backend.threads == 0 && threads <= most) backend.threads = threads;
}

std::vector<std::string> find_from_folder(Setup& setup, const std::string& deck_name) {
  namespace fs = std::filesystem;
  RunConfig& config = setup.config;
  std::error_code unknown;
  const auto is_same = [&](const fs::path& a, const fs::path& b) { return fs::equivalent(a, b, unknown); };
  const auto begin_in = [](const std::string& folder, std::string& path) {
    if (!path.empty()) path = (fs::path(folder) / path).string();
  };
  const fs::path deck_folder = fs::absolute(deck_name, unknown).parent_path();
  const std::string before = folder_of_run({deck_folder});
  const bool is_resolved = !before.empty() && is_same(deck_name, RunPaths{deck_folder}.resolved_deck()) &&
                           is_same(fs::path(before) / config.run_dir, deck_folder);
  const std::string folder = is_resolved ? before : folder_of_run({config.run_dir});
  if (folder.empty() || folder == config.folder) return {};
  std::vector<std::string> notes;
  if (is_resolved) {
    begin_in(folder, config.run_dir);
    begin_in(folder, config.checkpoint.directory);
    begin_in(folder, config.data.ranks);
    begin_in(folder, config.init);
    begin_in(folder, config.eval.choices);
    notes.push_back(
        fmt::format("relative paths of {} begin in {}, where the run was started", deck_name, folder));
  }
  for (auto& [key, sources] :
       {std::pair("train", &config.data.train), std::pair("valid", &config.data.valid)}) {
    if (start_from(folder, !is_resolved, *sources) && !is_resolved)
      notes.push_back(
          fmt::format("[data] {} is not here, but in {}, where the run was started", key, folder));
  }
  if (!notes.empty()) config.folder = folder;
  return notes;
}

}  // namespace mylos
