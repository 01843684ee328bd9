#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds a copy of the tree by `spack dev-build` with Debian's packages and an installed Kokkos, and concretizes
# spack.yaml and other variants of the package. MYLOS_SPACK is the folder of a Spack, which this leaves as it is, except
# for caches of Python. SPACK_PYTHON is the Python that Spack runs with; by default one with clingo is made here.
# Nothing is downloaded but clingo. MYLOS_SPACK_UNTIL=cmake stops after the configuration.
# usage: spack_test.sh SOURCE_FOLDER WORK_FOLDER KOKKOS_PREFIX HDF5_PREFIX MPI_C_COMPILER MPI_CXX_COMPILER
set -euo pipefail
source=$1
work=$2
kokkos=$3
hdf5=$4
mpicc=$5
mpicxx=$6
packages=$source/packaging/spack/packages

failed() {
  echo "failed: $*" >&2
  exit 1
}
skipped() {
  echo "skipped: $*"
  exit 77
}

# check_sum PACKAGE SOURCE checks that a package has the version and sum of what scripts/setup fetches.
check_sum() {
  local version sum word
  read -r _ version sum _ < <(grep "^$2 " "$source/cmake/sources.txt")
  for word in "$version" "$sum"; do
    grep --quiet --fixed-strings "\"$word\"" "$packages/$1/package.py" ||
      failed "packaging/spack/packages/$1 does not have the $2 of cmake/sources.txt"
  done
}
check_sum kokkos kokkos
check_sum kokkos-nvcc-wrapper kokkos
check_sum kokkos-kernels kokkos-kernels

[[ -n ${MYLOS_SPACK:-} ]] || skipped "MYLOS_SPACK names no Spack"
[[ -x $MYLOS_SPACK/bin/spack ]] || failed "MYLOS_SPACK is $MYLOS_SPACK, which has no bin/spack"
command -v dpkg-query >/dev/null || skipped "this is not a Debian system"
"$mpicc" -show | grep --quiet mpich || skipped "$mpicc is not of Debian's MPICH"

rm -rf "$work"
mkdir -p "$work"/{tree,config,externals,mpich/bin}

# --- A Spack that knows and changes nothing outside the work folder ---------------------------------------------------

if [[ -z ${SPACK_PYTHON:-} ]]; then
  python3 -m venv "$work/python"
  "$work/python/bin/pip" install --quiet clingo || skipped "clingo could not be installed; SPACK_PYTHON names no Python"
  export SPACK_PYTHON=$work/python/bin/python
fi
"$SPACK_PYTHON" -c 'import clingo' || skipped "$SPACK_PYTHON has no clingo"
# Nothing that was built for the tests of this tree is found by chance.
unset CMAKE_PREFIX_PATH HDF5_ROOT Kokkos_ROOT KokkosKernels_ROOT MPICH_CC MPICH_CXX SPACK_ENV
export SPACK_USER_CONFIG_PATH=$work/config SPACK_USER_CACHE_PATH=$work/cache SPACK_SYSTEM_CONFIG_PATH=$work/no-config
export TMPDIR=$work
cat >"$work/config/bootstrap.yaml" <<'END'
bootstrap:
  enable: false
END
cat >"$work/config/config.yaml" <<END
config:
  install_tree:
    root: $work/installed
  build_stage:
  - $work/stage
  source_cache: $work/sources
END
cat >"$work/config/repos.yaml" <<END
repos:
- $work/tree/packaging/spack
END
spack() { "$MYLOS_SPACK/bin/spack" "$@"; }

# What a build needs, without what earlier builds left.
for part in CMakeLists.txt LICENSE README.md app backends cmake core docs inputs io packaging parallel scripts spack.yaml; do
  cp -r "$source/$part" "$work/tree"
done

# --- Debian's packages -----------------------------------------------------------------------------------------------

