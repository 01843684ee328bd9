// SPDX-License-Identifier: BSD-3-Clause
#include "tests/faults/run_mylos.hpp"

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tests/support/outer_job.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {

namespace {

namespace fs = std::filesystem;

constexpr const char* job_variable = "MYLOS_TEST_JOB";

/// An environment variable of another process; empty if the variable or the process does not exist.
std::string variable_of(pid_t process, const std::string& name) {
  std::ifstream file(fmt::format("/proc/{}/environ", process), std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return "";
}

std::string name_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  std::getline(file, name);
  return name;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> environment_of(const std::string& id, const JobOptions& options) {
  std::vector<std::string> variables = {fmt::format("{}={}", job_variable, id), "OMP_NUM_THREADS=1"};
  variables.insert(variables.end(), options.environment.begin(), options.environment.end());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    if (name != "OMP_NUM_THREADS" && !name.starts_with("PMI_")) variables.emplace_back(*entry);
  }
  return variables;
}

}  // namespace

Job::Job(const std::vector<std::string>& arguments, const JobOptions& options) {
  static int jobs = 0;
  id_ = fmt::format("{}-{}", ::getpid(), ++jobs);
  const char* build = std::getenv("MYLOS_BUILD");
  if (build == nullptr) throw std::runtime_error("set MYLOS_BUILD to the build folder, or run by ctest");
  const char* launch = std::getenv("MYLOS_LAUNCH");
  if (launch == nullptr) leave_outer_job();
  std::vector<std::string> words = options.wrapper;
  if (options.ranks > 0)
    words.insert(words.begin(), {launch != nullptr ? launch : fmt::format("{}/launch_here", build),
                                 fmt::format("{}", options.ranks)});
  words.push_back(fmt::format("{}/bin/mylos", build));
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment_of(id_, options);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(variables);
  output_ = ::memfd_create("output", MFD_CLOEXEC);
  launcher_ = ::fork();
  if (launcher_ < 0) throw std::runtime_error("no process for the launcher");
  if (launcher_ != 0) return;

  ::setpgid(0, 0);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(output_, STDOUT_FILENO);
  ::dup2(output_, STDERR_FILENO);
  ::execvpe(argv[0], argv.data(), envp.data());
  ::_exit(127);
}

Job::~Job() {
  for (const pid_t process : processes()) ::kill(process, SIGKILL);
  if (launcher_ > 0) {
    ::kill(-launcher_, SIGKILL);
    ::waitpid(launcher_, nullptr, 0);
  }
  ::close(output_);
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    pid_t process = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    if (name_of(process) == "mylos" && variable_of(process, job_variable) == id_) found.push_back(process);
  }
  return found;
}

std::optional<pid_t> Job::find_rank(int rank) const {
  for (const pid_t process : processes()) {
    if (variable_of(process, "PMI_RANK") == std::to_string(rank)) return process;
  }
  return std::nullopt;
}

pid_t Job::rank(int rank) const {
  std::optional<pid_t> process;
  wait_until([&] {
    process = find_rank(rank);
    return process.has_value();
  });
  return *process;
}

std::string Job::output() const {
  struct stat status {};
  ::fstat(output_, &status);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  text.resize(static_cast<std::size_t>(::pread(output_, text.data(), text.size(), 0)));
  return text;
}

bool Job::running() const {
  siginfo_t info{};
  return launcher_ > 0 &&
         ::waitid(P_PID, static_cast<id_t>(launcher_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

void Job::wait_until(const std::function<bool()>& condition) const {
  bool met = false;
  const bool ended = test::wait_until([&] {
    const bool runs = running();
    met = condition();
    return met || !runs;
  });
  if (!met) throw std::runtime_error((ended ? "the job ended too early:\n" : "the job hangs:\n") + output());
}

Outcome Job::wait() {
  if (!test::wait_until([&] { return !running(); })) throw std::runtime_error("the job hangs:\n" + output());
  int status = 0;
  ::waitpid(launcher_, &status, 0);
  launcher_ = 0;
  return {.exit_code = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status),
          .output = output()};
}

bool handles(pid_t process, int signal) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:"))
      return ((std::stoull(line.substr(line.find_first_not_of("\t ", 7)), nullptr, 16) >> (signal - 1)) &
              1U) != 0;
  }
  return false;
}

Outcome run_mylos(const std::vector<std::string>& arguments, const JobOptions& options) {
  return Job(arguments, options).wait();
}

}  // namespace mylos::test
