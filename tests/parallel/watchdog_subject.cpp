// SPDX-License-Identifier: BSD-3-Clause
// A program that fails in the way named by its argument, for the test of the watchdog.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

#include <mpi.h>

#include "core/plugin.hpp"
#include "parallel/flight_recorder.hpp"
#include "parallel/traffic.hpp"
#include "parallel/watchdog.hpp"

using namespace mylos;

namespace {

/// As after Ctrl-Z and `fg`: a child continues the process that has stopped itself.
void suspend_for_4_s() {
  if (fork() == 0) {
    sleep(4);
    kill(getppid(), SIGCONT);
    _exit(EXIT_SUCCESS);
  }
  raise(SIGSTOP);
}

void run(std::string_view failure) {
  const PluginRegistry plugins = PluginRegistry::discover(plugin_search_path(""));
  const PluginDescriptor& plugin = plugins.require(PluginKind::communication, "mpi");
  const CommunicatorHandle world(plugin.create_communicator({}), plugin.destroy_communicator);
  const auto recorder = FlightRecorder::open(*world);
  const Watchdog watchdog(
      *recorder,
      {.heartbeat = std::chrono::milliseconds(50),
       .silence = std::chrono::milliseconds(2500),
       .operation_timeout = std::chrono::milliseconds(failure == "busy" ? 60000 : 6000)},
      [&](const std::string& reason) { world->abort(ExitCode::watchdog, "ended: " + reason); });
  TrafficCounter counter;
  CountedCommunicator comm(*world, "data", counter, recorder.get());
  std::vector<float> values(1000);
  const TensorRef buffer(values.data(), DType::fp32, {1000});
  const bool victim = comm.rank() == 1;
  const auto train = [&](int step) {
    recorder->set_phase(step, "forward");
    comm.all_reduce({}, buffer, ReduceOp::sum).host_wait();
    if (step != 5) return;
    if (failure == "stop" && victim) raise(SIGSTOP);
    if (failure == "suspend_all") suspend_for_4_s();
    if (failure == "kill" && victim) raise(SIGKILL);
    if (failure == "busy" && victim) std::this_thread::sleep_for(std::chrono::seconds(5));
    if (failure == "stall" && victim) std::this_thread::sleep_for(std::chrono::seconds(60));
    if (failure == "mismatch" && victim) comm.broadcast({}, buffer.flat(0, 10), 0).host_wait();
  };
  try {
    for (int step = 0; step < 10; ++step) train(step);
  } catch (const Error& error) {
    if (comm.rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(5));  // rank 0 speaks for all
    world->abort(error.code(), error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
  run(argc > 1 ? argv[1] : "");
  MPI_Finalize();
  return EXIT_SUCCESS;
}
