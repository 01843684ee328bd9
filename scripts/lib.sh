# SPDX-License-Identifier: BSD-3-Clause
# What the scripts share: messages, Debian packages, archives, Kokkos, configuration. Sourced, not run.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/.deps

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }

# die STATUS MESSAGE...
die() {
  local status=$1
  shift
  warn "error: $*"
  exit "$status"
}

has() { command -v "$1" >/dev/null 2>&1; }

# run_logged LOG COMMAND... runs a command with its output in LOG; if it fails, shows errors in LOG and the end of LOG.
run_logged() {
  local log=$1 status=0
  shift
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if ((status != 0)); then
    warn "failed with exit code $status: $*"
    warn "errors and the end of $log:"
    { grep -m 20 -E '(error|FAILED): ' "$log" || true; tail -n 15 "$log"; } | cut -c 1-400 | sed 's/^/  | /' >&2
    return "$status"
  fi
}

# --- Debian packages ------------------------------------------------------------------------------------------------

# root_prefix prints the command prefix that gives root rights; fails if this user is not root and sudo is missing or
# needs a password.
root_prefix() {
  if [[ $(id -u) == 0 ]]; then
    printf 'env'
  elif has sudo && sudo -n true 2>/dev/null; then
    printf 'sudo -n env'
  else
    return 1
  fi
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | head -n 1) == installed ]]; }

