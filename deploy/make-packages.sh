#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a .deb and an .rpm from each Linux binary of make-release.sh, and adds them to SHA256SUMS. The bytes depend on
# the binaries, the sources and SOURCE_DATE_EPOCH, which has the same default for every release.
# Usage: make-packages.sh <directory written by make-release.sh> <version>
# NFPM=<program> is the path of nfpm; if unset, nfpm is fetched and compiled.
set -euo pipefail

out=$(cd "$1" && pwd)
version=$2
cd "$(dirname "$0")/.."

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600} # 2026-01-01
export GOFLAGS=-mod=readonly GOWORK=off
nfpm=(go run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2)
[[ -z ${NFPM:-} ]] || nfpm=("$NFPM")

# v1.2.3 becomes 1.2.3. A pre-release, v1.2.3-rc.1, must sort before 1.2.3. A later commit according to git describe,
# v1.2.3-4-gabcdef, must sort after 1.2.3. A bare commit sorts before every release.
package_version() {
  local v=${1#v}
  if [[ $v =~ ^([0-9]+\.[0-9]+\.[0-9]+)-([0-9]+-g[0-9a-f].*)$ ]]; then
    v=${BASH_REMATCH[1]}+${BASH_REMATCH[2]//-/.}
  elif [[ $v =~ ^([0-9]+\.[0-9]+\.[0-9]+)-(.*)$ ]]; then
    v=${BASH_REMATCH[1]}~${BASH_REMATCH[2]//-/.}
  elif ! [[ $v =~ ^[0-9]+\.[0-9]+ ]]; then
    v=0.0.0+${v//-/.}
  fi
  echo "$v"
}
PACKAGE_VERSION=$(package_version "$version")
export PACKAGE_VERSION

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
files=$stage/files
mkdir -p "$files/doc" "$files/examples" "$stage/scripts"

# The flags are those of the release build, so that no package is compiled twice.
CGO_ENABLED=0 go run -trimpath -buildvcs=false ./cmd/internal/manual "$files" "$version"
for unit in lockstep lockstep-witness; do
  # A package installs into /usr; the unit in the sources is for a manually installed program.
  sed -e 's,/usr/local/bin/,/usr/bin/,' -e '/^\[Unit\]/,$!d' "deploy/$unit.service" >"$files/$unit.service"
done
sed 's,/usr/local/bin/,/usr/bin/,' deploy/lockstep-on-active.service >"$files/examples/lockstep-on-active.service"
cp deploy/haproxy.cfg "$files/examples/"
cp deploy/node.yaml deploy/packages/{sysusers.conf,witness.env,lintian} "$files/"
cp deploy/packages/copyright "$files/doc/"
cp CHANGELOG.md "$files/doc/changelog"
gzip -9n "$files"/man1/*.1 "$files/doc/changelog"
for script in postinstall preremove postremove; do
  cp "deploy/packages/$script.sh" "$stage/scripts/$script"
done
cp deploy/packages/nfpm.yaml "$stage/"
find "$stage" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +

rm -f "$out"/*.deb "$out"/*.rpm
for arch in amd64 arm64; do
  binary=$out/lockstep-$version-linux-$arch
  [[ -f $binary ]] || continue
  cp "$binary" "$files/lockstep"
  touch -d "@$SOURCE_DATE_EPOCH" "$files/lockstep"
  for packager in deb rpm; do
    (cd "$stage" && PACKAGE_ARCH=$arch "${nfpm[@]}" package --config nfpm.yaml --packager "$packager" --target "$out/" >&2)
  done
done
(cd "$out" && sha256sum lockstep-* lockstep_* >SHA256SUMS && cat SHA256SUMS)
