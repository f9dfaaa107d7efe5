#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the console (test/console) with a headless Chromium, on a real pair, and kills its nodes. As root, it installs
# a missing browser with apt-get. LOCKSTEP_SCREENSHOTS is a directory for screenshots of every page. Exit code 3: the
# test cannot run here.
# Usage: test/console/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

find_browser() {
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" && return
  done
  return 1
}
if [[ -z ${LOCKSTEP_BROWSER:-} ]] && ! LOCKSTEP_BROWSER=$(find_browser); then
  if ((EUID == 0)) && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 || true
  fi
  LOCKSTEP_BROWSER=$(find_browser) || {
    echo "console: no Chromium, and it cannot be installed here"
    exit 3
  }
fi
export LOCKSTEP_BROWSER
exec go test -tags deep -count=1 -timeout 20m ./test/console
