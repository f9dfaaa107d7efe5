#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs `lockstep demo` repeatedly and prints the cost of the kills of the active.
# Usage: demo-soak.sh <lockstep binary> <runs>
# Exit code 0 only if every run exited with 0, which requires that no acknowledged message was lost or duplicated and
# that the digests of the two stores are equal.
set -euo pipefail

binary=$1
runs=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-demo-soak.XXXXXX")
failed=0

# Prints one value of the verdict, a JSON object with the keys failover_ms, lost, duplicated, …
field() {
  grep -o "\"$1\"[[:space:]]*:[[:space:]]*[^,}[:space:]]*" "$2" | head -n 1 | sed 's/.*:[[:space:]]*//'
}

printf '%-5s %-7s %12s %8s %12s %10s\n' run verdict failover_ms lost duplicated digests
for ((run = 1; run <= runs; run++)); do
  verdict=pass
  "$binary" demo --output json >"$work/$run.json" 2>"$work/$run.log" || verdict="FAIL"
  failover_ms=$(field failover_ms "$work/$run.json" || true)
  printf '%-5s %-7s %12s %8s %12s %10s\n' "$run" "$verdict" "${failover_ms:-?}" \
    "$(field lost "$work/$run.json" || true)" "$(field duplicated "$work/$run.json" || true)" \
    "$(field digests_equal "$work/$run.json" || true)"
  if [[ $verdict == pass && -n $failover_ms ]]; then
    echo "$failover_ms" >>"$work/failover_ms"
  else
    failed=$((failed + 1))
    echo "      see $work/$run.log and $work/$run.json" >&2
  fi
done

if [[ -s $work/failover_ms ]]; then
  sort -n "$work/failover_ms" | awk '
    { v[NR] = $1 }
    END {
      median = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
      printf "kill to next acknowledged publish, %d runs: median %.1f ms, maximum %.1f ms\n", NR, median, v[NR]
    }'
fi
if ((failed > 0)); then
  echo "$failed of $runs runs failed; kept in $work" >&2
  exit 1
fi
rm -rf "$work"
