// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/cudnn_attention.hpp"

#include <cstdio>
#include <cudnn_frontend.h>
#include <unordered_map>
#include <vector>

#include "backends/compute_cuda/workspace.hpp"

namespace mylos::compute_cuda {

namespace fe = cudnn_frontend;

namespace {

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(ExitCode::internal, "{}: {}", call, cudnnGetErrorString(status));
}

void check(fe::error_t status, const char* what) {
  if (status.is_bad()) fail(ExitCode::internal, "cuDNN, {}: {}", what, status.get_message());
}

// The tensors of a graph, by cuDNN's unique ids. A forward graph has the first four and lse.
enum TensorId : std::int64_t {
  id_query = 1,  // 0 means "none" to cuDNN's frontend
  id_key,
  id_value,
  id_output,
  id_output_grad,
  id_query_grad,
  id_key_grad,
  id_value_grad,
  id_lse
};

/// The place of a tensor in `Key::strides` and in the arguments of `execute`.
constexpr std::size_t slot_of(std::int64_t id) {
  return static_cast<std::size_t>(id - id_query);
}

std::shared_ptr<cudnnContext> make_handle() {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle), "cudnnCreate");
  return {handle, cudnnDestroy};
}

std::array<std::int64_t, 3> strides_of(const TensorRef& tensor) {
  return {tensor.stride[0], tensor.stride[1], tensor.stride[2]};
}

}  // namespace

struct CudnnAttention::Graph {
  std::shared_ptr<fe::graph::Graph> graph;
  std::unordered_map<std::int64_t, void*> tensors;
  std::size_t workspace_bytes = 0;
};

CudnnAttention::CudnnAttention(ComputeBackend& memory, MemoryLedger* ledger)
    : memory_(memory), handle_(make_handle()), workspace_(memory, ledger, "mylos::cudnn::workspace") {}

CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::version() {
  const std::size_t number = cudnnGetVersion();
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

namespace {

bool supports_heads(DType dtype, std::int64_t positions, std::int64_t head_size) {
  return (dtype == DType::bf16 || dtype == DType::fp16) && head_size % 8 == 0 && head_size <= 128 &&
         positions > 1;
}

}  // namespace

std::size_t CudnnAttention::workspace_bytes(const PlannedAttention& attention) {
  const auto& [batch, heads, positions, head_size, dtype, has_dropout] = attention;
  constexpr std::size_t smaller_ones = 4096;
  constexpr std::size_t needs_no_weights = 92500;  // cuDNN 9.25
  if (batch == 0 || !supports_heads(dtype, positions, head_size)) return 0;
  if (has_dropout || cudnnGetVersion() >= needs_no_weights) return smaller_ones;  // evaluation has no dropout
  const auto rounded = [&](std::int64_t tile) { return (positions + tile - 1) / tile * tile; };
  const std::int64_t weights = rounded(64) * rounded(128) * static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t row_sums = positions * static_cast<std::int64_t>(sizeof(float));
  return static_cast<std::size_t>(batch * heads * (weights + row_sums)) + smaller_ones;
}

bool CudnnAttention::supports(const AttentionForward& args) {
  const TensorRef& query = args.query;
  return query.size() > 0 && supports_heads(query.dtype, query.shape[1], query.shape[3]) &&
         args.query_offset == 0 && args.key.shape[1] == query.shape[1] && args.dropout.probability == 0.0F;
}

bool CudnnAttention::forward(const AttentionForward& args) {
  const Key key{
      false,
      args.query.dtype,
      args.scale,
      {args.query.shape[0], args.query.shape[2], args.query.shape[1], args.query.shape[3]},
      {strides_of(args.query), strides_of(args.key), strides_of(args.value), strides_of(args.output)}};
  return execute(key, {args.query.data, args.key.data, args.value.data, args.output.data, nullptr, nullptr,
                       nullptr, nullptr, args.lse.data});
}

bool CudnnAttention::backward(const AttentionBackward& args) {
  const AttentionForward& forward = args.forward;
  const Key key{
      true,
      forward.query.dtype,
      forward.scale,
      {forward.query.shape[0], forward.query.shape[2], forward.query.shape[1], forward.query.shape[3]},
      {strides_of(forward.query), strides_of(forward.key), strides_of(forward.value),
       strides_of(forward.output), strides_of(args.output_grad), strides_of(args.query_grad),
       strides_of(args.key_grad), strides_of(args.value_grad)}};
  return execute(key, {forward.query.data, forward.key.data, forward.value.data, forward.output.data,
                       args.output_grad.data, args.query_grad.data, args.key_grad.data, args.value_grad.data,
                       forward.lse.data});
}

bool CudnnAttention::execute(const Key& key, const std::array<void*, 9>& tensors) {
  Graph& graph = find(key);
  if (!graph.graph) return false;
  for (auto& [id, memory] : graph.tensors) memory = tensors[slot_of(id)];
  check(cudnnSetStream(handle_.get(), cuda_stream(memory_)), "cudnnSetStream");
  check(graph.graph->execute(handle_.get(), graph.tensors, aligned_workspace(workspace_.data())), "execute");
  return true;
}

CudnnAttention::Graph& CudnnAttention::find(const Key& key) {
  auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    found = graphs_.emplace(key, make(key)).first;
    workspace_.reserve(found->second.workspace_bytes);
  }
  return found->second;
}

