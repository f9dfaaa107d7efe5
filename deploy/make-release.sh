#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the static binaries of a release, a bill of materials for each (CycloneDX), and the checksums. The bytes depend
# only on the sources, the version and the Go release: not on the directory, the time, the machine or the state of git.
# Usage: make-release.sh <output directory> <version>
# PLATFORMS="linux/amd64 …" selects the platforms. make-packages.sh builds the .deb and .rpm. Nodes are tested on Linux; the
# Windows binary is for the command line.
set -euo pipefail

out=$(mkdir -p "$1" && cd "$1" && pwd)
version=$2
cd "$(dirname "$0")/.."

export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off GOEXPERIMENT='' GOAMD64=v1 GOARM64=v8.0
rm -f "$out"/lockstep-* "$out"/lockstep_* "$out/SHA256SUMS"
for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64}; do
  name="lockstep-$version-${platform/\//-}"
  [[ $platform != windows/* ]] || name+=.exe
  echo "$name"
  GOOS=${platform%/*} GOARCH=${platform#*/} go build -trimpath -buildvcs=false \
    -ldflags "-s -w -buildid= -X main.version=$version" -o "$out/$name" ./cmd/lockstep
  go run ./deploy/sbom "$out/$name" "$version" >"$out/$name.cdx.json"
done
(cd "$out" && sha256sum lockstep-* >SHA256SUMS && cat SHA256SUMS)
