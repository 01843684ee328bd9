// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/machine_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <optional>
#include <vector>

#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/nearest.hpp"
#include "core/base/number_text.hpp"
#include "io/deck/deck.hpp"
#include "io/file_util.hpp"
#include "parallel/collectives/collective_schedule.hpp"

namespace mylos {

namespace {

constexpr double largest = 1e9;

constexpr ParamSpec specs[] = {
    text_param("machine", "name", nullptr, "What the machine is called."),
    real_param("machine", "memory", "0", 0.0, largest, "GB", "Memory of a device; 0: not known."),
    real_param("machine", "reserved", "0", 0.0, largest, "GB",
               "Of it what no allocator sees: context, libraries, buffers of the communication library."),
    text_param("device", "backend", "", "Compute backend of a run there; empty: one that is installed here."),
    real_param("device", "overhead", "0", 0.0, largest, "GB",
               "Workspace of that backend, if it is not installed here."),
    real_param("device", "logits", "0", 0.0, largest, "GB",
               "About as many logits at a time make its head fast; 0: as here."),
    real_param("machine", "price", "0", 0.0, largest, "per hour", "Price of a device; 0: not known."),
    real_param("machine", "loss_per_doubling_low", "0", 0.0, 50.0, "%",
               "Rate that runs lose per doubling of the nodes beyond what is modelled, at best."),
    real_param("machine", "loss_per_doubling_high", "0", 0.0, 50.0, "%", "The same, at worst."),

    real_param("device", "peak_fp32", "0", 0.0, largest, "TFLOP/s", "Peak rate, in fp32."),
    real_param("device", "peak_bf16", "0", 0.0, largest, "TFLOP/s", "Peak rate, in bf16."),
    real_param("device", "peak_fp16", "0", 0.0, largest, "TFLOP/s", "Peak rate, in fp16."),
    real_param("device", "product_share", "0.8", 1e-6, 1.0, "",
               "Share of the peak that a large matrix product reaches by itself."),
    real_param("device", "sustained_fp32", "0", 0.0, largest, "TFLOP/s",
               "Rate of products in a long run, where the clock is lower; 0: as by itself."),
    real_param("device", "sustained_bf16", "0", 0.0, largest, "TFLOP/s", "The same in bf16."),
    real_param("device", "sustained_fp16", "0", 0.0, largest, "TFLOP/s", "The same in fp16."),
    real_param("device", "product_latency", "0", 0.0, largest, "us", "Time of the smallest product."),
    real_param("device", "bandwidth", nullptr, 1e-3, largest, "GB/s", "Nominal bandwidth of the memory."),
    real_param("device", "elementwise_share", "0.85", 1e-3, 1.0, "",
               "Share of it that kernels reach which work element by element."),
    real_param("device", "norm_share", "0.85", 1e-3, 1.0, "", "Share that layernorms reach."),
    real_param("device", "loss_share", "0.85", 1e-3, 1.0, "", "Share that the cross-entropy reaches."),
    real_param("device", "optimizer_share", "0.85", 1e-3, 1.0, "", "Share that the optimizer reaches."),
    text_param(
        "device", "attention_share", "",
        "Share of the peak that attention reaches, counting causal FLOPs once, by head size: \"64 0.36, "
        "128 0.46\"."),
    real_param("device", "launch", "0", 0.0, largest, "us", "Time of the device per operation."),
    real_param("device", "host", "0", 0.0, largest, "us", "Time of the host to queue an operation."),
    real_param("device", "graph_host", "0", 0.0, largest, "us", "Time of the host to queue a graph."),
    boolean_param("device", "graphs", "false", "Whether [backend] graphs = auto records graphs."),

    integer_param("node", "ranks", "0", 0, 1e6, "ranks", "Devices of a node; 0: any number."),
    real_param("node", "bandwidth", "0", 0.0, largest, "GB/s",
               "Bus bandwidth of collectives within a node that no table has."),
    real_param("node", "latency", "0", 0.0, largest, "us", "Latency of a message within a node."),
    real_param("node", "gather_share", "0.5", 1e-3, 10.0, "",
               "Time of all_gather and reduce_scatter relative to all_reduce of the same payload."),

    integer_param("network", "adapters", "0", 0, 1e6, "", "Network adapters of a node; 0: no network."),
    real_param("network", "adapter_rate", "0", 0.0, largest, "Gbit/s", "Rate of an adapter."),
    real_param("network", "share", "0.9", 1e-3, 1.0, "", "Share of the rate that collectives reach."),
    real_param("network", "latency", "5", 0.0, largest, "us", "Latency of a message between nodes."),

    real_param("overlap", "computation", "1", 1.0, 100.0, "",
               "By what factor operations are slower while communication is under way."),
    real_param("overlap", "communication", "1", 1.0, 100.0, "",
               "By what factor communication is slower while operations run."),

    text_param("software", "program", "", "Another program, whose kernels and exchange the rest describes."),
    choice_param("software", "attention", "flash", "flash|whole",
                 "whole: the scores of all pairs are in memory, as products and a softmax."),
    real_param("software", "attention_speed", "1", 1e-3, 100.0, "",
               "Rate of attention relative to the machine's."),
    boolean_param("software", "attention_recomputed", "false",
                  "Attention that is whole is computed again in the backward pass."),
    boolean_param("software", "whole_blocks_recomputed", "false",
                  "train.recompute = block also repeats what comes after a block's last product."),
    real_param("software", "score_bytes", "13", 0.0, largest, "bytes",
               "Traffic per element of whole scores in the forward pass."),
    real_param("software", "score_backward_bytes", "19", 0.0, largest, "bytes",
               "The same in the backward pass."),
    real_param("software", "forward_bytes", "0", 0.0, largest, "bytes",
               "Traffic per token, layer and channel beside products and attention; 0: that of mylos."),
    real_param("software", "forward_divided", "0", 0.0, largest, "bytes",
               "Of forward_bytes what the tensor axis divides."),
    real_param("software", "backward_divided", "0", 0.0, largest, "bytes",
               "Of backward_bytes what the tensor axis divides."),
    real_param("software", "backward_bytes", "0", 0.0, largest, "bytes", "The same in the backward pass."),
    real_param("software", "loss_bytes", "0", 0.0, largest, "bytes",
               "Traffic of the loss per token and entry of the vocabulary; 0: that of mylos."),
    real_param("software", "bandwidth_share", "1", 1e-3, 1.0, "",
               "Bandwidth of its kernels relative to the machine's."),
    real_param("software", "tensor_hidden", "0", 0.0, 1.0, "",
               "Share of the tensor axis' communication behind computation."),
    boolean_param("software", "messages_divided", "false",
                  "Tensor ranks send parts of a message between stages."),
    choice_param(
        "software", "data", "overlapped", "overlapped|after_stages|after",
        "Gradients are exchanged behind the backward pass, after it if there are stages, or after it."),
    real_param("software", "host", "0", 0.0, largest, "us",
               "Time of its host per operation; 0: the machine's."),
    real_param("software", "factor", "1", 1e-3, 1e3, "", "On the time of a step."),
};

constexpr std::array<std::string_view, 4> tables = {"products", "attention", "operations", "collectives"};

bool is_table(std::string_view section) {
  return std::ranges::find(tables, section) != tables.end();
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return words;
    const std::size_t end = std::min(text.find_first_of(" \t", begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
}

std::optional<DType> find_dtype(std::string_view name) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

/// "8x12x1024x64" as so many numbers above 0, or nothing.
std::optional<std::vector<std::int64_t>> sizes_of(std::string_view text, std::size_t count) {
  std::vector<std::int64_t> sizes;
  for (const std::string_view word : split(text, 'x')) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size() || number < 1) return std::nullopt;
    sizes.push_back(number);
  }
  if (sizes.size() != count) return std::nullopt;
  return sizes;
}

std::vector<std::string_view> operation_names() {
  std::vector<std::string_view> names;
  []<class... Op>(std::vector<std::string_view>& all, OperationList<Op...>) {
    (all.push_back(Op::name), ...);
  }(names, Operations());
  return names;
}

std::vector<std::string_view> collective_names() {
  std::vector<std::string_view> names = {"send"};
  for (const CommOperation operation : scheduled_operations) names.push_back(name_of(operation));
  return names;
}

/// Fills a Machine from a file's entries.
class MachineReader {
 public:
  MachineReader(const Deck& deck, DeckErrors& errors) : deck_(deck), errors_(errors) {}

