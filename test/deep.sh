#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the deep tier (build tag deep), one suite at a time, each with a separate timeout, and lists the failed suites.
# LOCKSTEP_CHAOS=30m, LOCKSTEP_MATRIX=all, LOCKSTEP_SEED and the other variables of the suites apply.
# Usage: deep.sh [SUITE...], such as `deep.sh ./test/chaos`
set -uo pipefail
cd "$(dirname "$0")/.."

suites=(
  "./test/mutation 60m"
  "./test/simulation 60m"
  "./test/sites 60m"
  "./test/fleets 60m"
  "./test/guard 60m"
  "./test/ratios 15m"
  "./cmd/lockstep-lab/internal/lab 30m"
  "./client 15m"
  "./failover 15m"
  "./failover/coordinator/etcd 15m"
  "./fleet 30m"
  "./store 15m"
  "./store/page 15m"
  "./store/queue 15m"
  "./store/tree 15m"
  "./store/wal 15m"
  "./test/timing 15m"
  "./test/conformance 30m"
  "./test/amqp 60m"
  "./test/soak 30m"
  "./test/docs 30m"
  "./test/hostile 60m"
  "./test/sites/real 30m"
  "./test/fleet 30m"
  "./test/chaos ${CHAOS_TIMEOUT:-120m}"
)
# These scripts install third-party programs. Exit code 3: the script cannot run here, for the reason that it prints.
scripts=(test/s3/run.sh test/console/run.sh test/python/run.sh test/amqp/run.sh)

failed=()
wanted() { ((${#chosen[@]} == 0)) || [[ " ${chosen[*]} " == *" $1 "* ]]; }
chosen=("$@")
for suite in "${suites[@]}"; do
  read -r package timeout <<<"$suite"
  wanted "$package" || continue
  printf '\n=== [%4ds] %s\n' "$SECONDS" "$package"
  go test -tags deep -count=1 -timeout "$timeout" "$package" || failed+=("$package")
done
for script in "${scripts[@]}"; do
  wanted "$script" || continue
  printf '\n=== [%4ds] %s\n' "$SECONDS" "$script"
  code=0
  "$script" || code=$?
  case $code in
    0) ;;
    3) echo "SKIPPED: $script cannot run here" ;;
    *) failed+=("$script") ;;
  esac
done
printf '\n=== [%4ds] done\n' "$SECONDS"
if ((${#failed[@]} > 0)); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
