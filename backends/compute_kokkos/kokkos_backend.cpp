// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/kokkos_backend.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <sys/mman.h>

#include <Kokkos_Core.hpp>
#if defined(KOKKOS_ENABLE_CUDA)
#include <nvtx3/nvToolsExt.h>
#endif

#include "backends/compute_kokkos/lanes.hpp"
#include "core/base/clock.hpp"

namespace mylos::compute_kokkos {

namespace {

#if defined(KOKKOS_ENABLE_CUDA)
void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(ExitCode::internal, "{}: {}", call, cudaGetErrorString(status));
}

/// What a Graph's handle points to.
struct RecordedWork {
  explicit RecordedWork(std::uint64_t num_deallocations_) : num_deallocations(num_deallocations_) {}
  ~RecordedWork() {
    if (work == nullptr) return;
    cudaDeviceSynchronize();
    cudaGraphExecDestroy(work);
  }
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;

  cudaGraphExec_t work = nullptr;
  std::uint64_t num_deallocations;  // when the graph was recorded
};

cudaEvent_t cuda_event(const Event& event) {
  return static_cast<cudaEvent_t>(event.handle.get());
}

#else

/// What an Event's handle points to: the time at which it was recorded.
using Time = Clock::time_point;

Time& recorded(const Event& event) {
  return *static_cast<Time*>(event.handle.get());
}

#endif

using HostMemory = Kokkos::SharedHostPinnedSpace;
constexpr std::int64_t copy_block = 1 << 18;  // bytes that one thread copies at a time

/// Has an effect only if the system leaves the use of huge pages to programs. Skips ranges that do not fill a
/// huge page, so that no more memory is used than requested.
void ask_for_huge_pages(void* memory, std::size_t bytes) {
  constexpr std::uintptr_t huge_page = 2U << 20U;
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t begin = (first + huge_page - 1) / huge_page * huge_page;
  const std::uintptr_t end = (first + bytes) / huge_page * huge_page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // only a hint
}

template <class Space>
using Bytes = Kokkos::View<std::byte*, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class Space>
using ConstBytes = Kokkos::View<const std::byte*, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <class From, class To>
void copy_bytes(const void* from, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  if constexpr (on_host) {
    const auto n = static_cast<std::int64_t>(bytes);
    Kokkos::parallel_for("mylos::copy::bytes"_label, Range(queue(), 0, (n + copy_block - 1) / copy_block),
                         [=](std::int64_t i) {
                           const std::int64_t first = i * copy_block;
                           std::memcpy(static_cast<std::byte*>(to) + first,
                                       static_cast<const std::byte*>(from) + first,
                                       static_cast<std::size_t>(std::min(copy_block, n - first)));
                         });
  } else {
    Kokkos::deep_copy(queue(), Bytes<To>(static_cast<std::byte*>(to), bytes),
                      ConstBytes<From>(static_cast<const std::byte*>(from), bytes));
  }
}

/// On the host, each page is first touched by the thread that will work on it.
void zero(void* memory, std::size_t size) {
#if defined(KOKKOS_ENABLE_CUDA)
  check(cudaMemsetAsync(memory, 0, size, queue().cuda_stream()), "cudaMemsetAsync");
#else
  ask_for_huge_pages(memory, size);
  auto* const first = static_cast<std::uint8_t*>(memory);
  constexpr std::int64_t page = 4096;
  const auto n = static_cast<std::int64_t>(size);
  Kokkos::parallel_for(
      "mylos::allocate::first_touch"_label, Range(Execution(), 0, (n + page - 1) / page),
      KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t end = (i + 1) * page < n ? (i + 1) * page : n;
        for (std::int64_t b = i * page; b < end; ++b) first[b] = 0;
      });
#endif
}

}  // namespace

std::string KokkosBackend::description() const {
#ifdef MYLOS_HAVE_KOKKOS_KERNELS
  constexpr const char* gemm = "Kokkos Kernels";
#else
  constexpr const char* gemm = "own GEMM";
#endif
  const int threads = Execution().concurrency();
  return fmt::format("Kokkos {}.{}.{} {}, {} thread{}, vectors of {} floats, {}", KOKKOS_VERSION_MAJOR,
                     KOKKOS_VERSION_MINOR, KOKKOS_VERSION_PATCH, Execution::name(), threads,
                     threads == 1 ? "" : "s", width, gemm);
}

