#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rebuilds a release from a copy of the sources in another directory, with an empty build cache, and compares the result
# with the existing build. RELEASE_CACHE=<directory> uses that build cache. This takes seconds instead of minutes and detects
# dependencies on the directory or the time, but not nondeterminism of the compiler. Packages are rebuilt as well if
# they exist.
# Usage: check-release.sh <directory written by make-release.sh> <version>
set -euo pipefail

sums=$(cd "$1" && pwd)/SHA256SUMS
version=$2
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$scratch"
GOCACHE="${RELEASE_CACHE:-$scratch/.cache}" "$scratch/deploy/make-release.sh" "$scratch/dist" "$version" >/dev/null
if grep -q '\.deb$' "$sums"; then
  # nfpm is not part of the comparison: it is compiled with the cache of this machine.
  GOBIN="$scratch/bin" NFPM="${NFPM:-}" bash -c '[[ -n $NFPM ]] || go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2'
  GOCACHE="${RELEASE_CACHE:-$scratch/.cache}" NFPM="${NFPM:-$scratch/bin/nfpm}" \
    "$scratch/deploy/make-packages.sh" "$scratch/dist" "$version" >/dev/null
fi
diff "$sums" "$scratch/dist/SHA256SUMS"
echo "two builds are identical"
