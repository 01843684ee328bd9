// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/commands.hpp"
#include "app/inference/inference.hpp"
#include "core/memory/device_buffer.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {};
}

int run(const CommandLine& line) {
  const auto print_largest = [&](const Launch& launch, Inference& model) {
    ComputeBackend& backend = model.session->compute();
    const DeviceBuffer memory(backend, model.session->ledger(), MemoryCategory::workspace, sizeof(float),
                              "mylos::largest");
    const TensorRef largest(memory.data(), DType::fp32, {1});
    backend.run(Fill{.y = largest, .value = 0.0F});
    for (const UnitPart& part : model.state->owned())
      backend.run(LargestMagnitude{.x = model.state->weights(part), .out = largest, .accumulate = true});
    model.session->world().all_reduce(largest, ReduceOp::max).wait();
    float value = 0.0F;
    backend.copy_to_host(largest.data, &value, sizeof value);
    backend.synchronize();
    if (launch.is_first())
      fmt::print("{}: the largest weight has the magnitude {:.9g}\n", model.name(), value);
    return 0;
  };
  return with_inference(line, {.run = print_largest});
}

}  // namespace

const Command largest_command{.name = "largest",
                              .arguments = "RUN|CHECKPOINT",
                              .summary = "magnitude of the largest weight",
                              .options = options,
                              .run = run};

}  // namespace mylos
