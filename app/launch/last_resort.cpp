// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/last_resort.hpp"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#include "app/launch/environment.hpp"
#include "app/launch/mpi_runtime.hpp"
#include "core/base/error.hpp"
#include "core/base/memory_shortage.hpp"
#include "parallel/health/fixed_text.hpp"
#include "parallel/health/watchdog.hpp"

namespace mylos {

namespace {

// Handlers reach these without a lock.
std::atomic<Watchdog*> job_watchdog{nullptr};
std::atomic<bool> is_mpi_starting{false};
std::atomic<bool> is_exit_expected{false};
std::atomic<pid_t> ending_thread{0};

/// Memory of the handlers, made in advance.
struct HandlerMemory {
  FixedText line{512};
  std::vector<char> stack;
  void* reserve = MAP_FAILED;  // freed at the end, so that the reason can be recorded when memory is short
  static constexpr std::size_t reserve_bytes = std::size_t{8} << 20U;
};
HandlerMemory* prepared = nullptr;

/// Ends the process, or the job if it has a watchdog. `line` is in `prepared`. Async-signal-safe.
[[noreturn]] void end_now(ExitCode code) {
  const std::string_view reason = prepared->line.view();
  if (Watchdog* ends_job = job_watchdog.load()) ends_job->fail(code, reason);
  for (const std::string_view part : {std::string_view("mylos: "), reason, std::string_view("\n")}) {
    if (::write(STDERR_FILENO, part.data(), part.size()) < 0) break;
  }
  _exit(static_cast<int>(code));
}

/// Lets the first thread that calls it describe its failure; other threads wait for the end. If the
/// description fails itself, for example for lack of memory, ends with what there is.
void begin_end() {
  pid_t first = 0;
  if (ending_thread.compare_exchange_strong(first, gettid())) {
    if (prepared->reserve != MAP_FAILED) munmap(prepared->reserve, HandlerMemory::reserve_bytes);
    return;
  }
  while (first != gettid()) ::pause();
  if (prepared->line.empty()) prepared->line.add("out of memory, or an internal error");
  end_now(ExitCode::internal);
}

const char* name_of_signal(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "an invalid memory access (SIGSEGV)";
    case SIGBUS:
      return "a failed memory access (SIGBUS)";
    case SIGFPE:
      return "an arithmetic error (SIGFPE)";
    case SIGILL:
      return "an unknown instruction (SIGILL)";
    default:
      return "an abort (SIGABRT)";
  }
}

/// Where a signal interrupted a thread; zeros if unknown.
struct Interrupted {
  std::uintptr_t instruction = 0;
  std::uintptr_t stack = 0;
};

Interrupted interrupted(void* context) {
#if defined(__x86_64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  return {static_cast<std::uintptr_t>(registers[REG_RIP]), static_cast<std::uintptr_t>(registers[REG_RSP])};
#elif defined(__aarch64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  return {registers.pc, registers.sp};
#else
  return {};
#endif
}

/// The file name of the library of an instruction; null if it is unknown. Takes the loader's lock: a failure
/// within the loader may hang, which the watchdog finds.
const char* library_of(std::uintptr_t instruction) {
  Dl_info info{};
  if (instruction == 0 || dladdr(reinterpret_cast<void*>(instruction), &info) == 0) return nullptr;
  if (info.dli_fname == nullptr) return nullptr;
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash != nullptr ? slash + 1 : info.dli_fname;
}

/// Whether a failed access to `address` is one beyond the end of the stack.
bool is_stack_overflow(int signal, std::uintptr_t address, std::uintptr_t stack) {
  constexpr std::uintptr_t largest_frame = std::uintptr_t{64} << 10U;
  return signal == SIGSEGV && stack != 0 && address + largest_frame > stack &&
         address < stack + largest_frame;
}

extern "C" void on_fatal_signal(int signal, siginfo_t* info, void* context) {
  begin_end();
  const Interrupted at = interrupted(context);
  // An abort is raised within the C library, whoever calls it.
  const char* library = signal != SIGABRT ? library_of(at.instruction) : nullptr;
  const bool has_memory = signal == SIGFPE || signal == SIGILL || !memory_is_short();
  const bool is_overflow =
      is_stack_overflow(signal, reinterpret_cast<std::uintptr_t>(info->si_addr), at.stack);
  prepared->line.add("{}{}{}: {}",
                     is_overflow  ? "stack overflow (ulimit -s)"
                     : has_memory ? "internal error"
                                  : "out of memory",
                     library != nullptr ? " in " : "", library != nullptr ? library : "",
                     name_of_signal(signal));
  end_now(ExitCode::internal);
}

/// The program itself ends by _exit, so a library has called exit.
extern "C" void on_library_exit(int status, void* /*unused*/) {
  if (is_exit_expected) return;
  begin_end();
  if (is_mpi_starting) {
    constexpr std::string_view prefixes[] = {"UCX_", "MPIR_CVAR_", "MPICH_", "OMPI_MCA_", "FI_"};
    const std::string set = variables_with(prefixes);
    prepared->line.add("MPI did not start{}{}", set.empty() ? "; its own lines above say why" : ": check ",
                       set);
    end_now(set.empty() ? ExitCode::internal : ExitCode::usage);
  }
  prepared->line.add("{}: a library has ended the process with exit code {}",
                     memory_is_short() ? "out of memory" : "internal error", status);
  end_now(ExitCode::internal);
}

[[noreturn]] void on_terminate() {
  begin_end();
  ExitCode code = ExitCode::internal;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    prepared->line.add("internal error: std::terminate was called");
  } catch (const std::exception& exception) {
    const Error error = error_of(exception);
    code = error.code();
    prepared->line.add("{}", error.what());
  } catch (...) {
    prepared->line.add("internal error: an exception of an unknown type");
  }
  end_now(code);
}

}  // namespace

void catch_library_failures() {
  static HandlerMemory own;
  own.stack.resize(std::size_t{64} << 10U);
  own.reserve = mmap(nullptr, HandlerMemory::reserve_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  prepared = &own;
  std::set_terminate(on_terminate);
  on_exit(on_library_exit, nullptr);
#if !defined(__SANITIZE_ADDRESS__)
  // AddressSanitizer reports these signals itself.
  const stack_t stack{.ss_sp = own.stack.data(), .ss_flags = 0, .ss_size = own.stack.size()};
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fatal_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
#endif
}

FailuresEndJob::FailuresEndJob(Watchdog& watchdog) {
  job_watchdog.store(&watchdog);
}

FailuresEndJob::~FailuresEndJob() {
  job_watchdog.store(nullptr);
}

void expect_exit() {
  is_exit_expected.store(true);
}

void note_start_of_mpi(bool starts) {
  is_mpi_starting.store(starts);
}

}  // namespace mylos
