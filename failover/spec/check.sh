#!/usr/bin/env bash
# Checks Lockstep.tla with TLC. TLA2TOOLS names a tla2tools.jar; without it, one is looked for in the cache and then fetched.
set -euo pipefail
cd "$(dirname "$0")"
version=v1.7.4
url=https://github.com/tlaplus/tlaplus/releases/download/$version/tla2tools.jar
jar=${TLA2TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/tla2tools-$version.jar}

if ! command -v java >/dev/null; then
	echo "spec: no java on this machine: install a Java runtime, 11 or newer, or leave the model to a machine that has one" >&2
	exit 1
fi
if [[ ! -s $jar ]]; then
	mkdir -p "$(dirname "$jar")"
	if ! curl -fsSL --max-time 120 -o "$jar.part" "$url"; then
		rm -f "$jar.part"
		echo "spec: $url cannot be fetched; get it on another machine and set TLA2TOOLS=/path/to/tla2tools.jar" >&2
		exit 1
	fi
	mv "$jar.part" "$jar"
fi
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
java -XX:+UseParallelGC -cp "$jar" tlc2.TLC -workers auto -metadir "$state" -config "${1:-Lockstep.cfg}" Lockstep.tla
