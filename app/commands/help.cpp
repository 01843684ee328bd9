// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/help.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "app/commands/commands.hpp"
#include "app/commands/shell_help.hpp"
#include "app/deck/run_config.hpp"
#include "app/launch/setup.hpp"
#include "core/base/join.hpp"
#include "core/base/nearest.hpp"
#include "io/deck/deck.hpp"

namespace mylos {

std::string plugin_text(const PluginInfo& plugin) {
  if (plugin.descriptor == nullptr)
    return fmt::format("{}\n  cannot be loaded: {}\n", plugin.path.string(), plugin.problem);
  const PluginDescriptor& d = *plugin.descriptor;
  std::string text = fmt::format("{} ({})\n  {}\n  {}\n", d.name,
                                 d.kind == PluginKind::compute ? "compute backend" : "communication backend",
                                 d.summary, plugin.path.string());
  if (!d.operations.empty()) {
    const std::set<std::string_view> operations(d.operations.begin(), d.operations.end());
    text += fmt::format("  its own kernels: {}\n", join(operations, ", "));
  }
  if (!plugin.problem.empty()) text += fmt::format("  not usable here: {}\n", plugin.problem);
  return text;
}

namespace {

std::vector<CommandOption> options() {
  return {{"markdown", OptionKind::flag, "with deck: print the reference in Markdown, as in docs/deck.md"}};
}

int run(const CommandLine& line) {
  const std::string topic = line.arguments.empty() ? "" : line.arguments[0];
  const std::string path = line.text("plugin-path");
  const std::size_t most = (topic == "deck" && !line.flag("markdown")) || topic == "man" ? 2 : 1;
  if (line.arguments.size() > most)
    fail(ExitCode::usage, "mylos help {}: unexpected argument {}; see mylos help", topic,
         line.arguments[most]);
  if (line.flag("markdown") && topic != "deck") fail(ExitCode::usage, "--markdown is for mylos help deck");
  if (topic.empty()) {
    fmt::print("{}", usage_text());
  } else if (topic == "deck" && line.flag("markdown")) {
    fmt::print("{}", deck_markdown(deck_params()));
  } else if (topic == "deck") {
    const PluginRegistry plugins = PluginRegistry::discover(plugin_search_path(path));
    fmt::print("{}", deck_help(all_params(plugins), line.arguments.size() > 1 ? line.arguments[1] : ""));
  } else if (topic == "completion") {
    fmt::print("{}", bash_completion(deck_params()));
  } else if (topic == "man") {
    const std::string name = line.arguments.size() > 1 ? line.arguments[1] : "mylos";
    fmt::print("{}", man_page(name == "mylos" ? nullptr : &command_named(name)));
  } else if (topic == "plugins") {
    const PluginRegistry plugins = PluginRegistry::discover(plugin_search_path(path));
    for (const PluginInfo& plugin : plugins.all()) fmt::print("{}", plugin_text(plugin));
    fmt::print("searched:");
    for (const auto& directory : plugins.search_path()) fmt::print(" {}", directory.string());
    fmt::print("\n");
  } else {
    std::vector<std::string_view> topics = command_names();
    topics.insert(topics.end(), {"deck", "plugins", "completion", "man"});
    if (std::ranges::find(topics, topic) == topics.end()) {
      const std::string guess = nearest(topic, topics);
      fail(ExitCode::usage, "no help for \"{}\"; {}", topic,
           guess.empty() ? fmt::format("the topics are {}", join(topics, ", "))
                         : fmt::format("did you mean {}?", guess));
    }
    fmt::print("{}", command_help(topic));
  }
  return 0;
}

}  // namespace

const Command help_command{
    .name = "help",
    .arguments = "[TOPIC]",
    .summary =
        "explain TOPIC: a command, deck, deck SECTION or plugins; print completion (bash) or man COMMAND",
    .options = options,
    .run = run,
    .max_arguments = 2,
    .processes = Processes::first};

}  // namespace mylos
