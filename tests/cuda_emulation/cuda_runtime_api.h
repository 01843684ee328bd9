// SPDX-License-Identifier: BSD-3-Clause
// The part of CUDA that the hand-written kernels use, on one host thread: every CUDA thread has its own
// context, and blocks run one after the other. It tests the kernels' logic without a GPU; it shows neither
// data races nor speed.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): these are CUDA's names
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __launch_bounds__(...)

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
inline const char* cudaGetErrorString(cudaError_t) {
  return "";
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // NOLINT
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_emulation {

/// A meeting point of the threads of a warp or of a block.
struct Barrier {
  int live = 0;     // threads that have not ended
  int arrived = 0;  // of these, threads at the barrier
  unsigned generation = 0;

  void release_if_complete() {
    if (arrived < live) return;
    arrived = 0;
    ++generation;
  }
};

class Block {
 public:
  static constexpr int warp_size = 32;

  Block(const dim3& size, std::function<void()> kernel)
      : size_(size),
        kernel_(std::move(kernel)),
        threads_(static_cast<std::size_t>(size.x) * size.y * size.z),
        warps_((threads_.size() + warp_size - 1) / warp_size),
        values_(threads_.size()) {}

  /// Runs all threads to their end.
  void run() {
    running() = this;
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      Thread& thread = threads_[i];
      if (!thread.stack) thread.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
      thread.is_done = false;
      thread.waits_for = nullptr;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = stack_bytes;
      makecontext(&thread.context, run_thread, 0);
      ++all_.live;
      ++warps_[i / warp_size].live;
    }
    while (all_.live > 0) {
      for (current_ = 0; current_ < threads_.size(); ++current_) advance(threads_[current_]);
    }
  }

  void sync_block() { sync(all_); }

  int lane() const { return static_cast<int>(current_ % warp_size); }

  /// The value that lane `from` of this warp passes.
  std::uint64_t exchange(std::uint64_t value, int from) {
    const std::size_t first = current_ / warp_size * warp_size;
    Barrier& warp = warps_[current_ / warp_size];
    // Two values per thread, in turn: a thread may be one exchange ahead of another.
    const unsigned turn = warp.generation % 2;
    values_[current_][turn] = value;
    sync(warp);
    return values_[first + static_cast<std::size_t>(from)][turn];
  }

  static Block*& running() {
    static Block* block = nullptr;
    return block;
  }

 private:
  static constexpr std::size_t stack_bytes = std::size_t{64} << 10;

  struct Thread {
    ucontext_t context{};  // where it starts
    jmp_buf place{};       // where it waits
    std::unique_ptr<char[]> stack;
    bool is_done = false;
    const Barrier* waits_for = nullptr;
    unsigned generation = 0;
  };

  void advance(Thread& thread) {
    if (thread.is_done) return;
    if (thread.waits_for != nullptr && thread.waits_for->generation == thread.generation) return;
    const bool is_new = thread.waits_for == nullptr;
    thread.waits_for = nullptr;
    const auto index = static_cast<unsigned>(current_);
    threadIdx = dim3(index % size_.x, index / size_.x % size_.y, index / (size_.x * size_.y));
    // swapcontext would ask the kernel to save the signal mask at every switch.
    if (_setjmp(scheduler_) == 0) {
      if (is_new)
        setcontext(&thread.context);
      else
        _longjmp(thread.place, 1);
    }
    if (thread.waits_for != nullptr) return;
    thread.is_done = true;
    for (Barrier* barrier : {&all_, &warps_[current_ / warp_size]}) {
      --barrier->live;
      barrier->release_if_complete();
    }
  }

  void sync(Barrier& barrier) {
    Thread& thread = threads_[current_];
    thread.generation = barrier.generation;
    ++barrier.arrived;
    barrier.release_if_complete();
    thread.waits_for = &barrier;
    if (_setjmp(thread.place) == 0) _longjmp(scheduler_, 1);
  }

  static void run_thread() {
    running()->kernel_();
    _longjmp(running()->scheduler_, 1);
  }

  dim3 size_;
  std::function<void()> kernel_;
  std::vector<Thread> threads_;
  Barrier all_;
  std::vector<Barrier> warps_;
  std::vector<std::array<std::uint64_t, 2>> values_;  // what each thread passes to others of its warp
  std::size_t current_ = 0;
  jmp_buf scheduler_{};
};

}  // namespace cuda_emulation

inline void __syncthreads() {
  cuda_emulation::Block::running()->sync_block();
}
template <class T>
T __shfl_sync(unsigned /*mask*/, T value, int lane) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = cuda_emulation::Block::running()->exchange(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, cuda_emulation::Block::running()->lane() ^ lanes);
}
/// The rounded product: the compiler does not contract it with a sum.
inline float __fmul_rn(float x, float y) {
  const volatile float product = x * y;
  return product;
}
inline float __expf(float x) {
  return std::exp(x);
}
using std::min;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  cuda_emulation::Block block(blockDim, [&] { kernel(arguments...); });
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = dim3(x, y, z);
        block.run();
      }
    }
  }
  return cudaSuccess;
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
