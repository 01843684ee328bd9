# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# wait_for, for tests in bash, which define `failed MESSAGE...`.

# wait_for WHAT COMMAND... waits until COMMAND succeeds. The limit only turns a hang into a failure.
wait_for() {
  local i what=$1
  shift
  for ((i = 0; i < 2400; i++)); do
    ! "$@" || return 0
    sleep 0.1
  done
  failed "waited in vain for $what"
}
