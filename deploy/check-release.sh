#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a release once more, from a copy of the sources in another directory and with an empty build cache, and compares it
# with what was built before. RELEASE_CACHE=<directory> has it use that build cache, which takes seconds instead of minutes
# and finds what depends on the directory or the time, but not what a compiler does differently. Usage: check-release.sh <directory that make-release.sh has written> <version>
set -euo pipefail

sums=$(cd "$1" && pwd)/SHA256SUMS
version=$2
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$scratch"
GOCACHE="${RELEASE_CACHE:-$scratch/.cache}" "$scratch/deploy/make-release.sh" "$scratch/dist" "$version" >/dev/null
diff "$sums" "$scratch/dist/SHA256SUMS"
echo "built twice, with the same bytes"
