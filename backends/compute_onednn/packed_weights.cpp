// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/packed_weights.hpp"

#include <cstring>
#include <functional>

#include "core/error.hpp"

namespace mylos {

PackedWeights::PackedWeights(ComputeBackend& memory, MemoryLedger* ledger, const dnnl::engine& engine)
    : memory_(memory), ledger_(ledger), engine_(engine) {}

PackedWeights::~PackedWeights() {
  for (const auto& [key, copy] : copies_) release(copy);
}

void* PackedWeights::packed(const MatrixRef& weight, const dnnl::memory::desc& plain,
                            const dnnl::memory::desc& layout, std::uint64_t version, dnnl::stream& stream) {
  const Key key{weight.data, layout.data.dims[0], layout.data.dims[1], weight.row, weight.column};
  auto found = copies_.find(key);
  if (found == copies_.end()) found = copies_.emplace(key, make(weight, plain, layout)).first;
  Copy& copy = found->second;
  require(copy.to.get_desc() == layout, "one layout for all products with a weight");
  if (copy.version != version) {
    if (copy.pair_blocks) {
      copy.pair_blocks->pack(weight.data, copy.to.get_data_handle());
    } else {
      copy.reorder.execute(stream, copy.from, copy.to);
    }
    copy.version = version;
  }
  return copy.to.get_data_handle();
}

PackedWeights::Copy PackedWeights::make(const MatrixRef& weight, const dnnl::memory::desc& plain,
                                        const dnnl::memory::desc& layout) {
  const std::size_t bytes = layout.get_size();
  const dnnl::reorder reorder(dnnl::reorder::primitive_desc(engine_, plain, engine_, layout));
  const dnnl::memory from(plain, engine_, weight.data);
  dnnl::memory to(layout, engine_, nullptr);
  to.set_data_handle(memory_.allocate(bytes, "mylos::onednn::packed_weight"));
  if (ledger_ != nullptr) ledger_->charge(MemoryCategory::workspace, bytes);
  return {reorder, from, to, pair_blocks(weight, layout)};
}

std::optional<PackedWeights::PairBlocks> PackedWeights::pair_blocks(const MatrixRef& weight,
                                                                    const dnnl::memory::desc& layout) {
  const dnnl_memory_desc_t& desc = layout.data;
  if (desc.format_kind != dnnl_blocked || weight.dtype != DType::bf16 || weight.row != 1) return std::nullopt;
  const dnnl_blocking_desc_t& blocking = desc.format_desc.blocking;
  const bool is_pairs = blocking.inner_nblks == 3 && blocking.inner_idxs[0] == 0 &&
                        blocking.inner_idxs[1] == 1 && blocking.inner_idxs[2] == 0 &&
                        blocking.inner_blks[2] == 2;
  if (!is_pairs) return std::nullopt;
  const std::int64_t pairs = blocking.inner_blks[0];
  const std::int64_t columns = blocking.inner_blks[1];
  const bool fits = desc.dims[0] % (2 * pairs) == 0 && desc.dims[1] % columns == 0 &&
                    weight.column % 2 == 0 &&
                    reinterpret_cast<std::uintptr_t>(weight.data) % sizeof(std::uint32_t) == 0;
  if (!fits) return std::nullopt;
  return PairBlocks{desc.dims[0] / (2 * pairs), desc.dims[1] / columns, pairs,        columns,
                    blocking.strides[0],        blocking.strides[1],    weight.column};
}

void PackedWeights::PairBlocks::pack(const void* weight, void* copy) const {
  const auto* from = static_cast<const std::byte*>(weight);
  auto* to = static_cast<std::byte*>(copy);
  constexpr std::size_t value = sizeof(bf16);
  constexpr std::size_t pair = 2 * value;
#pragma omp parallel for collapse(2) schedule(static)
  for (std::int64_t j = 0; j < n_blocks; ++j) {
    for (std::int64_t i = 0; i < k_blocks; ++i) {
      std::byte* block = to + static_cast<std::size_t>(i * k_stride + j * n_stride) * value;
      for (std::int64_t n = 0; n < columns; ++n) {
        const std::byte* row =
            from + static_cast<std::size_t>((j * columns + n) * column_stride + 2 * i * pairs) * value;
        for (std::int64_t p = 0; p < pairs; ++p) {
          std::memcpy(block + static_cast<std::size_t>(p * columns + n) * pair,
                      row + static_cast<std::size_t>(p) * pair, pair);
        }
      }
    }
  }
}

void PackedWeights::forget(const void* begin, std::size_t bytes) {
  const auto* end = static_cast<const std::byte*>(begin) + bytes;
  const std::less<const void*> before;
  std::erase_if(copies_, [&](const Copies::value_type& entry) {
    if (before(entry.first.data, begin) || !before(entry.first.data, end)) return false;
    release(entry.second);
    return true;
  });
}

void PackedWeights::release(const Copy& copy) {
  memory_.deallocate(copy.to.get_data_handle());
  if (ledger_ != nullptr) ledger_->release(MemoryCategory::workspace, copy.to.get_desc().get_size());
}

}  // namespace mylos
