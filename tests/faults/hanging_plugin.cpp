// SPDX-License-Identifier: BSD-3-Clause
// Plugin "hanging": on rank 1, or on the only rank, the 20th layernorm never ends.
// MYLOS_LIBRARY_FAILURE names what happens instead: "abort", "exit" or "segv".
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <unistd.h>

#include "core/ops/forwarding_backend.hpp"
#include "core/plugin.hpp"

namespace mylos {
namespace {

struct Failing {
  int calls = 0;

  bool run(const LayernormForward& /*op*/) {
    constexpr int last_call = 20;
    if (++calls < last_call) return false;
    const char* rank = std::getenv("PMI_RANK");
    const char* size = std::getenv("PMI_SIZE");
    const bool is_alone = size == nullptr || std::string(size) == "1";
    if (!is_alone && std::string(rank) != "1") return false;
    const char* failure = std::getenv("MYLOS_LIBRARY_FAILURE");
    const std::string kind = failure != nullptr ? failure : "";
    if (kind == "abort") std::abort();
    if (kind == "exit") std::exit(1);
    if (kind == "segv") std::raise(SIGSEGV);
    while (true) ::pause();
  }
};

class HangingBackend final : public ForwardingBackend {
 public:
  explicit HangingBackend(ComputeBackend& next) : ForwardingBackend(next) {
    add_operations(OperationList<LayernormForward>(), failing_, "hanging");
  }

 private:
  Failing failing_;
};

std::unique_ptr<ComputeBackend> create(const ComputeArgs& args) {
  return std::make_unique<HangingBackend>(*args.next);
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "hanging",
    .summary = "for tests: its 20th layernorm never ends",
    .preference = 0,
    .create_compute = create,
};

}  // namespace mylos
