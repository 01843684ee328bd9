// SPDX-License-Identifier: BSD-3-Clause
// Runs a case of the table: its memory, its call on a backend, its call on the oracle.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/compute_backend.hpp"
#include "tests/ops/op_cases.hpp"
#include "tests/ops/oracle.hpp"

namespace mylos {

/// The bytes of every storage of a case, each with a margin before and after that nothing may touch.
using Contents = std::map<std::string, std::vector<std::byte>, std::less<>>;

/// The operands of a case by name, dense and in fp64.
using Arrays = std::map<std::string, oracle::Array, std::less<>>;

/// The content of memory before the call. Bytes that no input, derived or updated operand fills are 0xFF,
/// which is NaN in every float type.
Contents initial_contents(const OpCase& c);

/// One operand's values.
oracle::Array read(const Operand& operand, const Contents& contents);
/// All operands' values.
Arrays read_all(const OpCase& c, const Contents& contents);

/// Replaces the results in `arrays` by the results that the oracle computes from the inputs.
void run_oracle(const OpCase& c, Arrays& arrays);

/// The first byte outside the results and workspaces that differs, as "storage at byte n", or "".
std::string stray_write(const OpCase& c, const Contents& before, const Contents& after);

/// A case in the memory of a backend.
class OpRun {
 public:
  /// Allocates memory and calls `reset`. All arguments must outlive the object.
  OpRun(const OpCase& c, ComputeBackend& backend, const Contents& initial);

  /// Puts the initial contents and the case's arguments back.
  void reset();
  /// Calls the operation once.
  void run();
  void synchronize() { backend_.synchronize(); }
  /// Waits, and copies every storage to the host.
  Contents contents();

  /// The arguments that operations take by address, as they lie in device memory.
  struct Control {
    StepScalars scalars;
    GuardInput guard_input;
    GuardState guard_state;
    Segment segments[3];
  };
  Control control();
  void set_control(const Control& control);

 private:
  Allocation allocate(std::size_t bytes);
  TensorRef tensor(std::string_view operand) const;

  const OpCase& case_;
  ComputeBackend& backend_;
  const Contents& initial_;
  std::map<std::string, Allocation, std::less<>> memory_;
  Allocation control_;
  Allocation blocks_;
};

}  // namespace mylos
