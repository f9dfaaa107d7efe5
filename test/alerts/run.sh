#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the alert rules, the queries of the Grafana dashboard and the metrics of a running node with promtool, and runs
# the unit tests of the rules. promtool is taken from the PATH, or from Debian's package prometheus, which is downloaded
# but not installed. Exit code 3: the test cannot run here.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-alerts.XXXXXX")
node=
finish() {
  if [[ -n $node ]]; then
    kill "$node" 2>/dev/null || true
    wait "$node" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

promtool=$(command -v promtool || true)
if [[ -z $promtool ]]; then
  if ! (cd "$work" && timeout 120 apt-get download prometheus && dpkg-deb -x prometheus_*.deb prometheus) >"$work/apt.log" 2>&1; then
    echo "promtool is not in the PATH, and Debian's package prometheus cannot be fetched"
    exit 3
  fi
  promtool=$work/prometheus/usr/bin/promtool
fi
if ! command -v curl >/dev/null; then
  echo "curl is not installed"
  exit 3
fi

(
  cd deploy/prometheus
  "$promtool" check rules lockstep.rules.yaml
  "$promtool" test rules lockstep.rules.test.yaml lockstep.rules.days.test.yaml
)

LOCKSTEP_EXPRESSIONS=$work/dashboard.yaml go test ./test/docs -count=1 -run TestDashboardUsesExistingMetrics
"$promtool" check rules "$work/dashboard.yaml"

go build -o "$work/lockstep" ./cmd/lockstep
"$work/lockstep" serve --coordinator-type none --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --data-dir "$work/data" \
  --log-format json >"$work/node.log" 2>&1 &
node=$!
address=
for ((i = 0; i < 1200; i++)); do
  address=$(sed -n 's/.*"metrics listening".*"address":"\([^"]*\)".*/\1/p' "$work/node.log" | head -n 1)
  if [[ -n $address ]] && curl -fsS "http://$address/metrics" >"$work/metrics" 2>/dev/null && [[ -s $work/metrics ]]; then
    break
  fi
  kill -0 "$node" || break
  sleep 0.1
done
if ! [[ -s $work/metrics ]]; then
  echo "no metrics from the node:"
  cat "$work/node.log"
  exit 1
fi
"$promtool" check metrics <"$work/metrics"
echo "$(grep -c '^lockstep_' "$work/metrics") series of a running node pass promtool check metrics"