# mask_services NAME... masks the systemd services of Debian packages that are about to be installed, which would
# otherwise be enabled and started. Services of packages that are installed stay as they are.
mask_services() {
  local name missing=() prefix
  has dpkg-query || return 0
  for name in "$@"; do is_installed "$name" || missing+=("$name"); done
  ((${#missing[@]} > 0)) || return 0
  if ! prefix=$(root_prefix); then
    warn "The services of these packages are not needed. Before they are installed, run  systemctl mask ${missing[*]}"
    return
  fi
  say "Masking services that are not needed: ${missing[*]} (systemctl unmask allows them)"
  # As systemctl mask does, which refuses services that are not there yet.
  # shellcheck disable=SC2086,SC2016 # the prefix is several words; the inner shell expands
  $prefix sh -c 'mkdir -p /etc/systemd/system && for name in "$@"; do
    ln -sfn /dev/null "/etc/systemd/system/$name.service"; done' mask "${missing[@]}"
}

# install_packages NAME... installs the packages that are missing, or does nothing if all are installed or this is not a
# Debian system.
install_packages() {
  local name missing=() prefix
  if ! has dpkg-query; then
    say "Not a Debian system: taking the compiler, CMake, MPI, HDF5 and the libraries of spack.yaml as given"
    return
  fi
  for name in "$@"; do
    is_installed "$name" || missing+=("$name")
  done
  ((${#missing[@]} > 0)) || return 0
  if ! prefix=$(root_prefix); then
    die 2 "these Debian packages are missing and installing them needs root. Run
  apt-get update && apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  mkdir -p "$deps"
  # shellcheck disable=SC2086 # the prefix is several words
  run_logged "$deps/apt.log" $prefix DEBIAN_FRONTEND=noninteractive sh -c \
    'apt-get update && apt-get install -y --no-install-recommends --no-remove "$@"' apt-get "${missing[@]}" ||
    die 2 "apt-get could not install: ${missing[*]}"
}

# --- Archives -------------------------------------------------------------------------------------------------------

# source_row NAME prints "version sha256 upstream pool" from cmake/sources.txt.
source_row() { awk -v name="$1" '$1 == name { print $2, $3, $4, $5; exit }' "$root/cmake/sources.txt"; }

has_sum() { [[ -f $1 ]] && printf '%s  %s\n' "$2" "$1" | sha256sum --check --status; }

# download URL FILE uses apt's client if there is one: a bare Debian has no other client, and apt's uses the
# proxies that apt is configured with.
download() {
  if [[ -x /usr/lib/apt/apt-helper ]]; then
    /usr/lib/apt/apt-helper -o APT::Sandbox::User=root -o Acquire::Retries=0 \
      -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 download-file "$1" "$2"
  else
    curl --fail --silent --show-error --location --connect-timeout 10 --output "$2" "$1"
  fi
}

# apt_mirrors prints the mirrors that apt is configured with, if there is apt. If the package lists are empty, it
# fetches them first, if it can get root rights.
apt_mirrors() {
  local prefix
  has apt-get || return 0
  # shellcheck disable=SC2016 # apt-get fills it in
  local site='$(SITE)'
  if [[ -z $(apt-get indextargets --format "$site") ]] && prefix=$(root_prefix); then
    $prefix apt-get update >/dev/null
  fi
  apt-get indextargets --format "$site" | sort -u
}

# fetch_archive NAME writes .deps/sources/NAME-VERSION.tar.gz with the accepted SHA-256, or fails and says what it
# tried.
fetch_archive() {
  local name=$1 version sum upstream pool file log mirror url urls
  read -r version sum upstream pool <<<"$(source_row "$name")"
  file=$deps/sources/$name-$version.tar.gz
  log=$deps/$name-download.log
  mkdir -p "$deps/sources"
  if has_sum "$file" "$sum"; then
    return
  fi
  local cached=${MYLOS_SOURCE_CACHE:-}/$name-$version.tar.gz
  if [[ -n ${MYLOS_SOURCE_CACHE:-} && -f $cached ]]; then
    if has_sum "$cached" "$sum"; then
      cp "$cached" "$file"
      return
    fi
    warn "$cached does not have the SHA-256 $sum and is not used"
  fi
  urls=("$upstream")
  if [[ $pool != - ]]; then
    while read -r mirror; do
      [[ -z $mirror ]] || urls+=("${mirror%/}/$pool")
    done <<<"$(apt_mirrors)"
  fi
  : >"$log"
  for url in "${urls[@]}"; do
    rm -f "$file.partial"
    say "Fetching $url"
    if download "$url" "$file.partial" >>"$log" 2>&1; then
      if has_sum "$file.partial" "$sum"; then
        mv "$file.partial" "$file"
        return
      fi
      warn "  its SHA-256 is not $sum: not used"
    else
      warn "  not reachable from here"
    fi
  done
  rm -f "$file.partial"
  warn "No archive of $name $version (log: $log)."
  warn "Put $name-$version.tar.gz in a folder and set MYLOS_SOURCE_CACHE to it."
  return 1
}

# --- Kokkos ---------------------------------------------------------------------------------------------------------

# arch_options prints Kokkos' options for the architecture of host code. build_key OPTIONS... prints a word that
# identifies OPTIONS, the compiler and what -march selects.
arch_options() {
  case ${MYLOS_ARCH-native} in
    native) say -DKokkos_ARCH_NATIVE=ON ;;
    '') ;;
    *) say "-DCMAKE_CXX_FLAGS=-march=$MYLOS_ARCH" ;;
  esac
}

build_key() {
  local arch=${MYLOS_ARCH-native} cxx=${CXX:-c++}
  {
    say "$@"
    "$cxx" --version
    # The compiler's help depends on the width of the terminal.
    COLUMNS=80 LC_ALL=C "$cxx" ${arch:+-march=$arch} -Q --help=target 2>/dev/null || true
  } | sha256sum | cut -c 1-12
}

# build_source NAME PREFIX OPTIONS... builds the archive of NAME and installs it as PREFIX, whole or not at all.
build_source() {
  local name=$1 prefix=$2 version work log=$deps/$1-build.log
  shift 2
  read -r version _ <<<"$(source_row "$name")"
  work=$deps/work-$name
  rm -rf "$work" "$prefix"
  mkdir -p "$work/source"
  tar -xzf "$deps/sources/$name-$version.tar.gz" -C "$work/source" --strip-components=1
  say "Building $name $version (log: $log)"
  run_logged "$log" cmake -S "$work/source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_STANDARD=20 -DBUILD_SHARED_LIBS=ON -DCMAKE_INSTALL_PREFIX="$work/install" \
    -DCMAKE_INSTALL_LIBDIR=lib "$@" || return
  run_logged "$log" cmake --build "$work/build" --target install || return
  mv "$work/install" "$prefix"
  rm -rf "$work"
}

# provide_kokkos leaves Kokkos where CMake finds it: Kokkos_ROOT, or .deps/kokkos (cmake/MylosDependencies.cmake).
provide_kokkos() {
  local version prefix options
  if [[ -n ${Kokkos_ROOT:-} ]]; then
    compgen -G "$Kokkos_ROOT/lib*/cmake/Kokkos/KokkosConfig.cmake" >/dev/null ||
      die 2 "Kokkos_ROOT is $Kokkos_ROOT, which holds no Kokkos installation"
    say "Kokkos: $Kokkos_ROOT (Kokkos_ROOT)"
    return
  fi
  read -r version _ <<<"$(source_row kokkos)"
  mapfile -t options < <(arch_options)
  # Kokkos' sources are small and its headers are large: a unity build is faster.
  options+=(-DKokkos_ENABLE_OPENMP=ON -DKokkos_ENABLE_SERIAL=ON -DCMAKE_UNITY_BUILD=ON)
  prefix=$deps/kokkos-$version-$(build_key "${options[@]}")
  if [[ ! -d $prefix ]]; then
    fetch_archive kokkos || die 2 "mylos needs Kokkos; without a network, set Kokkos_ROOT to an installed one"
    build_source kokkos "$prefix" "${options[@]}" || die 2 "Kokkos could not be built"
  fi
  ln -sfn "$(basename "$prefix")" "$deps/kokkos"
  say "Kokkos: $prefix"
}

# provide_kokkos_cuda ARCH leaves a Kokkos with CUDA for compute capability ARCH as .deps/kokkos-cudaARCH.
provide_kokkos_cuda() {
  local capability=$1 name version prefix options host=${MYLOS_ARCH-x86-64-v3}
  case $capability in
    80) name=AMPERE80 ;;
    90) name=HOPPER90 ;;
    *) die 2 "--cuda takes 80 (A100) or 90 (H100, H200), not $capability" ;;
  esac
  has nvcc || die 2 "nvcc was not found: install the CUDA toolkit and put its bin folder into PATH"
  read -r version _ <<<"$(source_row kokkos)"
  # nvcc_wrapper belongs to Kokkos: it is in the sources at first, later in the installation.
  options=("-DCMAKE_CXX_COMPILER=$deps/work-kokkos/source/bin/nvcc_wrapper" -DKokkos_ENABLE_CUDA=ON
    -DKokkos_ENABLE_CUDA_CONSTEXPR=ON "-DKokkos_ARCH_$name=ON" -DKokkos_ENABLE_OPENMP=ON -DKokkos_ENABLE_SERIAL=ON
    -DCMAKE_UNITY_BUILD=ON ${host:+"-DCMAKE_CXX_FLAGS=-march=$host"})
  prefix=$deps/kokkos-$version-cuda$capability-$(build_key "${options[@]}" "$(nvcc --version)")
  if [[ ! -d $prefix ]]; then
    fetch_archive kokkos || die 2 "mylos needs Kokkos"
    build_source kokkos "$prefix" "${options[@]}" || die 2 "Kokkos could not be built with CUDA"
  fi
  ln -sfn "$(basename "$prefix")" "$deps/kokkos-cuda$capability"
  say "Kokkos with CUDA: $prefix"
}

