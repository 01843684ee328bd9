// SPDX-License-Identifier: BSD-3-Clause
// Machine: what operations and collectives take on a machine, measured or from its data sheet. A machine file
// (app/deck/machine_file) fills it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/communication/communicator.hpp"
#include "core/model/program.hpp"
#include "core/model/recorder.hpp"
#include "parallel/collectives/cost_curve.hpp"
#include "parallel/schedule/logical_clock.hpp"

namespace mylos {

/// A matrix product: x (rows, in) times w (in, out), or its backward passes.
struct ProductShape {
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;

  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  }
  auto operator<=>(const ProductShape&) const = default;
};
/// An attention over T positions.
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t positions = 0;
  std::int64_t head_size = 0;

  auto operator<=>(const AttentionShape&) const = default;
};

/// What kind of bandwidth an operation uses that is neither a matrix product nor attention.
enum class KernelKind : std::uint8_t { elementwise, norm, loss, optimizer };
inline constexpr std::array<std::string_view, 4> kernel_kind_names = {"elementwise", "norm", "loss",
                                                                      "optimizer"};

/// Where the ranks of a group are.
struct GroupPlace {
  int ranks = 1;
  int nodes = 1;
  int sharing = 1;  ///< groups like it that use a node's network at the same time
};

/// When another program exchanges gradients along the data axes.
enum class DataExchange : std::uint8_t {
  overlapped,    ///< behind the backward pass
  after_stages,  ///< after the last micro-batch if there are pipeline stages
  after,         ///< after it
};

/// What another program does between the products and around the collectives. mylos' own entries need none.
struct Software {
  std::string program{};
  bool attention_is_whole = false;  ///< scores (T, T) are kept and normalised in memory
  double attention_speed = 1.0;     ///< relative to the machine's flash attention
  bool attention_is_recomputed = false;
  bool recomputes_whole_blocks = false;  ///< also what comes after a block's last product
  /// Bytes per token, layer and channel beside products and attention, and of these what the tensor axis
  /// divides; 0: those of mylos.
  double forward_bytes = 0.0, forward_divided = 0.0;
  double backward_bytes = 0.0, backward_divided = 0.0;
  double loss_bytes = 0.0;  ///< per token and entry of the vocabulary; 0: those of mylos
  /// Per element of the scores.
  double score_bytes = 0.0, score_backward_bytes = 0.0;
  double bandwidth_share = 1.0;   ///< of what the machine's simple kernels reach
  double tensor_hidden = 0.0;     ///< share of the tensor axis' collectives that computation hides
  bool divides_messages = false;  ///< tensor ranks send parts of a message between stages
  DataExchange data_exchange = DataExchange::overlapped;
  double host = 0.0;    ///< seconds per operation; 0: the machine's
  double factor = 1.0;  ///< on the time of a step
};

struct Machine {
  std::string name;
  std::string file;
  // A device, which is what one rank has.
  std::array<double, 3> peak{};                     ///< FLOP/s, by DType: fp32, bf16, fp16; 0: not known
  double product_share = 0.0;                       ///< of the peak that large products reach
  std::array<double, 3> sustained{};                ///< FLOP/s that products reach for long; 0: as for short
  double product_latency = 0.0;                     ///< seconds
  double bandwidth = 0.0;                           ///< bytes/s
  std::array<double, 4> kernel_shares{};            ///< of the bandwidth, by KernelKind
  std::map<std::int64_t, double> attention_shares;  ///< of the peak, by head size
  double launch = 0.0;                              ///< seconds of the device per operation
  double host = 0.0;                                ///< seconds of the host per operation
  double graph_host = 0.0;                          ///< of the host per graph
  bool has_graphs = false;
  std::string backend;    ///< the compute backend of a run there; "": one that is installed here
  double overhead = 0.0;  ///< bytes of workspace that it takes, if it is not installed here
  double logits = 0.0;    ///< bytes of logits at a time that make its head fast; 0: as here
  double memory = 0.0;    ///< bytes; 0: not known
  double reserved = 0.0;  ///< bytes that no allocator sees
  // Links.
  double node_bandwidth = 0.0;     ///< bytes/s, bus bandwidth of a collective within a node
  double node_latency = 0.0;       ///< seconds
  double gather_share = 0.5;       ///< time of all_gather and reduce_scatter relative to all_reduce
  int ranks_per_node = 0;          ///< 0: any number
  double network_bandwidth = 0.0;  ///< bytes/s of a node's adapters together, as collectives reach it
  double network_latency = 0.0;
  ClockSlowdown overlap;
  // Of the whole machine.
  double loss_per_doubling_low =
      0.0;  ///< share of the rate lost per doubling of the nodes beyond the model's
  double loss_per_doubling_high = 0.0;
  double price = 0.0;  ///< per device and hour; 0: not known
  // Measured tables, in seconds.
  using NameAndType = std::pair<std::string, DType>;
  std::map<NameAndType, std::map<ProductShape, double>> products;
  std::map<NameAndType, std::map<AttentionShape, double>> attention;
  std::map<NameAndType, CostCurve> operations;  ///< by bytes
  struct Collective {
    std::string operation;
    bool is_network = false;
    int ranks = 0;
    auto operator<=>(const Collective&) const = default;
  };
  std::map<Collective, CostCurve> collectives;  ///< by payload
  std::optional<Software> software;

  /// The peak rate in a number format or, if that is not known, the largest of all.
  double peak_of(DType dtype) const {
    const double own = peak[static_cast<std::size_t>(dtype)];
    return own > 0.0 ? own : std::ranges::max(peak);
  }
};

/// What the name of an operation is followed by in tables if its weights are gathered for each pass.
inline constexpr std::string_view gathered_suffix = " gathered";
/// Whether an entry is a product with weights that do not stay in memory.
bool has_gathered_weights(const Entry& entry, const Storages& storages);

/// The product of an entry, or nothing.
std::optional<ProductShape> product_of(const Entry& entry);
std::optional<AttentionShape> attention_of(const Entry& entry);
/// The number format of an entry: that of its first operand that has one of them.
DType dtype_of(const Entry& entry);
/// The bytes that an entry moves: of tables of embeddings only the rows that it uses.
double moved_bytes(const Entry& entry);
KernelKind kernel_kind(std::string_view operation);

/// The times of a machine, with what it lacked.
class MachineTimes {
 public:
  explicit MachineTimes(const Machine& machine) : machine_(machine) {}

  const Machine& machine() const { return machine_; }
  /// Seconds of an operation on the device. `is_gathered`: the weights of a product do not stay in memory, so
  /// no library keeps a packed copy of them; such products may have rows of their own in the table.
  double of_operation(const Entry& entry, bool is_gathered = false);
  double of_product(std::string_view operation, DType dtype, const ProductShape& shape);
  /// Seconds to move bytes with a kind of kernel.
  double of_bytes(KernelKind kind, double bytes);
  double of_call(CommOperation operation, double payload_bytes, const GroupPlace& place);
  /// Seconds of a message; `sharing` ranks of a node send at the same time.
  double of_message(double bytes, bool is_network, int sharing = 1);

  /// What was used in the place of what the machine does not say.
  const std::set<std::string>& fallbacks() const { return fallbacks_; }

 private:
  double of_attention(const Entry& entry, const AttentionShape& shape);
  void note(std::string text) { fallbacks_.insert(std::move(text)); }

  const Machine& machine_;
  std::set<std::string> fallbacks_;
};

}  // namespace mylos
