// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/compute_backends.hpp"

#include <utility>

#include <fmt/format.h>

#include "tests/support/test_plugins.hpp"

namespace mylos {

namespace {

constexpr std::string_view root = "kokkos";

void set_default(ParamValues& deck, const ParamSpec& spec) {
  const std::string key = fmt::format("{}.{}", spec.section, spec.name);
  const std::string text = spec.default_value == nullptr ? "" : spec.default_value;
  switch (spec.type) {
    case ParamType::integer:
      return deck.set(key, std::int64_t{std::stoll(text)});
    case ParamType::real:
      return deck.set(key, std::stod(text));
    case ParamType::boolean:
      return deck.set(key, text == "true");
    case ParamType::text:
    case ParamType::choice:
      return deck.set(key, text);
  }
}

}  // namespace

std::vector<std::string> compute_backend_names() {
  std::vector<std::string> names;
  for (const PluginDescriptor* plugin : test_plugins().usable(PluginKind::compute)) {
    names.insert(plugin->name == root ? names.begin() : names.end(), plugin->name);
  }
  return names;
}

ComputeBackends::ComputeBackends(int num_threads) {
  ComputeBackend* next = nullptr;
  for (const std::string& name : compute_backend_names()) {
    const PluginDescriptor& plugin = test_plugins().require(PluginKind::compute, name);
    for (const ParamSpec& param : plugin.params) set_default(deck_, param);
    std::unique_ptr<ComputeBackend> backend =
        plugin.create_compute({.deck = &deck_, .next = next, .ledger = &ledger_, .num_threads = num_threads});
    if (name == root) next = backend.get();
    backends_.emplace(name, std::move(backend));
  }
}

ComputeBackend& ComputeBackends::at(std::string_view name) {
  const auto found = backends_.find(name);
  require(found != backends_.end(), "a name from compute_backend_names");
  return *found->second;
}

// Stacked backends are destroyed before the root, which they use.
ComputeBackends::~ComputeBackends() {
  std::erase_if(backends_, [](const auto& entry) { return entry.first != root; });
}

}  // namespace mylos