  Machine read(const std::string& file_name) {
    // A row of a table is a key of its own: a time above 0.
    std::vector<ParamSpec> all(std::begin(specs), std::end(specs));
    for (const std::string_view table : tables) {
      all.push_back(real_param(table.data(), "", "1", 0.0, largest, "us", "A row of the table."));
    }
    for (const DeckEntry& entry : deck_.entries()) {
      if (is_table(entry.section))
        all.push_back(real_param(entry.section.c_str(), entry.name.c_str(), "1", 1e-6, 1e12, "us", ""));
    }
    values_ = resolve_deck(deck_, all, {}, errors_);
    machine_.file = file_name;
    for (const DeckEntry& entry : deck_.entries()) {
      if (is_table(entry.section) && values_.all().contains(entry.key())) read_row(entry);
    }
    check_curves();
    if (errors_.empty()) take_values();
    return std::move(machine_);
  }

 private:
  double real(std::string_view key) const { return values_.real(key); }

  void report(const DeckEntry& entry, const std::string& problem) {
    errors_.add(entry.place, fmt::format("[{}] {}: {}", entry.section, entry.name, problem));
  }

  /// Whether `word` is one of the names; reports the nearest if not.
  bool is_named(const DeckEntry& entry, std::string_view word, const std::vector<std::string_view>& names) {
    if (std::ranges::find(names, word) != names.end()) return true;
    const std::string guess = nearest(word, names);
    report(entry, guess.empty() ? fmt::format("unknown operation {}; use {}", word, join(names, ", "))
                                : fmt::format("unknown operation {}; did you mean {}?", word, guess));
    return false;
  }

