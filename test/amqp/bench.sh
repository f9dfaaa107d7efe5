#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures a load of Qpid JMS (jms/bench/Load.java) alternately on a Lockstep pair and on a replicated Artemis pair, on
# this machine. For messages of 512 and 15,000 bytes it prints the messages per second that were produced and consumed,
# and the latency at a constant rate: the medians of the rounds, and their ratios. Both systems use their default
# settings and sync their logs. The measurement takes about six minutes. Usage:
#   test/amqp/bench.sh
#   LOCKSTEP_BENCH_ROUNDS=1 LOCKSTEP_BENCH_SECONDS=3 test/amqp/bench.sh
set -euo pipefail
cd "$(dirname "$0")"

rounds=${LOCKSTEP_BENCH_ROUNDS:-3}
seconds=${LOCKSTEP_BENCH_SECONDS:-5}
rate=${LOCKSTEP_BENCH_RATE:-200}
cache=${LOCKSTEP_AMQP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-amqp}
mkdir -p "$cache"
if ! command -v mvn >/dev/null || ! command -v javac >/dev/null; then
  echo "amqp: java, javac or mvn is missing"
  exit 3
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-amqp-bench.XXXXXX")
pids=()
finish() {
  local code=$?
  stop
  if ((code == 0)); then
    rm -rf "$work"
  else
    echo "failed; logs are in $work" >&2
  fi
}
stop() {
  local p
  for p in "${pids[@]}"; do
    kill "$p" 2>/dev/null || true
    wait "$p" 2>/dev/null || true
  done
  pids=()
}
trap finish EXIT

jars() { # PROFILE SOURCE: fetches the jars of a profile, and compiles the source
  if [[ ! -e $cache/bench-$1/.complete ]]; then
    timeout 300 mvn -q -B -f jms/pom.xml -P"$1" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
      -DoutputDirectory="$cache/bench-$1"
    touch "$cache/bench-$1/.complete"
  fi
  mkdir -p "$work/classes-$1"
  javac -nowarn -d "$work/classes-$1" -cp "$cache/bench-$1/*" "jms/bench/$2.java"
}
jars javax Load
jars artemis Artemis
go build -o "$work/lockstep" ../../cmd/lockstep

free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
}
until_ok() {
  local deadline=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { echo "timeout: $*" >&2; return 1; }
    sleep 0.2
  done
}

lockstep_pair() {
  local dir=$1 a b
  a=127.0.0.1:$(free_port) b=127.0.0.1:$(free_port)
  "$work/lockstep" dev --dir "$dir" --listen-a "$a" --listen-b "$b" --console "" >"$dir.log" 2>&1 &
  pids+=($!)
  until_ok grep -q 'failover:(amqp' "$dir.log"
  # Both nodes must be in sync, as with Artemis, whose primary is ready when the replica is in sync.
  until_ok sh -c "LOCKSTEP_ADDR=$a,$b $work/lockstep status --output json | grep -q '\"role\": *\"standby\"'"
  url="$(grep -o 'failover:([^ ]*)' "$dir.log" | head -n 1)"
  "$work/lockstep" queue create load --addr "$a,$b" >/dev/null
  "$work/lockstep" queue create load.latency --addr "$a,$b" >/dev/null
}

artemis_pair() {
  local dir=$1 amqp one two
  amqp=$(free_port) one=$(free_port) two=$(free_port)
  mkdir -p "$dir"
  for role in primary backup; do
    local self=$one other=$two
    [[ $role == primary ]] || { self=$two; other=$one; amqp=$(free_port); }
    [[ $role == backup ]] || url="amqp://127.0.0.1:$amqp"
    java -Xmx1g -cp "$cache/bench-artemis/*:$work/classes-artemis" Artemis "$role" "$dir" "$amqp" "$self" "$other" \
      >"$dir/$role.log" 2>&1 &
    pids+=($!)
  done
  until_ok grep -q ready "$dir/primary.log"
}

once() { # SYSTEM BYTES ROUND: writes the output of the load to a file
  local dir="$work/$1-$2-$3"
  "$1_pair" "$dir"
  java -cp "$cache/bench-javax/*:$work/classes-javax" Load "$url" load "$2" "$seconds" "$rate" >"$work/$1-$2-$3.result"
  stop
  rm -rf "$dir"
}

for ((round = 1; round <= rounds; round++)); do
  for bytes in 512 15000; do
    for system in lockstep artemis; do
      once "$system" "$bytes" "$round"
      printf '%-8s %6d bytes, round %d: %s\n' "$system" "$bytes" "$round" "$(cat "$work/$system-$bytes-$round.result")"
    done
  done
done

median() { # SYSTEM BYTES COLUMN
  cat "$work/$1-$2-"*.result | awk -v c="$3" '{print $c}' | sort -g | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'
}
printf '\nmedians of %d rounds, %s s each; %d messages/s for the latency\n' "$rounds" "$seconds" "$rate"
printf '%-22s %12s %12s %8s\n' "" lockstep artemis ratio
for bytes in 512 15000; do
  column=0
  for what in "produced/s" "consumed/s" "latency p50, ms" "latency p99, ms"; do
    column=$((column + 1))
    l=$(median lockstep $bytes $column)
    a=$(median artemis $bytes $column)
    printf '%6d %-15s %12s %12s %8s\n' "$bytes" "$what" "$l" "$a" "$(awk -v l="$l" -v a="$a" 'BEGIN {printf "%.2f", l / a}')"
  done
done
