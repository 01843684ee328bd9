// SPDX-License-Identifier: BSD-3-Clause
// Plugins: what a backend exports, and the loader that checks it before calling anything.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/communication/communicator.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"

namespace mylos {

inline constexpr std::uint64_t plugin_magic = 0x6d796c6f73706c67ULL;  // "mylosplg"
inline constexpr std::uint32_t plugin_abi_version = 19;
/// Identifies the operations that a plugin was compiled with: their names, order and record sizes.
inline constexpr std::uint64_t operations_key = key_of(Operations());

#if defined(__SANITIZE_ADDRESS__)
#define MYLOS_COMPILER_FINGERPRINT_SUFFIX " asan"
#else
#define MYLOS_COMPILER_FINGERPRINT_SUFFIX ""
#endif
/// C++ classes cross the plugin boundary, so both sides must come from the same compiler.
#define MYLOS_COMPILER_FINGERPRINT __VERSION__ MYLOS_COMPILER_FINGERPRINT_SUFFIX

/// The name of a plugin's descriptor. For a static build, CMake gives each plugin a name of its own.
#ifndef MYLOS_STATIC
#define MYLOS_PLUGIN_SYMBOL mylos_plugin
#endif

enum class PluginKind : std::uint32_t { compute = 1, communication = 2 };

/// The arguments for creating a compute backend.
struct ComputeArgs {
  const ParamValues* deck = nullptr;
  ComputeBackend* next = nullptr;  ///< runs the operations that this backend does not; null for the root
  MemoryLedger* ledger = nullptr;
  int num_threads = 1;  ///< host threads that this rank may use
};

/// The arguments for creating a communicator.
struct CommunicatorArgs {
  const ParamValues* deck = nullptr;
  Communicator* bootstrap = nullptr;  ///< all ranks, for exchanging ids; null for the bootstrap itself
  /// The backend that owns the buffers. Every operation waits for the work queued on it. Null if the buffers
  /// are host memory, and no queued work uses them or a layer above waits for that work. A communicator that
  /// reaches fewer ranks than `bootstrap` ignores this backend: the layer that joins such communicators waits
  /// for the work.
  ComputeBackend* compute = nullptr;
  MemoryLedger* ledger = nullptr;
};

/// The ranks and the memory of a communicator, known before the communicator is created.
struct CommunicatorPlan {
  int ranks = 0;                   ///< ranks that the communicator reaches
  std::size_t bytes = 0;           ///< communication memory on each rank, allocated at creation
  std::size_t bytes_per_rank = 0;  ///< of these; a communicator of fewer ranks needs so many less for each

