// SPDX-License-Identifier: BSD-3-Clause
// A training step allocates nothing, except temporary memory within libraries. The allocations of a plan
// grow at most linearly with its micro-batches, those of a deck with its lines. This program replaces malloc
// to count the allocations of the thread that runs the test.
#include <cerrno>
#include <cstddef>
#include <malloc.h>

#include <gtest/gtest.h>

#include "io/deck/deck.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace {

struct Allocations {
  bool counts = false;
  std::size_t calls = 0;
  std::size_t bytes = 0;  // of all calls since counting began
  std::size_t largest = 0;
  // Bytes by which the heap grew from the end of the first counted step to the end of the last.
  std::size_t kept = 0;
};
constinit thread_local Allocations allocations;

/// Whether OpenMP allocates memory in each parallel region, as LLVM's does, unlike GCC's.
#ifdef __clang__
constexpr bool openmp_allocates = true;
#else
constexpr bool openmp_allocates = false;
#endif

void note(std::size_t bytes) {
  if (!allocations.counts) return;
  ++allocations.calls;
  allocations.bytes += bytes;
  if (bytes > allocations.largest) allocations.largest = bytes;
}

}  // namespace

// glibc's own functions, which the replacements call.
extern "C" {
void* __libc_malloc(std::size_t bytes);                           // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(std::size_t count, std::size_t bytes);        // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, std::size_t bytes);            // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT(bugprone-reserved-identifier)

void* malloc(std::size_t bytes) noexcept {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  note(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : ENOMEM;
}
}

namespace mylos {
namespace {

TEST(MallocHook, SeesAllocations) {
  allocations = {.counts = true};
  std::vector<int> values(1000);
  values.resize(2000);
  allocations.counts = false;
  EXPECT_EQ(values.size(), 2000U);
  EXPECT_EQ(allocations.calls, 2U);
  EXPECT_GE(allocations.largest, 8000U);
}

class AllocationTest : public testing::TestWithParam<std::string> {
 protected:
  /// The allocations of steps 3 to 5, which are traced; the ledgers must not be charged during them.
  Allocations count(const RunConfig& config) {
    constexpr std::int64_t warm_up = 2;
    MiniTrainer trainer(backend_, ledger_, *self_, config);
    for (std::int64_t step = 1; step <= warm_up; ++step) trainer.step(walk_tokens(config, step));
    const std::uint64_t charges = ledger_.num_charges() + test_backends().ledger().num_charges();
    Allocations counted;
    std::size_t in_use = 0;
    for (std::int64_t step = warm_up + 1; step <= warm_up + 3; ++step) {
      const std::vector<std::int32_t> tokens = walk_tokens(config, step);
      trainer.trace().start();
      allocations = {.counts = true, .calls = counted.calls, .largest = counted.largest, .kept = 0};
      trainer.step(tokens);
      allocations.counts = false;
      counted = allocations;
      const struct mallinfo2 heap = mallinfo2();
      const std::size_t now = heap.uordblks + heap.hblkhd;
      if (step == warm_up + 1) in_use = now;
      counted.kept = now > in_use ? now - in_use : 0;
    }
    EXPECT_EQ(ledger_.num_charges() + test_backends().ledger().num_charges(), charges);
    return counted;
  }

  ComputeBackend& backend_ = test_backends().at(GetParam());
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  MemoryLedger ledger_;
};

TEST_P(AllocationTest, AStepAllocatesNoMemory) {
  ModelConfig model;
  model.layers = 3;
  model.heads = 4;
  model.width = 64;
  model.context = 64;
  model.vocab = 257;
  for (const auto& [dtype, keeps_master] :
       {std::pair(DType::fp32, true), std::pair(DType::bf16, true), std::pair(DType::bf16, false)}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
      for (const float dropout : {0.0F, 0.1F}) {
        SCOPED_TRACE(fmt::format("{}, master {}, recompute {}, dropout {}", name_of(dtype), keeps_master,
                                 static_cast<int>(recompute), dropout));
        model.dropout = dropout;
        RunConfig config = mini_config(model, 8, 64, 1, 2);
        config.train.dtype = dtype;
        config.train.recompute = recompute;
        config.optimizer.keeps_master = keeps_master;
        const Allocations counted = count(config);
        if (GetParam() == "kokkos" && !openmp_allocates) {
          EXPECT_EQ(counted.calls, 0U);
        } else {
          // A library frees what it allocates in a call: oneDNN's gemm packs operands into temporary buffers.
          EXPECT_LT(counted.kept, 4096U) << counted.calls << " allocations";
        }
      }
    }
  }
}

/// The allocations of `work`.
template <class Work>
Allocations allocations_of(const Work& work) {
  allocations = {.counts = true};
  work();
  allocations.counts = false;
  return allocations;
}

/// 1000 more micro-batches add at most 400 bytes each: a few actions, but nothing per layer.
TEST(PlanAllocations, GrowByTheActionsOfMicroBatchesOnly) {
  ModelConfig model;
  model.layers = 12;
  model.heads = 2;
  model.width = 32;
  model.context = 16;
  model.vocab = 257;
  const auto bytes = [&](std::int64_t micro_batches, const char* exchange, std::int64_t tensor) {
    constexpr std::int64_t data = 2;
    RunConfig config = mini_config(model, data * micro_batches, 16, data, micro_batches);
    if (exchange != std::string_view("ddp")) set_exchange(config, exchange, data);
    config.parallel.tensor = tensor;
    return allocations_of([&] { make_plan(config); }).bytes;
  };
  for (const std::int64_t tensor : {1, 2}) {
    for (const char* exchange : {"ddp", "zero1", "zero2", "zero3"}) {
      const std::size_t few = bytes(8, exchange, tensor);
      constexpr std::size_t more = 1000;
      EXPECT_LE(bytes(8 + more, exchange, tensor), few + 400 * more) << exchange << ", tensor " << tensor;
    }
  }
}

/// A deck of 5 * `lines` lines, with several kinds of errors.
std::string deck_of(std::size_t lines) {
  std::string text;
  for (std::size_t i = 0; i < lines; ++i) {
    text += fmt::format("[section_number_{}]\nsome_long_parameter_{} = {}\n", i / 8, i, i);
    text += "some_long_parameter = 1\nno assignment at all\nanother_long_parameter = \"open\n";
  }
  return text;
}

TEST(DeckAllocations, GrowWithTheLines) {
  constexpr ParamSpec specs[] = {
      integer_param("section_number_0", "some_long_parameter", "7", 0, 10, "", "Some."),
      integer_param("section_number_1", "some_long_parameter", "7", 0, 10, "", "Other.")};
  const auto calls = [&](std::size_t lines) {
    const std::string text = deck_of(lines);
    DeckErrors errors;
    const Allocations counted = allocations_of([&] {
      Deck deck = Deck::parse(text, "run.deck", errors);
      resolve_deck(deck, specs, {}, errors);
      deck.keep_declared(specs);
    });
    EXPECT_GE(errors.messages().size(), 3 * lines);
    return static_cast<double>(counted.calls);
  };
  constexpr std::size_t lines = 500;
  EXPECT_LE(calls(4 * lines), 4.4 * calls(lines));
}

INSTANTIATE_TEST_SUITE_P(Backends, AllocationTest, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

}  // namespace
}  // namespace mylos
