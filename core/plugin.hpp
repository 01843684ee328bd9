// SPDX-License-Identifier: BSD-3-Clause
// Plugins: what a backend exports, and the loader that checks it before it calls anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/communicator.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"

namespace mylos {

inline constexpr std::uint64_t plugin_magic = 0x6d796c6f73706c67ULL;  // "mylosplg"
inline constexpr std::uint32_t plugin_abi_version = 13;
/// Of the operations that a plugin was compiled with: their names, order and layout.
inline constexpr std::uint64_t operations_key = key_of(Operations());

#if defined(__SANITIZE_ADDRESS__)
#define MYLOS_COMPILER_FINGERPRINT_SUFFIX " asan"
#else
#define MYLOS_COMPILER_FINGERPRINT_SUFFIX ""
#endif
/// C++ classes cross the boundary, so both sides must come from the same compiler.
#define MYLOS_COMPILER_FINGERPRINT __VERSION__ MYLOS_COMPILER_FINGERPRINT_SUFFIX

enum class PluginKind : std::uint32_t { compute = 1, communication = 2 };

/// What a compute backend is made from.
struct ComputeArgs {
  const ParamValues* deck = nullptr;
  ComputeBackend* next = nullptr;  ///< operations that are missing fall through to it; null for the root
  MemoryLedger* ledger = nullptr;
  int num_threads = 1;  ///< host threads that this rank may use
};

/// What a communication backend is made from.
struct CommunicatorArgs {
  const ParamValues* deck = nullptr;
  Communicator* bootstrap = nullptr;  ///< all ranks, for exchanging ids; null for the bootstrap itself
  /// Whose memory the buffers are and whose streams operations wait for; null for complete host memory. Where
  /// the communicator reaches fewer ranks than `bootstrap` it is left alone: what joins the parts waits.
  ComputeBackend* compute = nullptr;
  MemoryLedger* ledger = nullptr;
};

/// What a communicator of this backend takes, as far as it is known without making one.
struct CommunicatorPlan {
  int ranks = 0;          ///< that it reaches
  std::size_t bytes = 0;  ///< of communication memory on each of them, from creation on
};

/// The products with one weight matrix that a run will make.
struct PlannedProduct {
  std::int64_t in = 0;         ///< rows of the weight
  std::int64_t out = 0;        ///< its columns
  std::int64_t rows = 0;       ///< of the activations that it multiplies at a time
  std::int64_t last_rows = 0;  ///< in the last of these, where there are fewer
  int threads = 0;             ///< 0: not known
  DType dtype = DType::fp32;
  DType grad_dtype = DType::fp32;
  bool transposed = false;   ///< stored (out, in)
  bool bias = false;         ///< added in forward
  bool accumulates = false;  ///< products of `rows` rows add to the gradient too, besides the first
  bool versioned = true;     ///< the weight keeps its place from step to step and has a version
};

/// The one data symbol of a plugin, `mylos_plugin`. Plain data; a plugin names what differs from the
/// defaults, which are those of the sources it is compiled with.
struct PluginDescriptor {
  std::uint64_t magic = plugin_magic;
  std::uint32_t abi_version = plugin_abi_version;
  std::uint32_t struct_size = sizeof(PluginDescriptor);
  std::uint64_t operations_key = mylos::operations_key;
  PluginKind kind;
  const char* name;                                   ///< "kokkos", "onednn", "mpi", ...; the deck's word
  const char* compiler = MYLOS_COMPILER_FINGERPRINT;  ///< MYLOS_COMPILER_FINGERPRINT
  const char* kokkos_version = "";                    ///< "" where it does not use Kokkos
  const char* summary;                                ///< one line for `mylos help`
  std::int32_t preference;                            ///< `auto` takes the usable backend with the largest
  const ParamSpec* params = nullptr;                  ///< its own deck parameters
  std::size_t num_params = 0;
  /// Of a compute backend: names of the operations that it has kernels for.
  const std::string_view* operations = nullptr;
  std::size_t num_operations = 0;
  /// Null, or why it cannot be used on this machine. Called before `create`.
  const char* (*unusable)();
  /// Of a communication backend, asked by all ranks of a job: null, or why these cannot use it together, the
  /// same on all of them. Collective; null where `unusable` says it all.
  const char* (*unusable_among)(Communicator& ranks) = nullptr;
  ComputeBackend* (*create_compute)(const ComputeArgs&) = nullptr;
  Communicator* (*create_communicator)(const CommunicatorArgs&) = nullptr;
  void (*destroy_compute)(ComputeBackend*) = nullptr;
  void (*destroy_communicator)(Communicator*) = nullptr;
  /// For a run of `ranks` ranks, on one node where the deck does not say otherwise; null where there is
  /// nothing to plan.
  CommunicatorPlan (*plan_communicator)(const ParamValues& deck, int ranks) = nullptr;
  /// Bytes of workspace that the backend will keep for these products; null where there is nothing to plan.
  std::size_t (*plan_compute)(const PlannedProduct* products, std::size_t count) = nullptr;
};

using ComputeBackendHandle = std::unique_ptr<ComputeBackend, void (*)(ComputeBackend*)>;
using CommunicatorHandle = std::unique_ptr<Communicator, void (*)(Communicator*)>;

/// A plugin that was found: usable, or with the reason why not.
struct PluginInfo {
  std::filesystem::path path;
  const PluginDescriptor* descriptor = nullptr;  ///< null where it could not be loaded
  std::string problem;                           ///< empty where it can be used
};

/// The plugins of this process: found in the search path, or registered by a static build.
class PluginRegistry {
 public:
  /// Opens every `libmylos_*.so` in `directories`, in order; the first of a name wins. Never unloads.
  static PluginRegistry discover(const std::vector<std::filesystem::path>& directories);
  /// Checks and opens one file. Errors are reported in the result.
  static PluginInfo open(const std::filesystem::path& file);
  /// Checks a descriptor's magic, version, size and compiler; returns what is wrong, or "".
  static std::string check(const PluginDescriptor& descriptor);

  const std::vector<PluginInfo>& found() const { return found_; }
  const std::vector<std::filesystem::path>& searched() const { return searched_; }

  /// The plugin of this kind and name; throws ExitCode::usage that names the reason, the paths tried and the
  /// plugins found.
  const PluginDescriptor& require(PluginKind kind, std::string_view name) const;
  /// The usable plugins of a kind, the most preferred first.
  std::vector<const PluginDescriptor*> usable(PluginKind kind) const;

 private:
  std::vector<PluginInfo> found_;
  std::vector<std::filesystem::path> searched_;
};

/// `--plugin-path` (colon separated), MYLOS_PLUGIN_PATH, ../lib/mylos relative to the executable.
std::vector<std::filesystem::path> plugin_search_path(const std::string& option);

}  // namespace mylos