  void read_row(const DeckEntry& entry) {
    std::vector<std::string_view> words = words_of(entry.name);
    const bool is_gathered = entry.section == "products" && words.size() == 4 && words[1] == "gathered";
    if (is_gathered) words.erase(words.begin() + 1);
    const double seconds = 1e-6 * real(entry.key());
    if (entry.section == "collectives") return read_collective(entry, words, seconds);
    const auto form = entry.section == "products"    ? "OPERATION [gathered] TYPE ROWSxINxOUT"
                      : entry.section == "attention" ? "OPERATION TYPE BATCHxHEADSxPOSITIONSxHEAD_SIZE"
                                                     : "OPERATION TYPE BYTES";
    const auto dtype = words.size() == 3 ? find_dtype(words[1]) : std::nullopt;
    const std::size_t sizes = entry.section == "products" ? 3 : entry.section == "attention" ? 4 : 1;
    const auto shape = words.size() == 3 ? sizes_of(words[2], sizes) : std::nullopt;
    if (!dtype || !shape) return report(entry, fmt::format("write {} = microseconds", form));
    std::vector<std::string_view> names = operation_names();
    std::erase_if(names, [&](std::string_view name) {
      const bool is_product = name.find("linear_") != std::string_view::npos || name == MatrixProduct::name;
      const bool is_attention = name.starts_with("attention_");
      return is_product != (entry.section == "products") || is_attention != (entry.section == "attention");
    });
    if (!is_named(entry, words[0], names)) return;
    const Machine::NameAndType key{std::string(words[0]) + std::string(is_gathered ? gathered_suffix : ""),
                                   *dtype};
    if (entry.section == "products") {
      machine_.products[key][{(*shape)[0], (*shape)[1], (*shape)[2]}] = seconds;
    } else if (entry.section == "attention") {
      machine_.attention[key][{(*shape)[0], (*shape)[1], (*shape)[2], (*shape)[3]}] = seconds;
    } else {
      const auto bytes = static_cast<double>(shape->front());
      machine_.operations[key].add(bytes, seconds);
      curves_[fmt::format("{} {}", words[0], words[1])].emplace_back(bytes, &entry);
    }
  }

