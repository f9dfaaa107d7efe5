#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of the module in sequence, each for the given time (`go test -fuzz` accepts one at a time).
# Usage: fuzz.sh <time, such as 30s>
set -euo pipefail
cd "$(dirname "$0")/.."

time_each=${1:-30s}
grep -rlE '^func Fuzz[A-Za-z0-9_]*\(' --include='*_test.go' . | sort | while read -r file; do
  package=$(dirname "$file")
  grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | awk '{print $2}' | while read -r target; do
    echo "== $package $target"
    # Without a limit, minimizing one input can take a minute, during which no other input is tried.
    go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$time_each" -fuzzminimizetime 100x </dev/null
  done
done
