#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the cost of a scan, a backup and a check for a publisher. It starts a pair, fills it, and measures publish
# latency alternately without and with the operation running, so that both samples have the same conditions.
#
#   test/maintenance-latency.sh [BINARY] [ROUNDS]       default: bin/lockstep, 5 rounds
#
# NODE=standby|active   where the scan and the backup run (default: standby)
# KINDS="scan backup"   the measured operations (default: scan backup check; a check reads both nodes)
# FULL=1                without throttling (--full-speed)
# FILL=60000            messages of 4000 bytes in the store
# Prints a line for each round, and the ratio of the medians of p99 for each operation.
set -euo pipefail
bin=$(readlink -f "${1:-bin/lockstep}")
rounds=${2:-5}
node=${NODE:-standby}
fill=${FILL:-60000}
kinds=${KINDS:-scan backup check}
flags=(--output json)
[[ -z ${FULL:-} ]] || flags+=(--full-speed)
work=$(mktemp -d)
pair=
worker=
cleanup() {
  [[ -z $worker ]] || kill "$worker" 2>/dev/null || true
  if [[ -n $pair ]] && kill -INT "$pair" 2>/dev/null; then
    wait "$pair" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap cleanup EXIT

cd "$work"
"$bin" dev >dev.out 2>&1 &
pair=$!
for _ in $(seq 100); do
  "$bin" status --output json 2>/dev/null | grep -q '"standby":"in-sync"' && break
  sleep 0.1
done
"$bin" queue create fill >/dev/null
awk -v n="$fill" 'BEGIN {b = sprintf("%4000s", "x"); for (i = 0; i < n; i++) print b}' | "$bin" publish fill >/dev/null
"$bin" checkpoint >/dev/null

p99() { # prints the p99 in ms of one bench round on the pair
  "$bin" bench publish --addr 127.0.0.1:7420,127.0.0.1:7421 --rounds 1 --messages 8000 --producers 4 --output json |
    grep -o '"p99_ms":[0-9.]*' | head -1 | cut -d: -f2
}
forever() { # repeats an operation: scan, backup or check
  while :; do
    case $1 in
      scan) "$bin" store scan --node "$node" "${flags[@]}" ;;
      backup) "$bin" store backup --node "$node" --path "$work/backup" --keep-generations 1 "${flags[@]}" ;;
      check) "$bin" store check "${flags[@]}" ;;
    esac >/dev/null 2>&1 || sleep 0.1
  done
}
median() { sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'; }

p99 >/dev/null # warm-up
for kind in $kinds; do
  : >without
  : >with
  for round in $(seq "$rounds"); do
    p99 >>without
    forever "$kind" &
    worker=$!
    p99 >>with
    kill "$worker"
    wait "$worker" 2>/dev/null || true
    worker=
    printf '%s round %d: p99 %s ms without, %s ms with\n' "$kind" "$round" "$(tail -1 without)" "$(tail -1 with)"
  done
  awk -v k="$kind" -v n="$node" -v a="$(median <without)" -v b="$(median <with)" \
    'BEGIN {printf "%s on the %s: median p99 %.2f ms without, %.2f ms with: %.2f times\n", k, n, a, b, b/a}'
done
