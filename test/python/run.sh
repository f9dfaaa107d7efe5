#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the Python client: formatting, types, tests that kill the active of a pair, test/conformance, switches
# between two sites (test/sites/real), moves of queues (test/fleet), and a wheel that is built and installed. It creates
# a virtual environment and installs the pinned client/python/requirements-dev.txt from PyPI. Exit code 0: success; 3:
# the test cannot run here.
# Usage:
#   test/python/run.sh        everything
#   PYTHON=python3.13 test/python/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD

python=${PYTHON:-python3}
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  echo "$python is missing, older than 3.10, or has no module venv"
  exit 3
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-python.XXXXXX")
trap 'jobs -p | xargs -r kill 2>/dev/null || true; wait; rm -rf "$work"' EXIT

step() { printf -- '--- [%3ds] %s\n' "$SECONDS" "$*"; }

step "a virtual environment with the pinned requirements, and the binary"
go build -o "$work/lockstep" ./cmd/lockstep &
building=$!
"$python" -m venv "$work/venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
if ! timeout 300 "$work/venv/bin/pip" install --quiet --no-compile -r client/python/requirements-dev.txt >"$work/pip.log" 2>&1; then
  echo "PyPI cannot be reached, or has no package for this machine: $(tail -n 1 "$work/pip.log")"
  exit 3
fi
wait "$building"
bin=$work/venv/bin
export PYTHONPATH=$top/client/python/src PYTHONDONTWRITEBYTECODE=1 LOCKSTEP_BINARY=$work/lockstep

generated_and_style() {
  PYTHON=$bin/python client/python/generate.sh --check
  missing=$(find client/python -name '*.py' -not -path '*/.*' -exec sh -c 'head -n 1 "$1" | grep -q "^# SPDX-License-Identifier: Apache-2.0$" || echo "$1"' _ {} \;)
  if [[ -n $missing ]]; then
    echo "the first line must be # SPDX-License-Identifier: Apache-2.0: $missing"
    return 1
  fi
  cd client/python
  "$bin/ruff" format --check --quiet .
  "$bin/ruff" check --quiet .
  "$bin/mypy" --cache-dir "$work/mypy"
}

tests() {
  cd client/python
  timeout 900 "$bin/python" -m pytest -q -p no:cacheprovider
}

conformance() {
  LOCKSTEP_ADAPTER="$bin/python -m lockstep_mq.conformance" go test -tags deep -count=1 -timeout 15m ./test/conformance
}

sites() {
  LOCKSTEP_PYTHON=$bin/python LOCKSTEP_ROUNDS=4 go test -tags deep -count=1 -timeout 15m ./test/sites/real -run TestSwitches
}

moves() {
  # The test builds a binary with the build tag faultdisk.
  env -u LOCKSTEP_BINARY LOCKSTEP_PYTHON="$bin/python" go test -tags deep -count=1 -timeout 15m ./test/fleet
}

# The clean environment contains only the requirements of the wheel. Tracing is an extra, so OpenTelemetry must be
# missing.
wheel() {
  "$bin/python" -m build --no-isolation --outdir "$work/dist" client/python >"$work/build.log" 2>&1 || {
    cat "$work/build.log"
    return 1
  }
  "$python" -m venv --without-pip "$work/clean"
  "$bin/pip" --python "$work/clean/bin/python" install --quiet --no-compile "$work"/dist/*.whl
  cd "$work"
  env -u PYTHONPATH "$work/clean/bin/python" -c '
import importlib.resources, importlib.util, lockstep_mq
assert importlib.resources.files("lockstep_mq").joinpath("py.typed").is_file()
assert lockstep_mq.__file__.startswith("'"$work"'"), lockstep_mq.__file__
assert importlib.util.find_spec("opentelemetry") is None
print("lockstep-mq", lockstep_mq.__version__, "can be installed and imported")
'
}

parts=(tests conformance sites moves generated_and_style wheel)
step "in parallel: ${parts[*]}"
declare -A running
for part in "${parts[@]}"; do
  (
    set -e
    "$part"
  ) >"$work/$part.log" 2>&1 &
  running[$part]=$!
done
failed=()
for part in generated_and_style wheel conformance sites moves tests; do
  wait "${running[$part]}" || failed+=("$part")
  step "$part"
  cat "$work/$part.log"
done
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
step "done in $top/client/python"
