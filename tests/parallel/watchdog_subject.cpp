// SPDX-License-Identifier: BSD-3-Clause
// A program that fails in the way that its first argument names, for the test of the watchdog. The second
// argument is the communication backend.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <mpi.h>

#include "core/base/say.hpp"
#include "core/plugin.hpp"
#include "parallel/health/flight_recorder.hpp"
#include "parallel/health/traffic.hpp"
#include "parallel/health/watchdog.hpp"
#include "tests/support/gather_over.hpp"

using namespace mylos;

namespace {

std::unique_ptr<Communicator> open(const PluginRegistry& plugins, std::string_view name,
                                   Communicator* bootstrap) {
  const PluginDescriptor& plugin = plugins.require(PluginKind::communication, name);
  CommunicatorArgs args;
  args.bootstrap = bootstrap;
  return plugin.create_communicator(args);
}

void run(std::string_view failure, std::string_view backend) {
  const PluginRegistry plugins = PluginRegistry::discover(plugin_search_path(""));
  const std::unique_ptr<Communicator> bootstrap = open(plugins, "mpi", nullptr);
  const std::unique_ptr<Communicator> world = open(plugins, backend, bootstrap.get());
  FlightRecorder recorder(bootstrap->rank(), test::gather_over(*bootstrap));
  Watchdog watchdog(std::chrono::minutes(1),
                    [](ExitCode code) { MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code)); });
  watchdog.set_limits({.silence = std::chrono::seconds(4),
                       .operation_timeout = std::chrono::seconds(failure == "stall" ? 6 : 600)});
  watchdog.set_record([](ExitCode, const std::string& reason) { say(stderr, "ended: {}\n", reason); });
  watchdog.watch(recorder);
  TrafficCounter counter;
  CountedCommunicator comm(*world, "data", counter, &recorder);
  std::vector<float> values(1000);
  const TensorRef buffer(values.data(), DType::fp32, {1000});
  const bool victim = comm.rank() == 1;
  const auto train = [&](int step) {
    recorder.set_phase(step, "forward");
    comm.all_reduce(buffer, ReduceOp::sum).host_wait();
    if (step != 5) return;
    if (failure == "stop" && victim) raise(SIGSTOP);
    if (failure == "kill" && victim) raise(SIGKILL);
    if (failure == "abort" && victim) world->abort(ExitCode::io, "cannot write");
    if (failure == "stall" && victim) pause();  // longer than `silence`, but its heartbeats continue
    if (failure == "mismatch" && victim) comm.broadcast(buffer.flat(0, 10), 0).host_wait();
  };
  try {
    for (int step = 0; step < 10; ++step) train(step);
    recorder.finish();
  } catch (const Error& error) {
    if (comm.rank() != 0) pause();  // rank 0 reports for all
    world->abort(error.code(), error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr unsigned hang_limit = 240;
  alarm(hang_limit);
  int threads = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
  run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "mpi");
  MPI_Finalize();
  return EXIT_SUCCESS;
}
