#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the packages for this machine's platform twice and compares the bytes. Then inside.sh installs, upgrades,
# removes and purges them in a separate root, with a running node. That root is a temporary overlay over the root of
# this machine, or the contents of a tar file, such as
#   mmdebstrap --variant=essential --include=man-db,passwd bookworm root.tar
# Requires root, dpkg and overlayfs. If rpm is installed, the .rpm is tested as well. Exit code 3: the test cannot run
# here.
# Usage: test/packages/run.sh [root.tar]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

tar=${1:-}
cannot() {
  echo "packages: $*"
  exit 3
}
((EUID == 0)) || cannot "not root"
command -v dpkg-deb >/dev/null || cannot "no dpkg-deb"
command -v ip >/dev/null || cannot "no ip (package iproute2)"
unshare --mount --pid --fork --net true 2>/dev/null || cannot "unshare is not permitted"

# This part runs in separate namespaces. Its mounts and processes are removed with the namespaces.
if [[ -n ${PACKAGES_WORK:-} ]]; then
  work=$PACKAGES_WORK
  ip link set lo up
  mount -t tmpfs tmpfs "$work/root"
  root=$work/root/merged
  mkdir -p "$work/root/upper" "$work/root/work" "$root"
  if [[ -n $tar ]]; then
    tar -x -f "$tar" -C "$root" --exclude=./dev
    mkdir -p "$root/dev"
  else
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/root/upper,workdir=$work/root/work" "$root" || cannot "no overlay over /"
  fi
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mkdir -p "$root/packages" "$root/run/lock"
  cp "$work"/v0.1.0/*.{deb,rpm} "$work"/v0.2.0/*.{deb,rpm} "$here/inside.sh" "$root/packages/"
  exec chroot "$root" /bin/bash /packages/inside.sh
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
cd "$here/../.."
arch=$(go env GOARCH)
if [[ -z ${NFPM:-} ]]; then
  # Compile nfpm once, not for each package.
  GOBIN="$work/bin" go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2 2>"$work/nfpm.log" ||
    cannot "nfpm cannot be fetched: $(tail -n 1 "$work/nfpm.log")"
  export NFPM=$work/bin/nfpm
fi
export PLATFORMS=linux/$arch
for version in v0.1.0 v0.2.0; do
  deploy/make-release.sh "$work/$version" "$version" >/dev/null
  deploy/make-packages.sh "$work/$version" "$version" >/dev/null 2>&1
done

mkdir "$work/again" "$work/tmp"
cp "$work/v0.2.0/lockstep-v0.2.0-linux-$arch"{,.cdx.json} "$work/again/"
TMPDIR=$work/tmp TZ=Asia/Tokyo deploy/make-packages.sh "$work/again" v0.2.0 >/dev/null 2>&1
diff "$work/v0.2.0/SHA256SUMS" "$work/again/SHA256SUMS"
(cd "$work/v0.2.0" && sha256sum --check --quiet SHA256SUMS)
[[ $(wc -l <"$work/v0.2.0/SHA256SUMS") == 4 ]]
echo "packages: two builds are identical"

PACKAGES_WORK=$work unshare --mount --pid --fork --kill-child --net "$here/run.sh" ${tar:+"$(realpath "$tar")"}
