#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs third-party AMQP 1.0 clients through test/amqp, on a real pair: Qpid JMS 1.x and 2.x, Qpid Proton for Python,
# rhea and Azure/go-amqp. Some cases kill the active. The script also runs Joram's JMS tests and a Spring application.
# Downloads from Maven Central, PyPI and npm are cached in LOCKSTEP_AMQP_CACHE, by default ~/.cache/lockstep-amqp. If the
# language or the packages of a client are missing, the client is skipped and listed. If all other clients pass, the exit
# code is then 3.
# Usage:
#   test/amqp/run.sh                    everything
#   test/amqp/run.sh rhea joram         only these: go-amqp, qpid-jms-1, qpid-jms-2, proton-python, rhea, joram, spring
#   LOCKSTEP_AMQP_CASE=commit ...       only cases with this name part; LOCKSTEP_JORAM_ONLY="Selector Browser" for Joram's
set -euo pipefail
cd "$(dirname "$0")"

here=$PWD
cache=${LOCKSTEP_AMQP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-amqp}
mkdir -p "$cache"
wanted=("$@")
if ((${#wanted[@]} == 0)); then
  wanted=(go-amqp qpid-jms-1 qpid-jms-2 proton-python rhea joram spring)
fi
adapters=()
missing=()

step() { printf -- '--- [%3ds] %s\n' "$SECONDS" "$*"; }
want() { [[ " ${wanted[*]} " == *" $1 "* ]]; }
skip() {
  missing+=("$1")
  echo "skipped: $1"
}

# jars PROFILE: fetches the jars of a profile of jms/pom.xml, and compiles the Java sources that require them, in the
# cache.
jars() {
  local profile=$1 dir="$cache/$1" from=src stamp
  if [[ $profile == spring ]]; then
    from=spring
  fi
  stamp=$(cat jms/pom.xml jms/$from/* | sha256sum | cut -c1-16)
  [[ -e $dir/.$stamp ]] && return
  command -v mvn >/dev/null && command -v javac >/dev/null || return 1
  rm -rf "$dir" "$cache/classes-$profile"
  timeout 300 mvn -q -B -f jms/pom.xml -P"$profile" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
    -DoutputDirectory="$dir" >"$cache/mvn.log" 2>&1 || return 1
  local sources="$cache/sources-$profile"
  rm -rf "$sources"
  mkdir -p "$sources" "$cache/classes-$profile"
  cp jms/$from/* "$sources"
  if [[ $profile == jakarta ]]; then
    rm "$sources"/{Joram,LockstepAdmin}.java
    sed -i 's/^import javax\.jms\./import jakarta.jms./' "$sources"/*.java
  fi
  javac -nowarn -d "$cache/classes-$profile" -cp "$dir/*" "$sources"/*.java
  find "$sources" -name '*.properties' -exec cp {} "$cache/classes-$profile" \;
  touch "$dir/.$stamp"
}
java_command() { # the -XX options limit JIT compilation and garbage collection for a short-lived JVM
  echo "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m -cp $cache/$1/*:$cache/classes-$1 $2"
}

python_client() {
  local venv="$cache/python" stamp
  stamp=$(sha256sum proton/requirements.txt | cut -c1-16)
  if [[ ! -e $venv/.$stamp ]]; then
    local python=${PYTHON:-python3}
    "$python" -c 'import venv, ensurepip' 2>/dev/null || return 1
    rm -rf "$venv"
    "$python" -m venv "$venv" || return 1
    timeout 300 "$venv/bin/pip" install --quiet --disable-pip-version-check -r proton/requirements.txt >"$cache/pip.log" 2>&1 || return 1
    touch "$venv/.$stamp"
  fi
  adapters+=("proton-python=$venv/bin/python -B $here/proton/adapter.py")
}

node_client() {
  local dir="$cache/node" stamp
  stamp=$(sha256sum rhea/package-lock.json | cut -c1-16)
  command -v node >/dev/null || return 1
  if [[ ! -e $dir/.$stamp ]]; then
    command -v npm >/dev/null || return 1
    rm -rf "$dir"
    mkdir -p "$dir"
    cp rhea/package.json rhea/package-lock.json "$dir"
    (cd "$dir" && timeout 300 npm ci --silent --no-audit --no-fund >npm.log 2>&1) || return 1
    touch "$dir/.$stamp"
  fi
  cp rhea/adapter.js "$dir/adapter.js"
  adapters+=("rhea=node $dir/adapter.js")
}

step "clients"
bin=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-amqp.XXXXXX")
trap 'rm -rf "$bin"' EXIT
if want go-amqp; then
  go build -o "$bin/goadapter" ./goadapter
  adapters+=("go-amqp=$bin/goadapter")
fi
if want rhea && ! node_client; then
  skip "rhea: no node and npm, or the npm registry cannot be reached"
fi
if want proton-python && ! python_client; then
  skip "proton-python: no Python with venv, no C compiler, or PyPI cannot be reached"
fi
if want qpid-jms-1 || want joram; then
  if jars javax; then
    if want qpid-jms-1; then
      adapters+=("qpid-jms-1=$(java_command javax Adapter)")
    fi
    if want joram; then
      LOCKSTEP_JORAM=$(java_command javax Joram)
      LOCKSTEP_JORAM_JAR=$(ls "$cache"/javax/joram-jms-tests-*.jar)
      export LOCKSTEP_JORAM LOCKSTEP_JORAM_JAR
    fi
  else
    skip "Qpid JMS 1.x and Joram's tests: no java, javac and mvn, or Maven Central cannot be reached"
  fi
fi
if want qpid-jms-2; then
  if jars jakarta; then
    adapters+=("qpid-jms-2=$(java_command jakarta Adapter)")
  else
    skip "Qpid JMS 2.x: no java, javac and mvn, or Maven Central cannot be reached"
  fi
fi

if want spring; then
  if jars spring; then
    LOCKSTEP_SPRING=$(java_command spring Spring)
    export LOCKSTEP_SPRING
  else
    skip "Spring: no java, javac and mvn, or Maven Central cannot be reached"
  fi
fi

if ((${#adapters[@]} > 0)); then
  LOCKSTEP_AMQP_ADAPTERS=$(printf '%s\n' "${adapters[@]}")
  export LOCKSTEP_AMQP_ADAPTERS
fi
tests=()
if ((${#adapters[@]} > 0)); then
  tests+=(TestForeignClients TestForeignClientsSecured TestForeignClientsBehindProxy)
fi
if [[ -n ${LOCKSTEP_JORAM:-} ]]; then
  tests+=(TestJoram)
fi
if [[ -n ${LOCKSTEP_SPRING:-} ]]; then
  tests+=(TestSpring)
fi
if ((${#tests[@]} > 0)); then
  step "cases: ${tests[*]}"
  pattern=$(IFS='|'; echo "${tests[*]}")
  code=0
  go test -tags deep -count=1 -timeout 30m -v -run "^($pattern)\$" . >"$bin/out" 2>&1 || code=$?
  if ((code != 0)); then
    cat "$bin/out"
    exit 1
  fi
  grep -aE 'Spring:|stored once|commits under a kill|same id|cases passed|of [0-9]+ passed|failed [0-9]+, stored twice|delivered twice|commits, ' "$bin/out" || true
fi
step "done"
if ((${#missing[@]} > 0)); then
  printf 'amqp: skipped: %s\n' "$(IFS=';'; echo "${missing[*]}")"
  exit 3
fi