  void read_collective(const DeckEntry& entry, const std::vector<std::string_view>& words, double seconds) {
    const auto number = [&](std::size_t word) { return sizes_of(words[word], 1); };
    constexpr std::int64_t most_ranks = 1 << 20;
    const bool is_whole = words.size() == 4 && (words[1] == "node" || words[1] == "network") && number(2) &&
                          number(2)->front() <= most_ranks && number(3) && number(2)->front() > 1;
    if (!is_whole)
      return report(entry, "write COLLECTIVE node|network RANKS BYTES = microseconds, of 2 ranks or more");
    if (!is_named(entry, words[0], collective_names())) return;
    const Machine::Collective key{std::string(words[0]), words[1] == "network",
                                  static_cast<int>(number(2)->front())};
    const auto bytes = static_cast<double>(number(3)->front());
    machine_.collectives[key].add(bytes, seconds);
    curves_[fmt::format("{} {} {}", words[0], words[1], words[2])].emplace_back(bytes, &entry);
  }

  void check_curves() {
    for (auto& [name, points] : curves_) {
      std::ranges::sort(points, {}, [](const auto& point) { return point.first; });
      if (points.size() == 1) report(*points.front().second, "a curve needs two sizes or more");
      for (std::size_t i = 1; i < points.size(); ++i) {
        const DeckEntry& entry = *points[i].second;
        if (real(entry.key()) < real(points[i - 1].second->key()))
          report(entry, fmt::format("takes less time than {} bytes at {}", points[i - 1].first,
                                    points[i - 1].second->place.text));
      }
    }
  }

  void take_attention_shares() {
    const std::string& text = values_.text("device.attention_share");
    if (text.empty()) return;
    for (const std::string_view part : split(text, ',')) {
      const std::vector<std::string_view> words = words_of(part);
      const auto size = words.size() == 2 ? sizes_of(words[0], 1) : std::nullopt;
      double share = 0.0;
      try {
        if (size) share = parse_real(words[1]);
      } catch (const Error&) {
        share = 0.0;
      }
      if (share <= 0.0 || share > 1.0) {
        errors_.add(deck_.place_of("device.attention_share"),
                    fmt::format("[device] attention_share = {}: write head sizes and shares up to 1, such as "
                                "\"64 0.36, 128 0.46\"",
                                text));
        return;
      }
      machine_.attention_shares[size->front()] = share;
    }
  }

  void take_values() {
    constexpr double tera = 1e12;
    constexpr double giga = 1e9;
    constexpr double micro = 1e-6;
    Machine& m = machine_;
    m.name = values_.text("machine.name");
    m.memory = giga * real("machine.memory");
    m.reserved = giga * real("machine.reserved");
    m.backend = values_.text("device.backend");
    m.overhead = giga * real("device.overhead");
    m.logits = giga * real("device.logits");
    m.price = real("machine.price");
    m.loss_per_doubling_low = 0.01 * real("machine.loss_per_doubling_low");
    m.loss_per_doubling_high = 0.01 * real("machine.loss_per_doubling_high");
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      const auto type = static_cast<std::size_t>(dtype);
      m.peak[type] = tera * real(fmt::format("device.peak_{}", name_of(dtype)));
      m.sustained[type] = tera * real(fmt::format("device.sustained_{}", name_of(dtype)));
    }
    take_peaks_of_rows();
    if (std::ranges::max(m.peak) == 0.0)
      errors_.add(deck_.place_of("device.peak_fp32"),
                  "[device] needs peak_fp32, peak_bf16 or peak_fp16, or the file a table [products]");
    m.product_share = real("device.product_share");
    m.product_latency = micro * real("device.product_latency");
    m.bandwidth = giga * real("device.bandwidth");
    for (std::size_t kind = 0; kind < kernel_kind_names.size(); ++kind)
      m.kernel_shares[kind] = real(fmt::format("device.{}_share", kernel_kind_names[kind]));
    take_attention_shares();
    m.launch = micro * real("device.launch");
    m.host = micro * real("device.host");
    m.graph_host = micro * real("device.graph_host");
    m.has_graphs = values_.boolean("device.graphs");
    m.ranks_per_node = static_cast<int>(values_.integer("node.ranks"));
    m.node_bandwidth = giga * real("node.bandwidth");
    m.node_latency = micro * real("node.latency");
    m.gather_share = real("node.gather_share");
    m.network_bandwidth = giga / 8.0 * static_cast<double>(values_.integer("network.adapters")) *
                          real("network.adapter_rate") * real("network.share");
    m.network_latency = micro * real("network.latency");
    m.overlap = {.computation = real("overlap.computation"), .communication = real("overlap.communication")};
    const auto is_software = [](const DeckEntry& section) { return section.section == "software"; };
    if (std::ranges::any_of(deck_.sections(), is_software)) take_software();
  }