Allocation KokkosBackend::allocate(std::size_t bytes, const char* label) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  void* memory = nullptr;
  try {
    memory = Kokkos::kokkos_malloc<Memory>(label, size);
  } catch (const std::exception&) {
    fail(ExitCode::internal, "out of memory: {} bytes for {}", bytes, label);
  }
  require(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0, "device memory is 64-byte aligned");
  zero(memory, size);
  return {memory, [this](void* owned) {
            Kokkos::kokkos_free<Memory>(owned);
            ++num_deallocations_;
          }};
}

Allocation KokkosBackend::allocate_host(std::size_t bytes) {
  void* memory = Kokkos::kokkos_malloc<HostMemory>("mylos::host", std::max<std::size_t>(bytes, 1));
  if constexpr (on_host) ask_for_huge_pages(memory, bytes);
  return {memory, [](void* owned) { Kokkos::kokkos_free<HostMemory>(owned); }};
}

void KokkosBackend::copy_to_device(const void* host, void* device, std::size_t bytes) {
  copy_bytes<Kokkos::HostSpace, Memory>(host, device, bytes);
}

void KokkosBackend::copy_to_host(const void* device, void* host, std::size_t bytes) {
  copy_bytes<Memory, Kokkos::HostSpace>(device, host, bytes);
}

void KokkosBackend::copy(const void* from, void* to, std::size_t bytes) {
  copy_bytes<Memory, Memory>(from, to, bytes);
}

void KokkosBackend::synchronize() {
  queue().fence("mylos::synchronize"_label);
#if defined(KOKKOS_ENABLE_CUDA)
  check(cudaGetLastError(), "a kernel's launch");  // Kokkos itself does not ask
#endif
}

// Kokkos takes the names of regions as std::string, which is made only if a tool is loaded.
void KokkosBackend::begin_range(const char* name) {
#if defined(KOKKOS_ENABLE_CUDA)
  nvtxRangePushA(name);
#endif
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::pushRegion(name);
}

void KokkosBackend::end_range() {
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::popRegion();
#if defined(KOKKOS_ENABLE_CUDA)
  nvtxRangePop();
#endif
}

#if defined(KOKKOS_ENABLE_CUDA)

std::size_t KokkosBackend::device_bytes_in_use() const {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}

void* KokkosBackend::native_stream() {
  return queue().cuda_stream();
}

Event KokkosBackend::create_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return {{event, [](cudaEvent_t owned) { cudaEventDestroy(owned); }}};
}

void KokkosBackend::record(const Event& event) {
  check(cudaEventRecord(cuda_event(event), queue().cuda_stream()), "cudaEventRecord");
}

void KokkosBackend::host_wait(const Event& event) {
  check(cudaEventSynchronize(cuda_event(event)), "cudaEventSynchronize");
}

double KokkosBackend::seconds_between(const Event& begin, const Event& end) {
  float milliseconds = 0.0F;
  check(cudaEventElapsedTime(&milliseconds, cuda_event(begin), cuda_event(end)), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

// Kokkos' tools may wait for the device before each kernel, which CUDA forbids during a capture.
bool KokkosBackend::can_capture() const {
  return !Kokkos::Profiling::profileLibraryLoaded();
}

// The capture is thread-local, because other threads, such as NCCL's, continue to call CUDA.
Graph KokkosBackend::capture(const std::function<void()>& work) {
  const cudaStream_t stream = queue().cuda_stream();
  const auto made = std::make_shared<RecordedWork>(num_deallocations_);
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // cleared, so that later calls do not report the error
    throw;
  }
  cudaError_t status = cudaStreamEndCapture(stream, &graph);
  if (status == cudaSuccess) status = cudaGraphInstantiate(&made->work, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  check(status, "recording a CUDA graph ([backend] graphs = false needs none)");
  return {made};
}

bool KokkosBackend::launch(const Graph& graph) {
  const auto& recorded = *static_cast<const RecordedWork*>(graph.handle.get());
  if (recorded.num_deallocations != num_deallocations_) return false;
  check(cudaGraphLaunch(recorded.work, queue().cuda_stream()), "cudaGraphLaunch");
  return true;
}

#else

Event KokkosBackend::create_event() {
  return {std::make_shared<Time>()};
}

void KokkosBackend::record(const Event& event) {
  recorded(event) = Clock::now();
}

// Kokkos has no events: on a device, waiting for one means waiting for all work.
void KokkosBackend::host_wait(const Event& /*event*/) {
  if (!on_host) queue().fence("mylos::event::wait"_label);
}

double KokkosBackend::seconds_between(const Event& begin, const Event& end) {
  return in_seconds(recorded(end) - recorded(begin));
}

#endif

}  // namespace mylos::compute_kokkos
