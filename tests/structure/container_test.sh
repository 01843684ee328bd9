#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# packaging/mylos.def without Apptainer: the steps of an image's build in a fresh Debian root, then ranks in it that
# srun starts through bwrap (tests/slurm/contained). Exit code 77 where such a root cannot be made.
# usage: container_test.sh SOURCE_FOLDER WORK_FOLDER
# environment: MYLOS_CONTAINERS, set if this test is wanted; MYLOS_CONTAINER_ROOT, a root that an earlier call has left in its work folder
set -euo pipefail
source=$1
work=$2
definition=$source/packaging/mylos.def
PATH=$PATH:/usr/sbin:/sbin

skip() { echo "skipped: $*" && exit 77; }
[[ -n ${MYLOS_CONTAINERS:-} ]] || skip "MYLOS_CONTAINERS is not set: this builds mylos once more, for 20 minutes"
[[ $(id -u) == 0 ]] || skip "only root can make a root"
for program in mmdebstrap bwrap nsenter munged slurmctld slurmd h5diff; do
  command -v $program >/dev/null || skip "$program is not installed"
done
bwrap --unshare-user --ro-bind / / true || skip "bwrap may not make user namespaces here"

# section NAME prints a section of the definition.
section() { awk -v name="%$1" '/^%/ { inside = $1 == name; next } inside' "$definition"; }

# --- The root --------------------------------------------------------------------------------------------------------

# debian_sources prints the sources of Debian 12 that this machine's apt has; none if it is of another release.
debian_sources() {
  # shellcheck disable=SC2016 # apt-get fills it in
  apt-get indextargets --format 'deb $(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
    grep ' bookworm' || true
}

# network_settings prints apt's settings for proxies and the like. There is no user _apt whom files could be given to.
network_settings() {
  echo 'APT::Sandbox::User "root";'
  apt-config dump | grep -E '^Acquire::(https?|Retries)\b' || true
}

# in_root COMMAND... runs a command as %post and %test run.
in_root() {
  local variable options=(--setenv PATH /usr/sbin:/usr/bin:/sbin:/bin --setenv HOME /root)
  for variable in http_proxy https_proxy no_proxy; do
    [[ -z ${!variable:-} ]] || options+=(--setenv "$variable" "${!variable}")
  done
  [[ -z ${MYLOS_SOURCE_CACHE:-} ]] || options+=(--ro-bind "$MYLOS_SOURCE_CACHE" /mnt)
  bwrap --bind "$root" / --dev /dev --proc /proc --tmpfs /tmp --ro-bind /etc/resolv.conf /etc/resolv.conf \
    --unshare-pid --die-with-parent --clearenv --setenv CMAKE_BUILD_PARALLEL_LEVEL "${CMAKE_BUILD_PARALLEL_LEVEL:-1}" \
    "${options[@]}" "$@"
}

rm -rf "$work"
mkdir -p "$work"
root=${MYLOS_CONTAINER_ROOT:-}
if [[ -z $root ]]; then
  root=$work/root
  debian_sources >"$work/sources.list"
  network_settings >"$work/apt.conf"
  mirror=()
  [[ ! -s $work/sources.list ]] || mirror=("$work/sources.list")
  mmdebstrap --variant=apt --aptopt="$work/apt.conf" bookworm "$root.tar" "${mirror[@]}" &>"$work/root.log" ||
    { tail -n 20 "$work/root.log" && skip "mmdebstrap made no root"; }
  mkdir "$root"
  tar -xf "$root.tar" -C "$root"
  rm "$root.tar"
  while read -r from to; do
    mkdir -p "$(dirname "$root$to")"
    cp -fLr "$source/$from" "$root$to"
  done < <(section files)
  in_root sh -e -c "$(section post)"
  [[ ! -e $root/usr/src/mylos ]] || { echo "failed: the sources are still there" >&2 && exit 1; }
  ! in_root sh -c 'command -v g++ || command -v cmake' || { echo "failed: the compiler is still there" >&2 && exit 1; }
  du -sh "$root"
fi
in_root sh -e -c "$(section test)"

# --- What takes Apptainer's place ------------------------------------------------------------------------------------

# launcher FOLDER ENTER makes FOLDER/bin/inside, which runs a command in the container that ENTER enters, in the same
# folder as outside and with the image's environment; and FOLDER/bin/mylos.
launcher() {
  mkdir -p "$1/bin"
  cat >"$1/bin/inside" <<END
#!/usr/bin/env bash
exec $2 sh -c 'cd "\$0" && . "\$1" && shift && exec "\$@"' "\$PWD" ${work@Q}/environment "\$@"
END
  cat >"$1/bin/mylos" <<END
#!/usr/bin/env bash
exec ${1@Q}/bin/inside mylos "\$@"
END
  chmod +x "$1"/bin/*
}

# What Apptainer binds without options, and a user namespace, as without setuid.
mkdir -p "$root$work"
touch "$root/etc/hosts" "$root/etc/resolv.conf"
container=(bwrap --unshare-user --die-with-parent --ro-bind "$root" / --dev-bind /dev /dev --bind /proc /proc
  --bind /sys /sys --bind /tmp /tmp --ro-bind /etc/hosts /etc/hosts --bind "$work" "$work")
section environment >"$work/environment"
launcher "$work/each" "${container[*]@Q}"
# As --sharens: a process holds the namespaces, and ranks enter them.
launcher "$work/shared" "nsenter --user --mount --preserve-credentials --target \"\$(cat ${work@Q}/holder)\""
cat >"$work/hold" <<END
#!/usr/bin/env bash
exec ${container[*]@Q} sh -c 'echo \$\$ >"\$0" && exec sleep infinity' ${work@Q}/holder
END
chmod +x "$work/hold"
tests=$source/tests/slurm
"$tests/with_slurm" 2 2 "$tests/contained" "$work"/{runs,each,shared,hold}
rm -rf "$work/root"