CudnnAttention::Graph CudnnAttention::make(const Key& key) const {
  Graph made{std::make_shared<fe::graph::Graph>(), {}, 0};
  fe::graph::Graph& graph = *made.graph;
  graph.set_io_data_type(key.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto& [batch, heads, positions, dimension] = key.shape;
  const std::vector<std::int64_t> shape = {batch, heads, positions, dimension};
  const std::vector<std::int64_t> lse_shape = {batch, heads, positions, 1};
  const std::vector<std::int64_t> lse_strides = {heads * positions, positions, 1, 1};
  // mylos' tensors are (B, T, H, D); cuDNN orders the dimensions (B, H, T, D).
  const auto strides = [&](TensorId id) -> std::vector<std::int64_t> {
    const std::array<std::int64_t, 3>& own = key.strides[slot_of(id)];
    return {own[0], own[2], own[1], 1};
  };
  const auto input = [&](TensorId id) {
    made.tensors.emplace(id, nullptr);
    return graph.tensor(fe::graph::Tensor_attributes().set_uid(id).set_dim(shape).set_stride(strides(id)));
  };
  const auto output = [&](const std::shared_ptr<fe::graph::Tensor_attributes>& tensor, TensorId id) {
    made.tensors.emplace(id, nullptr);
    tensor->set_output(true).set_uid(id).set_dim(shape).set_stride(strides(id));
  };
  made.tensors.emplace(id_lse, nullptr);
  const auto query = input(id_query);
  const auto keys = input(id_key);
  const auto value = input(id_value);
  if (!key.is_backward) {
    const auto [out, lse] = graph.sdpa(query, keys, value,
                                       fe::graph::SDPA_attributes()
                                           .set_name("attention_forward")
                                           .set_generate_stats(true)
                                           .set_attn_scale(key.scale)
                                           .set_causal_mask(true));
    output(out, id_output);
    lse->set_output(true)
        .set_uid(id_lse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim(lse_shape)
        .set_stride(lse_strides);
  } else {
    const auto out = input(id_output);
    const auto output_grad = input(id_output_grad);
    const auto lse = graph.tensor(fe::graph::Tensor_attributes()
                                      .set_uid(id_lse)
                                      .set_dim(lse_shape)
                                      .set_stride(lse_strides)
                                      .set_data_type(fe::DataType_t::FLOAT));
    const auto [query_grad, key_grad, value_grad] =
        graph.sdpa_backward(query, keys, value, out, output_grad, lse,
                            fe::graph::SDPA_backward_attributes()
                                .set_name("attention_backward")
                                .set_attn_scale(key.scale)
                                .set_causal_mask(true)
                                .set_deterministic_algorithm(true));
    output(query_grad, id_query_grad);
    output(key_grad, id_key_grad);
    output(value_grad, id_value_grad);
  }
  const auto build = [&]() -> fe::error_t {
    if (fe::error_t status = graph.validate(); status.is_bad()) return status;
    if (fe::error_t status = graph.build_operation_graph(handle_.get()); status.is_bad()) return status;
    if (fe::error_t status = graph.create_execution_plans({fe::HeurMode_t::A}); status.is_bad())
      return status;
    if (fe::error_t status = graph.check_support(); status.is_bad()) return status;
    return graph.build_plans();
  };
  if (fe::error_t status = build(); status.is_bad()) {
    fmt::print(
        stderr,
        "mylos: using mylos' own attention{} kernels: cuDNN {} does not support batch {}, {} heads, {} "
        "positions and head size {}: {}\n",
        key.is_backward ? " backward" : "", version(), batch, heads, positions, dimension,
        status.get_message());
    return {};
  }
  std::int64_t bytes = 0;
  check(graph.get_workspace_size(bytes), "get_workspace_size");
  made.workspace_bytes = static_cast<std::size_t>(bytes) + workspace_alignment;
  return made;
}

}  // namespace mylos::compute_cuda