  std::size_t bytes_of(int ranks_of_group) const {
    return bytes - static_cast<std::size_t>(std::max(ranks - ranks_of_group, 0)) * bytes_per_rank;
  }
};

/// The matrix products that a run computes with one weight matrix.
struct PlannedProduct {
  std::int64_t in = 0;         ///< inputs of the layer
  std::int64_t out = 0;        ///< outputs of the layer
  std::int64_t rows = 0;       ///< rows of activations in one product
  std::int64_t last_rows = 0;  ///< rows in the last product, if it has fewer; else 0
  /// Rows of the forward product in evaluation, if they are more; else 0.
  std::int64_t evaluated_rows = 0;
  int threads = 0;  ///< 0 if unknown
  DType dtype = DType::fp32;
  DType grad_dtype = DType::fp32;
  bool transposed = false;   ///< stored (out, in)
  bool bias = false;         ///< added in forward
  bool accumulates = false;  ///< a product of `rows` rows adds to the gradient
  bool has_input_gradient = false;
  bool versioned = true;  ///< the weight keeps its place from step to step and has a version
  int places = 1;         ///< of the weight: several versions are kept, each of which may have a packed copy
  bool is_grouped = false;  ///< of experts: any number of rows up to `rows` occurs
};

/// A MatrixProduct of a run, with m, n and k as there.
struct PlannedMatrixProduct {
  std::int64_t m = 0, n = 0, k = 0;
  int threads = 0;  ///< 0 if unknown
  DType dtype = DType::fp32;
  bool x_transposed = false, y_transposed = false;
  auto operator<=>(const PlannedMatrixProduct&) const = default;
};

/// The attention of a run's blocks; batch is 0 if a model has none.
struct PlannedAttention {
  std::int64_t batch = 0;  ///< samples at a time
  std::int64_t heads = 0;
  std::int64_t positions = 0;
  std::int64_t head_size = 0;
  DType dtype = DType::fp32;
  bool has_dropout = false;
};

/// The work of a run for which a compute backend needs memory.
struct PlannedWork {
  std::span<const PlannedProduct> products{};
  std::span<const PlannedMatrixProduct> matrix_products{};
  PlannedAttention attention{};
};

/// The one data symbol of a plugin, `mylos_plugin`. Plain data. A plugin sets the members that have no
/// default, and those whose default does not fit. The defaults come from the sources that the plugin is
/// compiled with.
struct PluginDescriptor {
  std::uint64_t magic = plugin_magic;
  std::uint32_t abi_version = plugin_abi_version;
  std::uint32_t struct_size = sizeof(PluginDescriptor);
  std::uint64_t operations_key = mylos::operations_key;
  PluginKind kind;
  const char* name;  ///< its name in the deck: "kokkos", "onednn", "mpi", ...
  const char* compiler = MYLOS_COMPILER_FINGERPRINT;
  const char* kokkos_version = "";  ///< "" if it does not use Kokkos
  const char* libraries = "";       ///< other libraries, for `mylos version`: "oneDNN 2.6.3"
  const char* summary;              ///< one line for `mylos help`
  /// For a compute backend: about as many bytes of logits at a time make the head's products fast.
  std::int64_t logits_bytes = std::int64_t{128} << 20;
  std::int32_t preference;                 ///< `auto` prefers usable backends with larger values
  std::span<const ParamSpec> params = {};  ///< its own deck parameters
  /// For a compute backend: the names of the operations that it has kernels for.
  std::span<const std::string_view> operations = {};
  /// Returns why the backend cannot be used on this machine, or null. Called before the backend is created.
  /// The pointer is null if the backend can be used everywhere.
  const char* (*unusable)() = nullptr;
  /// For a communication backend: returns why the ranks of a job cannot use it together, or null. The answer
  /// is the same on every rank. Collective over all ranks of the job. The pointer is null if `unusable`
  /// suffices.
  const char* (*unusable_among)(Communicator& ranks) = nullptr;
  std::unique_ptr<ComputeBackend> (*create_compute)(const ComputeArgs&) = nullptr;
  std::unique_ptr<Communicator> (*create_communicator)(const CommunicatorArgs&) = nullptr;
  /// Plans the communicator of a run for `ranks` ranks on one node, which the deck may divide into several
  /// nodes. The pointer is null if there is nothing to plan.
  CommunicatorPlan (*plan_communicator)(const ParamValues& deck, int ranks) = nullptr;
  /// Returns the bytes of workspace that the backend will keep for this work. The pointer is null if
  /// there is nothing to plan.
  std::size_t (*plan_compute)(const PlannedWork& work) = nullptr;
};

/// A plugin that was found, with the reason if it cannot be used.
struct PluginInfo {
  std::filesystem::path path;
  const PluginDescriptor* descriptor = nullptr;  ///< null if it could not be loaded or failed a check
  std::string problem;                           ///< empty if it can be used
};

/// The plugins of this process: found in the search path, or registered by a static build.
class PluginRegistry {
 public:
  /// Opens the files `libmylos_*.so` in `directories`, in order; of several files with the same name, only
  /// the first. Each directory is preceded by its subfolders with plugins that were compiled for larger
  /// instruction sets than this build, as far as the processor has them and MYLOS_CPU allows, or if MYLOS_CPU
  /// names a smaller set, by that one. Throws if `instruction_set_limit` does.
  /// Plugins are never unloaded.
  static PluginRegistry discover(const std::vector<std::filesystem::path>& directories);
  /// Opens and checks one file. Errors are reported in the result.
  static PluginInfo open(const std::filesystem::path& file);
  /// Checks magic, version, size, operations and compiler of a descriptor; returns what is wrong, or "".
  static std::string check(const PluginDescriptor& descriptor);

  const std::vector<PluginInfo>& all() const { return found_; }
  const std::vector<std::filesystem::path>& search_path() const { return searched_; }

  /// Returns the plugin of this kind and name. If there is none that can be used, throws ExitCode::usage with
  /// the reason, the paths tried and the plugins found.
  const PluginDescriptor& require(PluginKind kind, std::string_view name) const;
  /// Returns the usable plugins of a kind, the most preferred first.
  std::vector<const PluginDescriptor*> usable(PluginKind kind) const;

 private:
  std::vector<PluginInfo> found_;
  std::vector<std::filesystem::path> searched_;
};

/// Returns the directories of `option` (--plugin-path), then those of MYLOS_PLUGIN_PATH, both separated by
/// colons, then ../lib/mylos relative to the executable's directory. Throws ExitCode::usage if one of
/// `option` is not a folder.
std::vector<std::filesystem::path> plugin_search_path(const std::string& option);

}  // namespace mylos