# external NAME DEBIAN_PACKAGE VARIANTS [PREFIX] declares a package that is installed, and that Spack may not build.
external() {
  local version
  # As in "1:1.10.8+repack1-1".
  version=$(dpkg-query -W -f '${Version}' "$2" | sed -E 's/^[0-9]+://; s/[-+~].*//') || skipped "$2 is not installed"
  declare_external "$1" "$version" "$3" "${4:-/usr}"
}
# declare_external NAME VERSION VARIANTS PREFIX
declare_external() {
  printf '  %s:\n    buildable: false\n    externals:\n    - spec: %s\n      prefix: %s\n' \
    "$1" "$1@$2${3:+ $3}" "$4" >>"$work/externals/packages.yaml"
}
echo "packages:" >"$work/externals/packages.yaml"
external cmake cmake ""
external ninja ninja-build ""
external pkgconf pkgconf ""
external boost libboost-program-options-dev "+program_options"
external fmt libfmt-dev ""
external hdf5 libhdf5-dev "~mpi" "$hdf5"
external hwloc libhwloc-dev ""
external nlohmann-json nlohmann-json3-dev ""
external onednn libdnnl-dev "cpu_runtime=omp"
external xxhash libxxhash-dev ""
# Another MPI may be the default.
ln -s "$(command -v "$mpicc")" "$work/mpich/bin/mpicc"
ln -s "$(command -v "$mpicxx")" "$work/mpich/bin/mpic++"
ln -s mpic++ "$work/mpich/bin/mpicxx"
external mpich libmpich-dev "" "$work/mpich"
printf '  mpi:\n    buildable: false\n' >>"$work/externals/packages.yaml"
version=$(sed -n 's/^set(PACKAGE_VERSION "\([^"]*\)")$/\1/p' "$kokkos"/lib*/cmake/Kokkos/KokkosConfigVersion.cmake)
declare_external kokkos "$version" "+shared +openmp +serial cxxstd=20" "$kokkos"
cat "$work/externals/packages.yaml"

# --- The build -------------------------------------------------------------------------------------------------------

# Code that uses a Kokkos for this machine alone is for this machine alone.
spec=mylos@main
grep --quiet -e -march=native "$kokkos"/lib*/cmake/Kokkos/KokkosTargets.cmake && spec+=+native
spack --config-scope "$work/externals" spec "$spec"
spack --config-scope "$work/externals" dev-build --source-path "$work/tree" --jobs "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" \
  ${MYLOS_SPACK_UNTIL:+--until "$MYLOS_SPACK_UNTIL"} "$spec"
if [[ -z ${MYLOS_SPACK_UNTIL:-} ]]; then
  installed=$(spack --config-scope "$work/externals" location --install-dir mylos)
  mylos=(env --ignore-environment "PATH=$PATH" "HOME=$work" "$installed/bin/mylos")
  "${mylos[@]}" --version
  plugins=$("${mylos[@]}" help plugins)
  echo "$plugins"
  for plugin in compute_kokkos compute_onednn comm_mpi comm_shm; do
    grep --quiet "libmylos_$plugin.so" <<<"$plugins" || failed "the installed program has no $plugin"
  done
fi

# --- What others would build, with all dependencies by Spack ---------------------------------------------------------

spack spec mylos@main +tests +native +kokkos_kernels ~onednn
spack spec mylos@main +cuda cuda_arch=90
if spack spec mylos@main +cuda; then
  failed "mylos +cuda does not ask for cuda_arch"
fi
spack -e "$work/tree" concretize
python3 - "$work/tree/spack.lock" <<'END'
import json, sys

specs = json.load(open(sys.argv[1]))["concrete_specs"].values()
versions = {spec["name"]: spec["version"] for spec in specs}
number = lambda name: [int(part) for part in versions[name].split(".")]
assert [2, 6] <= number("onednn") < [3, 8], versions["onednn"]
assert number("kokkos") >= [5] and number("kokkos-kernels") >= [5], (versions["kokkos"], versions["kokkos-kernels"])
END