  /// The rate of the fastest row, where the file has no peak of its number format.
  void take_peaks_of_rows() {
    for (const auto& [key, rows] : machine_.products) {
      double& peak = machine_.peak[static_cast<std::size_t>(key.second)];
      if (real(fmt::format("device.peak_{}", name_of(key.second))) > 0.0) continue;
      for (const auto& [shape, seconds] : rows) peak = std::max(peak, shape.flops() / seconds);
    }
  }

  void take_software() {
    const std::string& data = values_.text("software.data");
    machine_.software =
        Software{.program = values_.text("software.program"),
                 .attention_is_whole = values_.text("software.attention") == "whole",
                 .attention_speed = real("software.attention_speed"),
                 .attention_is_recomputed = values_.boolean("software.attention_recomputed"),
                 .recomputes_whole_blocks = values_.boolean("software.whole_blocks_recomputed"),
                 .forward_bytes = real("software.forward_bytes"),
                 .forward_divided = real("software.forward_divided"),
                 .backward_bytes = real("software.backward_bytes"),
                 .backward_divided = real("software.backward_divided"),
                 .loss_bytes = real("software.loss_bytes"),
                 .score_bytes = real("software.score_bytes"),
                 .score_backward_bytes = real("software.score_backward_bytes"),
                 .bandwidth_share = real("software.bandwidth_share"),
                 .tensor_hidden = real("software.tensor_hidden"),
                 .divides_messages = values_.boolean("software.messages_divided"),
                 .data_exchange = data == "overlapped" ? DataExchange::overlapped
                                  : data == "after"    ? DataExchange::after
                                                       : DataExchange::after_stages,
                 .host = 1e-6 * real("software.host"),
                 .factor = real("software.factor")};
  }

  const Deck& deck_;
  DeckErrors& errors_;
  ParamValues values_;
  Machine machine_;
  /// Size and entry of the points of curves.
  std::map<std::string, std::vector<std::pair<double, const DeckEntry*>>> curves_;
};

}  // namespace

Machine parse_machine(std::string_view text, const std::string& file_name) {
  DeckErrors errors;
  const Deck deck = Deck::parse(text, file_name, errors);
  Machine machine = MachineReader(deck, errors).read(file_name);
  errors.throw_if_any();
  return machine;
}

Machine read_machine(const std::string& path) {
  return parse_machine(read_text_file(expand_path(path)), path);
}

std::string machine_tables_text(const Machine& machine) {
  std::string text;
  const auto micro = [](double seconds) { return fmt::format("{:.6g}", 1e6 * seconds); };
  const auto begin = [&](std::string_view section, bool is_empty) {
    if (!is_empty) text += fmt::format("\n[{}]\n", section);
  };
  begin("products", machine.products.empty());
  for (const auto& [key, rows] : machine.products) {
    for (const auto& [shape, seconds] : rows)
      text += fmt::format("{} {} {}x{}x{} = {}\n", key.first, name_of(key.second), shape.rows, shape.in,
                          shape.out, micro(seconds));
  }
  begin("attention", machine.attention.empty());
  for (const auto& [key, rows] : machine.attention) {
    for (const auto& [shape, seconds] : rows)
      text += fmt::format("{} {} {}x{}x{}x{} = {}\n", key.first, name_of(key.second), shape.batch,
                          shape.heads, shape.positions, shape.head_size, micro(seconds));
  }
  begin("operations", machine.operations.empty());
  for (const auto& [key, curve] : machine.operations) {
    for (const auto& [bytes, seconds] : curve.points())
      text += fmt::format("{} {} {:.0f} = {}\n", key.first, name_of(key.second), bytes, micro(seconds));
  }
  begin("collectives", machine.collectives.empty());
  for (const auto& [key, curve] : machine.collectives) {
    for (const auto& [bytes, seconds] : curve.points())
      text += fmt::format("{} {} {} {:.0f} = {}\n", key.operation, key.is_network ? "network" : "node",
                          key.ranks, bytes, micro(seconds));
  }
  return text;
}

}  // namespace mylos
