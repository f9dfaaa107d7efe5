#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a pair with the distribution's etcd (Debian and Ubuntu: package etcd-server, or etcd): start, publish, kill the
# active, consume from the other node, restart the killed node, switch over. Every step prints its commands, which can
# be repeated manually.
# Usage: pair-by-hand.sh [lockstep binary]
# Requires root only if etcd must be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

log() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() {
  printf '\033[2m$ %s\033[0m\n' "$*"
  "$@"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-pair.XXXXXX")
declare -A pid=()
finish() {
  local code=$?
  for name in "${!pid[@]}"; do
    kill -KILL "${pid[$name]}" 2>/dev/null || true
  done
  wait 2>/dev/null || true
  if ((code == 0)); then
    rm -rf "$work"
  else
    echo "failed; logs and data are in $work" >&2
    tail -n 20 "$work"/*.log >&2 || true
  fi
}
trap finish EXIT

log "etcd, from the distribution"
if ! command -v etcd >/dev/null; then
  sudo=()
  ((EUID == 0)) || sudo=(sudo)
  run "${sudo[@]}" apt-get update -q
  DEBIAN_FRONTEND=noninteractive run "${sudo[@]}" apt-get install -y -q --no-install-recommends etcd-server \
    || DEBIAN_FRONTEND=noninteractive run "${sudo[@]}" apt-get install -y -q --no-install-recommends etcd
fi
run etcd --version

binary=${1:-}
if [[ -z $binary ]]; then
  log "the binary"
  binary=$work/lockstep
  CGO_ENABLED=0 run go build -o "$binary" ./cmd/lockstep
fi

# Prints a free port.
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
etcd_port=$(free_port)
peer_port=$(free_port)
a=127.0.0.1:$(free_port)
b=127.0.0.1:$(free_port)
export LOCKSTEP_ADDR=$a,$b

# Waits until a command succeeds, for at most 30 s.
until_ok() {
  local deadline=$((SECONDS + 30))
  until "$@" >"$work/last.out" 2>&1; do
    if ((SECONDS >= deadline)); then
      cat "$work/last.out" >&2
      echo "timeout after 30 s: $*" >&2
      return 1
    fi
    sleep 0.1
  done
}
# Checks the role of the node at an address.
role_is() { "$binary" status --addr "$1" --output json | grep -q "\"role\": *\"$2\""; }

start_node() {
  local name=$1 address=$2
  local command=("$binary" serve --node-name "$name" --data-dir "$work/$name" --listen "$address"
    --coordinator-etcd-endpoints "127.0.0.1:$etcd_port")
  printf '\033[2m$ %s &\033[0m\n' "${command[*]}"
  "${command[@]}" >>"$work/$name.log" 2>&1 & # without run, so that $! is the process ID of the node
  pid[$name]=$!
}

log "etcd on port $etcd_port"
etcd --name by-hand --data-dir "$work/etcd" --listen-client-urls "http://127.0.0.1:$etcd_port" \
  --advertise-client-urls "http://127.0.0.1:$etcd_port" --listen-peer-urls "http://127.0.0.1:$peer_port" \
  --initial-advertise-peer-urls "http://127.0.0.1:$peer_port" --initial-cluster "by-hand=http://127.0.0.1:$peer_port" \
  >"$work/etcd.log" 2>&1 &
pid[etcd]=$!

log "node a at $a creates the pair, node b at $b joins"
start_node a "$a"
until_ok role_is "$a" active-alone
start_node b "$b"
until_ok role_is "$b" standby
until_ok role_is "$a" active
run "$binary" status

log "publish"
run "$binary" queue create orders
run "$binary" publish orders "the first message"
seq 1 500 | run "$binary" publish orders
run "$binary" queue list

log "kill -9 of the active during a publish"
seq 501 5000 | "$binary" publish orders >"$work/published.out" 2>&1 &
publisher=$!
sleep 0.2
run kill -KILL "${pid[a]}"
wait "${pid[a]}" 2>/dev/null || true
wait "$publisher"
echo "the publisher ended without an error"
until_ok role_is "$b" active-alone
run "$binary" status

log "consume from the other node: 5001 messages, each once, in order"
"$binary" consume orders --count 5001 >"$work/consumed.out" 2>"$work/consume.log"
{ echo "the first message"; seq 1 5000; } | diff - "$work/consumed.out"
echo "the same 5001 messages, in the same order"

log "restart a, which catches up"
start_node a "$a"
until_ok role_is "$a" standby
until_ok role_is "$b" active

log "switch over to a, without client errors"
run "$binary" switchover
until_ok role_is "$a" active
until_ok role_is "$b" standby
run "$binary" status

log "stop both nodes, and check a store"
kill -TERM "${pid[a]}" "${pid[b]}"
wait "${pid[a]}" "${pid[b]}"
unset 'pid[a]' 'pid[b]'
run "$binary" store check "$work/a"

log "success"