# provide_cudnn_frontend leaves the headers of cuDNN's C++ frontend, from its Python package, as .deps/cudnn-frontend.
# Without them, attention on a GPU uses compute_cuda's kernels.
provide_cudnn_frontend() {
  local name=nvidia-cudnn-frontend version sum prefix log=$deps/cudnn-frontend.log
  read -r version sum _ <<<"$(source_row cudnn-frontend)"
  prefix=$deps/cudnn-frontend-$version
  if [[ ! -d $prefix ]]; then
    rm -rf "$prefix.partial"
    mkdir -p "$prefix.partial"
    say "$name==$version --hash=sha256:$sum" >"$prefix.partial/requirements.txt"
    # Only headers are needed, so the wheel may be for another Python.
    if ! run_logged "$log" python3 -m pip download --no-deps --require-hashes --only-binary :all: \
      --platform manylinux_2_28_x86_64 --python-version 3.11 -d "$prefix.partial" -r "$prefix.partial/requirements.txt" ||
      ! run_logged "$log" python3 -m zipfile -e "$prefix.partial"/*.whl "$prefix.partial"; then
      warn "Going on without cuDNN's frontend: attention on a GPU is compute_cuda's own."
      return
    fi
    mv "$prefix.partial" "$prefix"
  fi
  ln -sfn "$(basename "$prefix")" "$deps/cudnn-frontend"
  say "cuDNN frontend: $prefix"
}

# provide_kokkos_kernels is optional: without Kokkos Kernels, the build goes on with the GEMM of compute_kokkos.
provide_kokkos_kernels() {
  local version prefix kokkos options
  if [[ -n ${KokkosKernels_ROOT:-} ]]; then
    say "Kokkos Kernels: $KokkosKernels_ROOT (KokkosKernels_ROOT)"
    return
  fi
  kokkos=$(realpath "${Kokkos_ROOT:-$deps/kokkos}")
  read -r version _ <<<"$(source_row kokkos-kernels)"
  options=(-DKokkosKernels_ENABLE_ALL_COMPONENTS=OFF -DKokkosKernels_ENABLE_COMPONENT_BLAS=ON
    -DKokkosKernels_ADD_DEFAULT_ETI=OFF -DKokkosKernels_ENABLE_TESTS=OFF "-DKokkos_ROOT=$kokkos")
  prefix=$deps/kokkos-kernels-$version-$(build_key "${options[@]}")
  if [[ ! -d $prefix ]]; then
    if ! fetch_archive kokkos-kernels || ! build_source kokkos-kernels "$prefix" "${options[@]}"; then
      warn "Going on without Kokkos Kernels: compute_kokkos uses its own GEMM."
      return
    fi
  fi
  ln -sfn "$(basename "$prefix")" "$deps/kokkos-kernels"
  say "Kokkos Kernels: $prefix"
}

# --- Building -------------------------------------------------------------------------------------------------------

# configure PRESET LOG OPTIONS... runs CMake with ccache if it is installed, and with Debian's MPICH if it is installed,
# even if another MPI is the default.
configure() {
  local options=("${@:3}")
  # ccache caches precompiled headers only if it may ignore #define directives and time macros.
  ! has ccache || options+=("-DCMAKE_CXX_COMPILER_LAUNCHER=env;CCACHE_SLOPPINESS=pch_defines,time_macros;ccache"
    -DCMAKE_CXX_FLAGS=-fpch-preprocess)
  ! has mpicxx.mpich || options+=(-DMPI_C_COMPILER=mpicc.mpich -DMPI_CXX_COMPILER=mpicxx.mpich
    "-DMPIEXEC_EXECUTABLE=$(command -v mpiexec.mpich)")
  [[ -z ${MYLOS_ARCH+set} ]] || options+=("-DMYLOS_ARCH=$MYLOS_ARCH")
  (cd "$root" && run_logged "$2" cmake --preset "$1" "${options[@]}")
}
