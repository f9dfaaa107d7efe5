#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the container image, and kills the containers of deploy/compose.yaml and deploy/compose-witness.yaml one by one
# while a client publishes. It uses a separate Docker engine in separate namespaces, removes everything that it creates,
# and does not affect other engines.
#
# It uses no registry: the build stage of deploy/Dockerfile is replaced by a local Go build, and the etcd image by the
# etcd version in go.mod. So the first stage of the Dockerfile is not tested.
# Requires root. It installs docker.io and docker-compose with apt-get if they are missing. Exit code 3: the test cannot
# run here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

log() { echo "container: [${SECONDS}s] $*"; }
cannot() {
  echo "container: $*"
  exit 3
}
fail() {
  echo "container: $*" >&2
  for log in "$work"/*.log; do tail -n 15 "$log" >&2; done
  for container in $(docker ps -aq 2>/dev/null); do
    docker inspect --format '{{.Name}} {{.State.Status}}' "$container" >&2
    docker logs --tail 8 "$container" >&2 || true
  done
  exit 1
}

# Outside the namespaces, fetch and build the dependencies.
if [[ -z ${CONTAINER_WORK:-} ]]; then
  ((EUID == 0)) || cannot "not root"
  unshare --mount --pid --fork --net true 2>/dev/null || cannot "unshare is not permitted"
  if ! command -v dockerd >/dev/null || ! command -v docker-compose >/dev/null || ! command -v ip >/dev/null; then
    command -v apt-get >/dev/null || cannot "no dockerd, and no apt-get to install it"
    # RUNLEVEL=1 prevents the package from starting an engine.
    { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      docker.io docker-compose iptables iproute2; } >/dev/null 2>&1 || cannot "docker.io cannot be installed"
  fi
  work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-container.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/stage/out/data" "$work/stage/etc/ssl/certs" "$work/etcd"
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=v0.0.0-container' -o "$work/stage/out/lockstep" ./cmd/lockstep
  CGO_ENABLED=0 go build -o "$work/etcd/etcd" go.etcd.io/etcd/server/v3
  cp /etc/ssl/certs/ca-certificates.crt "$work/stage/etc/ssl/certs/" 2>/dev/null || touch "$work/stage/etc/ssl/certs/ca-certificates.crt"
  # docker compose v2 must load both files; docker-compose 1.29 runs them below.
  if GOBIN=$work/bin go install github.com/compose-spec/compose-go/v2/cmd@v2.16.2 2>/dev/null; then
    for file in deploy/compose.yaml deploy/compose-witness.yaml; do
      "$work/bin/cmd" "$file" >"$work/loaded.yaml" || fail "docker compose cannot load $file"
      grep -q 'read_only: true' "$work/loaded.yaml"
    done
    log "docker compose v2 loads both files"
  else
    log "SKIPPED loading the files with docker compose v2: compose-go cannot be fetched"
  fi
  code=0
  CONTAINER_WORK=$work unshare --mount --pid --fork --kill-child --mount-proc --net "$here/run.sh" || code=$?
  exit "$code"
fi

work=$CONTAINER_WORK
ip link set lo up
mount -t tmpfs tmpfs /run # sockets and files of other engines
export DOCKER_HOST=unix://$work/docker.sock DOCKER_BUILDKIT=0
mkdir "$work/data"
dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/docker.pid" --host "$DOCKER_HOST" >"$work/dockerd.out" 2>&1 &
engine=$!
# Removes all containers, and stops the engine, which releases its cgroups and mounts.
finish() {
  docker ps -aq 2>/dev/null | xargs -r docker rm -f -v >/dev/null 2>&1 || true
  kill "$engine" 2>/dev/null || true
  wait "$engine" 2>/dev/null || true
}
trap finish EXIT
began=$SECONDS
until docker info >/dev/null 2>&1; do
  kill -0 "$engine" 2>/dev/null || cannot "dockerd does not run here: $(tail -n 1 "$work/dockerd.out")"
  ((SECONDS < began + 180)) || cannot "dockerd does not respond: $(tail -n 1 "$work/dockerd.out")"
  sleep 0.2
done
log "engine $(docker version --format '{{.Server.Version}}'), $(docker info --format '{{.Driver}}')"

# until_ok waits for a command, for at most 180 s.
until_ok() {
  local deadline=$((SECONDS + 180))
  until "$@" >"$work/last.log" 2>&1; do
    ((SECONDS < deadline)) || fail "timeout after 180 s: $*"
    sleep 0.2
  done
}

images() {
  tar -c -C "$work/stage" . | docker import - build-stage >/dev/null
  # The Dockerfile without its first stage, which requires golang:1.26 from a registry.
  { echo "FROM build-stage AS build" && sed '1,/^FROM scratch/{/^FROM scratch/!d}' deploy/Dockerfile; } >"$work/Dockerfile"
  mkdir "$work/empty"
  docker build -q -t lockstep -f "$work/Dockerfile" "$work/empty" >"$work/build.log" 2>&1 || fail "docker build"
  printf 'FROM scratch\nCOPY etcd /usr/local/bin/etcd\nCMD ["/usr/local/bin/etcd"]\n' >"$work/etcd/Dockerfile"
  docker build -q -t "$(sed -n 's/^ *image: \(.*etcd.*\)/\1/p' deploy/compose.yaml)" "$work/etcd" >"$work/build.log" 2>&1 || fail "docker build of etcd"
}

# Checks the files of the image, its user, and that it runs with a read-only root.
image() {
  local files
  docker create --name files lockstep >/dev/null
  # Empty files are ignored: the engine adds mount points such as /etc/hosts.
  files=$(docker export files | tar -t -v | awk '$1 ~ /^-/ && $3 > 0 {print $6}' | sort | tr '\n' ' ')
  docker rm files >/dev/null
  [[ $files == "etc/ssl/certs/ca-certificates.crt lockstep " || $files == "lockstep " ]] || fail "files of the image: $files"
  [[ $(docker inspect --format '{{.Config.User}}' lockstep) == 65532:65532 ]] || fail "wrong user of the image"
  docker run --rm --read-only --cap-drop ALL --network none lockstep version | grep '^lockstep v0.0.0-container ' >/dev/null || fail "version"
  if docker run --rm --network none -e LOCKSTEP_COORDINATOR_TYPE=none lockstep >"$work/insecure.log" 2>&1; then
    fail "a node without TLS started without LOCKSTEP_INSECURE"
  fi
  log "image: $(docker image inspect --format '{{.Size}}' lockstep) bytes, runs as 65532 with a read-only root"
}

name() { docker ps -a --format '{{.Names}}' | grep "_$1_1$"; }
# Prints the role that node $1 reports.
role() { docker exec "$(name "$1")" /lockstep status --addr 127.0.0.1:7420 --output json | grep -o '"role": *"[^"]*"' | cut -d'"' -f4; }
pair_in_sync() { [[ "$(role a) $(role b)" == "active standby" || "$(role a) $(role b)" == "standby active" ]]; }
serves() { [[ $(role "$1") == active-alone ]]; }
healthy() { [[ $(docker inspect --format '{{.State.Health.Status}}' "$(name "$1")") == healthy ]]; }
lockstep() { docker run --rm -i --network "${project}_default" lockstep "$@" --addr a:7420,b:7420 --timeout 180s; }

# Kills the containers of a compose file one by one while a client publishes.
compose() {
  local file=$1 count=0 victim other
  shift
  project=$(basename "$file" .yaml | tr -d -)
  docker-compose -f "$file" -p "$project" up -d >"$work/up.log" 2>&1 || fail "docker-compose up"
  until_ok pair_in_sync
  lockstep queue create orders >/dev/null
  # Publishes a line every 20 ms until the file "done" exists. It succeeds only if each line was acknowledged.
  rm -f "$work/done"
  { until [[ -e $work/done ]]; do echo "$((++count))"; sleep 0.02; done; echo "$count" >"$work/count"; } |
    lockstep publish orders >"$work/published.out" 2>"$work/published.log" &
  local publisher=$!
  for victim in "$@"; do
    local was
    was=$(role a 2>/dev/null || true)
    docker kill --signal KILL "$(name "$victim")" >/dev/null
    case $victim in
      a | b)
        other=$([[ $victim == a ]] && echo b || echo a)
        until_ok serves "$other"
        ;;
      *) lockstep publish orders other >/dev/null || fail "publish failed while $victim was down" ;;
    esac
    docker start "$(name "$victim")" >/dev/null
    until_ok pair_in_sync
    log "$(basename "$file"): killed $victim (a was $was), a is $(role a) now, b $(role b)"
  done
  touch "$work/done"
  wait "$publisher" || fail "publisher failed"
  # The queue must contain each line of the publisher once, and the other messages.
  local sent
  sent=$(cat "$work/count")
  lockstep consume orders --count "$((sent + $# - 2))" >"$work/consumed"
  grep -v '^other$' "$work/consumed" | sort -n | cmp - <(seq "$sent") || fail "consumed messages differ from published ones"
  until_ok healthy a
  until_ok healthy b
  docker-compose -f "$file" -p "$project" down -v >"$work/down.log" 2>&1 || fail "docker-compose down"
  log "$(basename "$file"): $sent messages, each exactly once"
}

images
image
compose deploy/compose.yaml a b etcd-1 etcd-2 etcd-3
compose deploy/compose-witness.yaml a b witness
