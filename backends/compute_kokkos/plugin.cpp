// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.hpp"

#include <memory>

#include <Kokkos_Core.hpp>

#include "backends/compute_kokkos/kokkos_backend.hpp"

#ifndef MYLOS_PLUGIN_SYMBOL
#define MYLOS_PLUGIN_SYMBOL mylos_plugin
#endif
#define MYLOS_STRING_OF(x) #x
#define MYLOS_STRING(x) MYLOS_STRING_OF(x)

namespace mylos {

namespace {

const char* unusable() {
  return nullptr;
}

ComputeBackend* create(const ComputeArgs& args) {
  if (Kokkos::is_finalized()) fail(ExitCode::internal, "Kokkos can be initialised once in a process");
  Kokkos::initialize(
      Kokkos::InitializationSettings().set_num_threads(args.num_threads).set_disable_warnings(true));
  return std::make_unique<KokkosBackend>().release();
}

void destroy(ComputeBackend* backend) {
  std::unique_ptr<ComputeBackend>(backend).reset();
  Kokkos::finalize();
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .magic = plugin_magic,
    .abi_version = plugin_abi_version,
    .struct_size = sizeof(PluginDescriptor),
    .kind = PluginKind::compute,
    .name = "kokkos",
    .compiler = MYLOS_COMPILER_FINGERPRINT,
    .kokkos_version = MYLOS_STRING(KOKKOS_VERSION_MAJOR) "." MYLOS_STRING(
        KOKKOS_VERSION_MINOR) "." MYLOS_STRING(KOKKOS_VERSION_PATCH),
    .summary = "every operation in portable Kokkos; the root that other compute backends fall through to",
    .preference = 10,
    .params = nullptr,
    .num_params = 0,
    .unusable = unusable,
    .create_compute = create,
    .create_communicator = nullptr,
    .destroy_compute = destroy,
    .destroy_communicator = nullptr,
    .plan_communicator = nullptr,
};

}  // namespace mylos
