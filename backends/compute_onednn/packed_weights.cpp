// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/packed_weights.hpp"

#include <functional>
#include <utility>

#include "backends/compute_onednn/primitive_desc.hpp"
#include "core/base/error.hpp"

namespace mylos::compute_onednn {

PackedWeights::PackedWeights(ComputeBackend& memory, MemoryLedger* ledger, const dnnl::engine& engine)
    : memory_(memory), ledger_(ledger), engine_(engine) {}

void* PackedWeights::packed(const MatrixView& weight, const dnnl::memory::desc& plain,
                            const dnnl::memory::desc& layout, std::uint64_t version, dnnl::stream& stream) {
  const dnnl::memory::dims dims = dims_of(layout);
  const Key key{weight.data, dims[0], dims[1], weight.row, weight.column};
  auto found = copies_.find(key);
  if (found == copies_.end()) found = copies_.emplace(key, make(weight, plain, layout)).first;
  Copy& copy = found->second;
  require(copy.to.get_desc() == layout, "one layout for all products with a weight");
  if (copy.version != version) {
    copy.reorder.execute(stream, copy.from, copy.to);
    copy.version = version;
  }
  return copy.to.get_data_handle();
}

PackedWeights::Copy PackedWeights::make(const MatrixView& weight, const dnnl::memory::desc& plain,
                                        const dnnl::memory::desc& layout) {
  const dnnl::reorder reorder(dnnl::reorder::primitive_desc(engine_, plain, engine_, layout));
  const dnnl::memory from(plain, engine_, weight.data);
  DeviceBuffer memory(memory_, ledger_, MemoryCategory::workspace, layout.get_size(),
                      "mylos::onednn::packed_weight");
  const dnnl::memory to(layout, engine_, memory.data());
  return {reorder, from, to, std::move(memory)};
}

void PackedWeights::forget(const void* begin, std::size_t bytes) {
  const auto* end = static_cast<const std::byte*>(begin) + bytes;
  const std::less<const void*> before;
  std::erase_if(copies_, [&](const Copies::value_type& entry) {
    return !before(entry.first.data, begin) && before(entry.first.data, end);
  });
}

}  // namespace mylos::compute_onednn
